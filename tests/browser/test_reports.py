"""Reports in a real browser: the plots are drawn in either theme, by pointer and keyboard, and break no policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobs.clock import clock
from jobs.roles import Role
from tests.browser.visitor import LANGUAGES, SIZES, Visitor
from tests.test_reports import world

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PAGE = "/admin/reports/"
# Of each plot, how many pixels are not empty, and the colour that most of its strong ones have.
_PIXELS = """
() => [...document.querySelectorAll(".plot canvas")].map((canvas) => {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const on = copy.getContext("2d", { willReadFrequently: true });
  on.drawImage(canvas, 0, 0);
  const data = on.getImageData(0, 0, copy.width, copy.height).data;
  const seen = new Map();
  let drawn = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] < 250) continue;
    drawn += 1;
    const colour = `${data[at]},${data[at + 1]},${data[at + 2]}`;
    seen.set(colour, (seen.get(colour) || 0) + 1);
  }
  return [drawn, [...seen].sort((a, b) => b[1] - a[1])[0][0]];
})
"""


def _drawn(someone: Visitor) -> list[tuple[int, str]]:
    someone.page.locator(".plot canvas").first.wait_for()
    someone.page.wait_for_timeout(300)  # until the frame after the last redraw
    told: list[tuple[int, str]] = someone.page.evaluate(_PIXELS)
    return told


def test_every_plot_is_drawn_and_again_when_the_theme_changes(visit: Callable[..., Visitor]) -> None:  # fmt: skip
    world(clock.now(), sends=400)
    someone = visit(Role.VIEWER, viewport=SIZES["desk"], color_scheme="light")
    someone.page.get_by_role("link", name="Reports").click()
    light = _drawn(someone)
    assert len(light) == 4
    assert all(drawn > 1000 for drawn, _colour in light)
    someone.page.emulate_media(color_scheme="dark")
    dark = _drawn(someone)
    assert all(one[1] != other[1] for one, other in zip(light, dark, strict=True))
    someone.page.locator(".theme-toggle").click()
    someone.page.locator(".theme-toggle").click()
    assert all(drawn > 1000 for drawn, _colour in _drawn(someone))
    assert someone.complaints == []


def test_the_pointer_and_the_arrow_keys_tell_the_figures_of_a_bar(
    visit: Callable[..., Visitor],
) -> None:
    world(clock.now(), sends=400)
    someone = visit(Role.VIEWER, viewport=SIZES["desk"])
    someone.go(PAGE)
    page = someone.page
    plot = page.locator("#throughput")
    plot.locator("canvas").wait_for()
    row = page.locator("section:has(#throughput) tbody tr").last
    page.locator("section:has(#throughput) summary").click()
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] - 14, "y": 120})
    tip = plot.locator(".plot-tip")
    tip.wait_for()
    first, *counts = [cell.strip() for cell in row.inner_text().split("\t")]
    assert first in tip.inner_text()
    assert all(count in tip.inner_text() for count in counts if count != "0")
    page.mouse.move(2, 2)
    page.keyboard.press("Tab")
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    second = page.locator("section:has(#throughput) tbody tr").nth(1)
    name = second.locator("th").inner_text()
    assert (plot.get_attribute("aria-valuetext") or "").startswith(f"{name}: ")
    assert name in tip.inner_text()
    assert plot.get_attribute("role") == "slider"
    assert someone.complaints == []


def test_a_period_is_chosen_by_tab_by_dates_and_by_drawing_over_it(
    visit: Callable[..., Visitor],
) -> None:
    world(clock.now(), sends=400)
    someone = visit(Role.VIEWER, viewport=SIZES["desk"])
    someone.go(f"{PAGE}?provider=polza")
    page = someone.page
    page.get_by_role("link", name="Last 7 days").click()
    assert "range=week" in page.url
    assert "provider=polza" in page.url
    page.locator(".reports-own summary").click()
    page.fill("#id_from", "2026-01-01T00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    assert "range=own" in page.url
    assert "provider=polza" in page.url
    someone.go(PAGE)
    plot = page.locator("#throughput")
    plot.locator("canvas").wait_for()
    page.wait_for_timeout(300)
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 100, steps=4)
    page.mouse.up()
    page.wait_for_url("**range=own**")
    assert page.locator(".plot").count() >= 1
    assert someone.complaints == []


@pytest.mark.parametrize(("language", "size"), [("en", "phone"), ("fa", "phone"), ("fa", "desk")])
def test_reports_fit_their_window(
    visit: Callable[..., Visitor], size: str, language: str, settings: Any
) -> None:
    settings.LANGUAGES = LANGUAGES
    world(clock.now(), sends=300)
    someone = visit(viewport=SIZES[size], color_scheme="dark" if language == "fa" else "light")
    someone.page.context.add_cookies(
        [{"name": "django_language", "value": language, "url": someone.server}]
    )
    for address in (PAGE, f"{PAGE}?range=month&by=tenant", f"{PAGE}?tenant=nobody&range=hour"):
        someone.go(address)
        someone.page.wait_for_timeout(300)
        assert someone.overflow() <= 0, address
        for fold in someone.page.locator(".fold summary").all():
            fold.click()
        assert someone.overflow() <= 0, address
    assert someone.complaints == []


def test_without_javascript_the_tables_hold_the_figures(visit: Callable[..., Visitor]) -> None:
    world(clock.now(), sends=200)
    someone = visit(viewport=SIZES["desk"], java_script_enabled=False)
    someone.go(PAGE)
    assert "The table below has the same figures." in someone.page.locator("#throughput").inner_text()  # fmt: skip
    someone.page.locator("section:has(#throughput) summary").click()
    assert someone.page.locator("section:has(#throughput) tbody tr").count() >= 48
