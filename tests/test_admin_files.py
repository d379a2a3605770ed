"""Files are served to staff only, as what they are, and from nowhere but below MEDIA_ROOT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncRequestFactory, Client
from django.urls import reverse

from jobs import serving
from jobs.clock import clock
from jobs.models import Result
from jobs.roles import Role
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def media(settings: Any, tmp_path: Path) -> Path:
    root = tmp_path / "media"
    root.mkdir()
    settings.MEDIA_ROOT = root
    return root


@pytest.fixture
def result() -> Result:
    found = factories.done(clock.now()).delivered
    assert found is not None
    return found


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(factories.staff(Role.VIEWER))
    return client


def _file(result: Result) -> str:
    return reverse("admin:desk_file", args=[result.pk])


def test_the_file_comes_as_what_it_is_and_may_be_kept_privately(
    client: Client, result: Result
) -> None:
    answer = client.get(_file(result))
    body = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert body.startswith(b"\x89PNG")
    assert len(body) == int(answer["Content-Length"]) == result.size_bytes
    assert answer["Content-Type"] == "image/png"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Disposition"].startswith("inline")
    assert answer["Cache-Control"].startswith("private, max-age=")
    assert answer["Content-Security-Policy"] == "default-src 'none'; sandbox"
    again = client.get(_file(result), headers={"If-None-Match": answer["ETag"]})
    assert again.status_code == 304


def test_a_download_is_saved_under_a_plain_name(client: Client, result: Result) -> None:
    answer = client.get(_file(result) + "?download")
    answer.close()
    assert (
        answer["Content-Disposition"] == f'attachment; filename="{result.job_id}-{result.pk}.png"'
    )


def test_the_thumbnail_is_small_and_served_likewise(client: Client, result: Result) -> None:
    answer = client.get(reverse("admin:desk_thumbnail", args=[result.pk]))
    assert b"".join(answer.streaming_content)[8:12] == b"WEBP"  # type: ignore[attr-defined]
    assert answer["Content-Type"] == "image/webp"


@pytest.mark.parametrize(
    "media_type", ["text/html", "image/svg+xml", "text/plain; charset=utf-8", "application/pdf"]
)
def test_what_a_browser_could_run_is_only_downloaded(
    client: Client, result: Result, media_type: str
) -> None:
    Result.objects.filter(pk=result.pk).update(media_type=media_type)
    answer = client.get(_file(result))
    answer.close()
    assert answer["Content-Disposition"].startswith("attachment")
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_nobody_else_sees_a_file(result: Result) -> None:
    assert Client().get(_file(result)).status_code == 302  # to the login
    stranger = Client()
    stranger.force_login(factories.staff())
    assert stranger.get(_file(result)).status_code == 403


@pytest.mark.parametrize(
    "key",
    ["../secret.txt", "/etc/passwd", "results/../../secret.txt", "a\\..\\b", "", "gone.png", "."],
)
def test_a_key_that_leads_elsewhere_is_not_found(
    client: Client, result: Result, media: Path, key: str
) -> None:
    (media.parent / "secret.txt").write_text("secret")
    Result.objects.filter(pk=result.pk).update(key=key)
    assert client.get(_file(result)).status_code == 404


def test_a_symbolic_link_out_of_the_folder_is_not_followed(
    client: Client, result: Result, media: Path
) -> None:
    secret = media.parent / "secret.txt"
    secret.write_text("secret")
    (media / "link.png").symlink_to(secret)
    Result.objects.filter(pk=result.pk).update(key="link.png")
    assert client.get(_file(result)).status_code == 404


def test_there_is_no_public_way_to_the_files(client: Client, result: Result) -> None:
    assert client.get(f"/media/{result.key}").status_code == 404


async def test_under_asgi_the_file_is_streamed_piece_by_piece(media: Path) -> None:
    """A synchronous body would be read into memory as a whole, with a warning."""
    (media / "large.png").write_bytes(b"x" * 600_000)
    request = AsyncRequestFactory().get("/")
    answer = serving.serve(request, "large.png", media_type="image/png", etag="e", name="large.png")
    assert answer.is_async  # type: ignore[attr-defined]
    parts = [part async for part in answer]  # type: ignore[attr-defined]
    assert [len(part) for part in parts] == [262_144, 262_144, 75_712]
