"""Reads from addresses that somebody else wrote: only the open internet and the provider's own server are asked.

A provider's answer names where its files are. In the web process such an address must not reach what only this machine
sees (a metadata service, a database's page, a neighbour), by whatever name or redirect. So each hop's host is resolved here,
every address it has must be public, and the connection goes to the very address that was looked at: a name that resolves
differently a moment later leads nowhere else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import httpx

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)*(?<!-)")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Places inside that may be asked all the same: host names in small letters, and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def of(cls, told: Iterable[str]) -> Self:
        """From names, addresses and networks such as 10.1.0.0/16. Raises ValueError over what is none of these."""
        hosts, networks = set(), []
        for one in told:
            try:
                networks.append(ipaddress.ip_network(one))
            except ValueError:
                if not _HOST_NAME.fullmatch(one.lower()):
                    raise
                hosts.add(one.lower())
        return cls(frozenset(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Whether it is allowed as it is written: by name, or as an address of one of the networks."""
        return host.lower() in self.hosts or self.holds(host)

    def holds(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self.networks)


class Outside(httpx.AsyncBaseTransport):
    """`home` is the provider's base URL: its own host and port are asked wherever they are, as its polls are. `allowed`:
    what else may be inside.

    Raises httpx.ConnectError for any other host that has an address which is not public, or none.
    """

    def __init__(
        self,
        *,
        home: str = "",
        allowed: Allowed | None = None,
        inner: httpx.AsyncBaseTransport | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._home = _place(httpx.URL(home)) if home else None
        self._allowed = allowed or Allowed()
        self._inner = inner or httpx.AsyncHTTPTransport(
            verify=httpx.create_ssl_context(trust_env=False), trust_env=False, retries=0
        )
        self._resolve = resolve or _resolve

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        place = _place(request.url)
        if place != self._home:
            request = _pinned(request, await self._public(*place))
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _public(self, host: str, port: int) -> str:
        """One address of the host, all of which are public or allowed."""
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"{host} is not to be found: {error}") from error
        by_name = host.lower() in self._allowed.hosts
        if not found or not all(
            by_name or is_public(address) or self._allowed.holds(address) for address in found
        ):
            raise httpx.ConnectError(f"{host} is no address of the open internet")
        return found[0]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet, also where it carries an IPv4 address inside."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inside = ip.ipv4_mapped or ip.sixtofour
        if inside is None and ip in _NAT64:
            inside = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inside is not None:
            ip = inside
    return ip.is_global and not ip.is_multicast


def _place(url: httpx.URL) -> tuple[str, int]:
    return urlsplit(str(url)).hostname or "", url.port or _PORTS.get(url.scheme, 0)


def _pinned(request: httpx.Request, address: str) -> httpx.Request:
    """The same request to this address; its Host header and the name in the certificate stay what they were."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")},
    )


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_rest, address in found]
