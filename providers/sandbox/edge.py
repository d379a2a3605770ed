"""What a proxy in front of a provider says: HTML that is not the provider speaking."""

from __future__ import annotations

from http import HTTPStatus

from .reactions import Reaction

# Statuses that only proxies use.
_CLOUDFLARE = {
    520: "Web server is returning an unknown error",
    521: "Web server is down",
    522: "Connection timed out",
    524: "A timeout occurred",
}


def page(status: int, *, delay_s: float = 0.0) -> Reaction:
    """The page of nginx, or of Cloudflare for its own statuses."""
    if status in _CLOUDFLARE:
        html = (
            f"<!DOCTYPE html>\n<html lang='en-US'>\n<head><title>sandbox | {status}: {_CLOUDFLARE[status]}</title></head>\n"
            f"<body><div id='cf-wrapper'><h1>{_CLOUDFLARE[status]} <span>Error code {status}</span></h1>\n"
            "<p>The origin web server did not answer as expected. Please try again in a few minutes.</p>\n"
            "</div></body>\n</html>\n"
        )
        server = "cloudflare"
    else:
        phrase = "Client Closed Request" if status == 499 else HTTPStatus(status).phrase
        html = (
            f"<html>\r\n<head><title>{status} {phrase}</title></head>\r\n<body>\r\n"
            f"<center><h1>{status} {phrase}</h1></center>\r\n<hr><center>nginx/1.24.0</center>\r\n</body>\r\n</html>\r\n"
        )
        server = "nginx"
    return Reaction(
        status=status,
        headers=(("content-type", "text/html; charset=UTF-8"), ("server", server)),
        body=html.encode(),
        delay_s=delay_s,
    )
