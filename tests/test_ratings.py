"""Ratings: staff say what they think of a delivered result, change it and take it back; who and when is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from jobs.clock import clock
from jobs.lifecycle import ratings
from jobs.lifecycle.errors import Refused
from jobs.models import Job, JobEvent, Result
from jobs.roles import Role
from jobs.states import JobState
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


def _client(role: Role) -> Client:
    client = Client()
    client.force_login(factories.staff(role, name=role.value.lower()))
    return client


def _rated(job: Job) -> tuple[str, str | None, bool]:
    result = Result.objects.select_related("rated_by").get(job=job)
    by = result.rated_by.get_username() if result.rated_by else None
    return result.rating, by, result.rated_at is not None


def test_a_rating_is_given_changed_and_taken_back_and_each_step_is_kept() -> None:
    job = factories.done(clock.now())
    client, url = _client(Role.OPERATOR), f"/admin/jobs/job/{job.pk}/do/rate/"
    page = f"/admin/jobs/job/{job.pk}/change/"
    steps = [("good", ("good", "operator", True)), ("good", ("good", "operator", True)),
             ("bad", ("bad", "operator", True)), ("", ("", None, False))]  # fmt: skip
    for rating, kept in steps:
        answer = client.post(url, {"rating": rating, "next": page})
        assert (answer.status_code, answer["Location"]) == (302, page)
        assert _rated(job) == kept
        shown = client.get(page).content.decode()
        assert ('aria-pressed="true"' in shown) is bool(rating)
        assert ('data-key="0"' in shown) is bool(rating)
    told = [
        (event.kind, event.data["before"], event.data["after"])
        for event in JobEvent.objects.filter(job=job, kind__startswith="rat").order_by("pk")
    ]
    # The same once more is no step.
    assert told == [("rated", None, "good"), ("rated", "good", "bad"), ("rating_removed", "bad", None)]  # fmt: skip


def test_the_keys_1_to_3_belong_to_the_three_buttons_and_a_viewer_has_none() -> None:
    job = factories.done(clock.now())
    page = f"/admin/jobs/job/{job.pk}/change/"
    shown = _client(Role.OPERATOR).get(page).content.decode()
    for key, value in enumerate(("good", "usable", "bad"), 1):
        assert f'value="{value}" data-key="{key}"' in shown
    assert "desk/keys.js" in shown
    ratings.rate(job_id=job.pk, rating="usable", actor=factories.staff(Role.OWNER), now=clock.now())
    shown = _client(Role.VIEWER).get(page).content.decode()
    assert "data-key" not in shown
    assert "usable" in shown


def test_only_what_a_target_made_and_was_delivered_is_rated() -> None:
    now, anna = clock.now(), factories.staff(Role.OPERATOR)
    waiting = factories.job(now)
    with pytest.raises(Refused, match="delivered nothing"):
        ratings.rate(job_id=waiting.pk, rating="good", actor=anna, now=now)
    by_hand = factories.job(now, JobState.MANUAL)
    factories.result(by_hand, now)
    with pytest.raises(Refused, match="A person made"):
        ratings.rate(job_id=by_hand.pk, rating="good", actor=anna, now=now)
    with pytest.raises(Refused, match="good, usable or bad"):
        ratings.rate(job_id=factories.done(now).pk, rating="superb", actor=anna, now=now)
    assert not Result.objects.exclude(rating="").exists()


def test_the_database_keeps_no_rating_without_its_time() -> None:
    job = factories.done(clock.now())
    for values in ({"rating": "good"}, {"rating": "fine", "rated_at": clock.now()}):
        with pytest.raises(IntegrityError, match="result_rating_with_time"), transaction.atomic():
            Result.objects.filter(job=job).update(**values)
