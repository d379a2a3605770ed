"""The gallery in a real browser: choosing, the lightbox and its keys, rating in it, the archive."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from jobs.clock import clock
from jobs.models import Job, Result
from tests import factories
from tests.browser.visitor import LANGUAGES, SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def _pictures(count: int = 6) -> list[Job]:
    """Newest first, as they stand on the page."""
    now = clock.now()
    jobs = [
        factories.done(
            now, hue=60 * n, reference=f"R-{n}", prompt=f"A lighthouse {n} " + "x" * 60 * n
        )
        for n in range(count)
    ]
    return jobs[::-1]


def _open(visit: Callable[..., Visitor], language: str = "en", size: str = "desk") -> Visitor:
    someone = visit(viewport=SIZES[size], color_scheme="dark" if size == "phone" else "light")
    someone.page.context.add_cookies(
        [{"name": "django_language", "value": language, "url": someone.server}]
    )
    someone.go("/admin/gallery/")
    return someone


@pytest.mark.parametrize(("language", "size"), [("en", "desk"), ("fa", "phone")])
def test_the_lightbox_goes_along_by_keys_and_fits(
    visit: Callable[..., Visitor], settings: Any, language: str, size: str
) -> None:
    settings.LANGUAGES = LANGUAGES
    _pictures()
    someone = _open(visit, language, size)
    page = someone.page
    assert someone.overflow() <= 0
    page.click(".gallery-tile:nth-child(2) [data-open]")
    box = page.locator("#lightbox")
    assert box.locator("h2").inner_text() == "R-4"
    forward, back = ("ArrowLeft", "ArrowRight") if language == "fa" else ("ArrowRight", "ArrowLeft")
    page.keyboard.press(forward)
    assert box.locator("h2").inner_text() == "R-3"
    page.keyboard.press(back)
    page.keyboard.press(back)
    page.keyboard.press(back)  # the first: there is nothing before it
    assert box.locator("h2").inner_text() == "R-5"
    page.locator("#lightbox img").evaluate("image => image.decode()")
    assert someone.overflow() <= 0
    page.keyboard.press("Escape")
    assert not box.is_visible()
    assert page.evaluate("document.activeElement.closest('.gallery-tile').id") == page.locator(
        ".gallery-tile"
    ).first.get_attribute("id")
    assert someone.complaints == []


def test_a_key_rates_what_is_shown(visit: Callable[..., Visitor]) -> None:
    newest = _pictures(2)[0]
    someone = _open(visit)
    page = someone.page
    page.click(".gallery-tile:first-child [data-open]")
    page.keyboard.press("1")
    page.wait_for_selector("#lightbox [data-rating=good][aria-pressed=true]")
    assert Result.objects.get(job=newest).rating == "good"
    assert page.locator(".gallery-tile:first-child .gallery-mark").count() == 1
    assert someone.complaints == []


def test_a_range_is_chosen_with_shift_and_comes_as_one_archive(
    visit: Callable[..., Visitor], tmp_path: Any
) -> None:
    _pictures()
    someone = _open(visit)
    page = someone.page
    page.click(".gallery-tile:nth-child(1) .gallery-check input")
    page.click(".gallery-tile:nth-child(4) .gallery-check input", modifiers=["Shift"])
    assert page.inner_text("[data-chosen-count]") == "4"
    with page.expect_download() as got:
        page.click("#gallery-form .gallery-do > button:first-child")
    path = tmp_path / "got.zip"
    got.value.save_as(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 5
    assert someone.complaints == []


def test_chosen_ones_go_to_the_confirmation_of_the_job_list(visit: Callable[..., Visitor]) -> None:
    _pictures(3)
    someone = _open(visit)
    someone.page.click("[data-all]")
    with someone.page.expect_navigation():
        someone.page.click("button[value=again_selected]")
    assert someone.page.url.startswith(someone.server + "/admin/jobs/")
    assert someone.page.locator("form").count() > 0
    assert someone.complaints == []
