"""A batch in a real browser from the upload to its end, and its pages at all sizes and in both directions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, expect

from jobs.admin import batch_page
from jobs.clock import clock
from jobs.lifecycle import batches
from jobs.models import Batch, Job
from jobs.roles import Role
from jobs.states import JobState
from tests import factories, import_files
from tests.browser.visitor import SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks each second, so that nobody waits."""
    monkeypatch.setattr(batch_page, "REFRESH_S", 1)


def _make(jobs: list[Job], *, fail: int = 0) -> None:
    """What the machine would do: the last `fail` of them are refused, the others get their picture."""
    now = clock.now()
    for at, job in enumerate(jobs):
        if at < len(jobs) - fail:
            factories.result(job, now, hue=40 * at)
            Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, finished_at=now)
        else:
            Job.objects.filter(pk=job.pk).update(
                state=JobState.FAILED, reason="refused_by_all", finished_at=now,
                reason_text="HTTP 400: prompt was rejected by the safety system",
            )  # fmt: skip


def _width(page: Page, state: str) -> int:
    return int(page.locator(f"[data-progress] [data-bar={state}]").get_attribute("width") or 0)


def test_from_the_upload_to_the_end(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    file, photos = tmp_path / "spring.csv", tmp_path / "photos.zip"
    rows = "".join(f"R-{n};chair {n};red.png\n" for n in range(8))
    file.write_text("\ufeffreference;product;photo\n" + rows + "R-9;table;none.png\n", "utf-8")
    photos.write_bytes(import_files.archive({"red.png": import_files.png()}))
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    page = someone.page

    # Upload.
    someone.go("/admin/jobs/batch/")
    page.get_by_role("link", name="Add batch").first.click()
    page.set_input_files("#id_file", file)
    page.set_input_files("#id_photos", photos)
    page.fill("#id_template", "A {product}, {colour}")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("“{colour}” names no column. There are: reference, product, photo.").wait_for()
    page.set_input_files("#id_file", file)
    page.set_input_files("#id_photos", photos)
    page.fill("#id_template", "A {product} on a white wall")
    page.get_by_role("button", name="Preview").click()

    # Preview: nothing is made yet, and what is wrong is named.
    page.get_by_text("The archive has no photo “none.png”.").wait_for()
    page.get_by_text("A chair 0 on a white wall").wait_for()
    assert not Job.objects.exists()
    page.get_by_role("button", name="Generate 8 jobs").click()

    # Start, and watch the bar move by itself.
    page.wait_for_url("**/change/")
    batch = Batch.objects.get()
    jobs = list(batch.jobs.order_by("pk"))
    expect(page.locator("[data-text=percent]")).to_have_text("0 %")
    assert _width(page, "succeeded") == 0
    asked: list[Request] = []
    page.on("request", lambda one: asked.append(one) if one.url.endswith("/progress/") else None)
    _make(jobs[:3])
    expect(page.locator("[data-text=percent]")).to_have_text("37 %")
    assert _width(page, "succeeded") == 375
    expect(page.locator("[data-shown] img")).to_have_count(3)
    _make(jobs[3:], fail=2)

    # See the failed ones and why.
    page.locator("[data-live=state]", has_text="done, some given up").wait_for()
    expect(page.locator("[data-text=percent]")).to_have_text("100 %")
    given_up = page.locator("#given-up")
    expect(given_up.locator("tbody tr")).to_have_count(2)
    expect(given_up.locator(".badge").first).to_have_text("2")
    given_up.get_by_text("HTTP 400: prompt was rejected by the safety system").first.wait_for()
    assert batches.complete(now=clock.now()) == [batch.pk]
    done = len(asked)
    page.wait_for_timeout(2200)
    assert len(asked) == done  # nothing more will change by itself, so nobody asks

    # Retry them.
    page.get_by_role("link", name="Retry the failed").click()
    page.get_by_text("Back to the queue, with a new start: 2 jobs.").wait_for()
    page.get_by_role("button", name="Retry the failed").click()
    page.locator("[data-live=state]", has_text="under way").wait_for()
    expect(page.locator("[data-text=percent]")).to_have_text("75 %")
    _make(jobs[-2:])

    # See the end.
    page.locator("[data-live=state]", has_text="done").wait_for()
    page.get_by_text("Everything went well: nothing was given up.").wait_for()
    expect(page.locator("[data-shown] img")).to_have_count(8)
    assert batches.complete(now=clock.now()) == [batch.pk]
    batch.refresh_from_db()
    assert batch.completions == 2
    assert [text for text in someone.complaints if "400" not in text] == []


def test_pausing_and_resuming_show_at_once(visit: Callable[..., Visitor]) -> None:
    batch = _many(JobState.PENDING)
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    page = someone.page
    someone.go(f"/admin/jobs/batch/{batch.pk}/change/")
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("button", name="Pause").click()
    page.locator("[data-live=state]", has_text="paused by staff").wait_for()
    expect(page.locator("[data-text=left]")).to_have_text("paused: no end can be told")
    # Somebody else resumes it: an open page notices.
    batches.resume(batch_id=batch.pk, actor=None, now=clock.now())
    page.locator("[data-live=state]", has_text="under way").wait_for()
    page.locator("#history", has_text="Resumed").wait_for()
    assert someone.complaints == []


def test_failed_prompts_are_edited_and_made_again(visit: Callable[..., Visitor]) -> None:
    batch = _many(JobState.FAILED)
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    page = someone.page
    someone.go(f"/admin/jobs/batch/{batch.pk}/change/")
    page.get_by_role("button", name="Edit the prompts").click()
    page.fill("#id_template", "{prompt}, at night")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("picture 0, at night").wait_for()
    page.get_by_role("button", name="Generate 3 jobs").click()
    page.wait_for_url("**/change/")
    assert Batch.objects.latest("pk").label == "Spring, again"
    assert someone.complaints == []


def _many(state: JobState, jobs: int = 3) -> Batch:
    now = clock.now()
    batch = Batch.objects.create(tenant=factories.tenant(), label="Spring", created_at=now)
    for n in range(jobs):
        factories.job(now, state, batch=batch, prompt=f"picture {n}")
    return batch


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(
    visit: Callable[..., Visitor], size: str, scheme: str
) -> None:
    batch = _story()
    someone = visit(Role.OWNER, viewport=SIZES[size], color_scheme=scheme)
    someone.go("/admin/jobs/batch/add/")
    assert someone.overflow() <= 0
    long = "x" * 200
    someone.page.fill("#id_pasted", f"prompt\treference\n{long}\tR\n{long}\tR2\n{'y' * 9000}\tR3")
    someone.page.get_by_role("button", name="Preview").click()
    someone.page.wait_for_url("**/draft/**")
    assert someone.overflow() <= 0
    for path in (f"/admin/jobs/batch/{batch.pk}/change/", "/admin/jobs/batch/", f"/admin/jobs/batch/{batch.pk}/do/cancel-rest/"):  # fmt: skip
        someone.go(path)
        assert someone.overflow() <= 0, path
        someone.page.evaluate("document.documentElement.dir = 'rtl'")
        assert someone.overflow() <= 0, f"{path} right to left"
    assert someone.complaints == []


def _story() -> Batch:
    """A batch in the middle of its work, with everything that can be seen."""
    now = clock.now()
    batch = Batch.objects.create(
        tenant=factories.tenant(), label="Весна / spring collection", created_at=now - timedelta(minutes=4)
    )  # fmt: skip
    for n in range(9):
        factories.done(now, hue=28 * n, batch=batch, reference=f"SKU-{100 + n}", created_at=now - timedelta(seconds=100 + n))  # fmt: skip
    for n in range(4):
        factories.accepted(factories.job(now, JobState.ACTIVE, batch=batch, reference=f"SKU-{200 + n}"), now)  # fmt: skip
    for n in range(7):
        factories.job(now, batch=batch, reference=f"SKU-{300 + n}")
    factories.job(
        now, JobState.FAILED, batch=batch, reference="SKU-400", reason="refused_by_all",
        reason_text="HTTP 400: prompt was rejected by the safety system", prompt="A chair " + "z" * 300,
    )  # fmt: skip
    factories.job(now, JobState.FAILED, batch=batch, reason="attempts_exhausted")
    factories.lost(factories.job(now, JobState.MANUAL, batch=batch, reference="SKU-401", reason="unknown_send"), now)  # fmt: skip
    factories.job(now, JobState.CANCELLED, batch=batch, decided_at=now)
    return batch
