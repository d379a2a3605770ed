"""New jobs from the form: checked first, then all or none."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from jobs.models import Batch, Job, Tenant
from jobs.roles import Role
from tests import factories

pytestmark = pytest.mark.django_db
URL = "/admin/jobs/job/add/"


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(factories.staff(Role.OPERATOR))
    client.get(URL)  # the default tenant and the configured target exist from now on
    return client


def _post(client: Client, **data: Any) -> Any:
    values = {
        "prompts": "A lighthouse",
        "count": "1",
        "tenant": Tenant.objects.get(slug="studio").pk,
        "token": uuid.uuid4(),
    }
    return client.post(URL, values | data)


def _png() -> SimpleUploadedFile:
    data = io.BytesIO()
    factories.picture(size=64).save(data, "PNG")
    return SimpleUploadedFile("photo.png", data.getvalue(), "image/png")


def test_each_line_becomes_a_job_and_copies_are_made_of_each(client: Client) -> None:
    answer = _post(
        client, prompts="A lighthouse\n\n  باغ ایرانی  \nЗимний лес", count="2", reference="B"
    )
    jobs = list(Job.objects.order_by("pk"))
    assert [job.prompt for job in jobs] == ["A lighthouse"] * 2 + ["باغ ایرانی"] * 2 + [
        "Зимний лес"
    ] * 2
    assert [job.reference for job in jobs] == [f"B-{n}" for n in range(1, 7)]
    assert len({job.batch_id for job in jobs}) == 1
    assert answer["Location"] == reverse("admin:jobs_batch_change", args=[jobs[0].batch_id])


def test_one_job_keeps_its_reference_and_opens_its_page(client: Client) -> None:
    answer = _post(client, reference="VIN-1")
    job = Job.objects.get()
    assert job.reference == "VIN-1"
    assert answer["Location"] == reverse("admin:jobs_job_change", args=[job.pk])


def test_photos_are_checked_and_kept_for_every_job(client: Client) -> None:
    _post(client, prompts="a\nb", photos=[_png(), _png()])
    assert [job.photos.count() for job in Job.objects.all()] == [2, 2]
    photo = Job.objects.earliest("pk").photos.earliest("position")
    served = client.get(reverse("admin:desk_photo", args=[photo.pk]))
    assert b"".join(served.streaming_content).startswith(b"\x89PNG")  # type: ignore[attr-defined]
    served.close()


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ({"prompts": "  \n \n"}, "prompts", "prompt is empty"),
        ({"prompts": ""}, "prompts", "required"),
        ({"prompts": "fine\n" + "x" * 100_000}, "prompts", "Line 2"),
        ({"prompts": "a\x00b"}, "prompts", ""),
        ({"prompts": "\n".join("abc" for _ in range(201))}, "prompts", "at most 200"),
        ({"prompts": "\n".join("abc" for _ in range(200)), "count": "20"}, None, "at most 500"),
        ({"count": "0"}, "count", ""),
        ({"count": "many"}, "count", ""),
        ({"reference": "y" * 300}, "reference", "at most 200"),
        ({"target": "987654"}, "target", ""),
        ({"tenant": "987654"}, "tenant", ""),
        ({"photos": SimpleUploadedFile("a.png", b"no picture at all")}, "photos", "no photo"),
        ({"photos": SimpleUploadedFile("a.png", b"")}, "photos", "empty"),
    ],
)
def test_nonsense_is_named_at_its_field_and_creates_nothing(
    client: Client, data: dict[str, Any], field: str | None, words: str
) -> None:
    answer = _post(client, **data)
    assert answer.status_code == 200
    errors = answer.context["form"].errors
    assert list(errors) == [field or "__all__"]
    assert words in str(errors)
    assert not Job.objects.exists()
    assert not Batch.objects.exists()


def test_a_closed_target_is_not_offered(client: Client) -> None:
    closed = factories.target("closed/model", enabled=False)
    answer = _post(client, target=closed.pk)
    assert "target" in answer.context["form"].errors
    assert not Job.objects.exists()


def test_the_same_form_sent_twice_creates_once(client: Client) -> None:
    token = uuid.uuid4()
    _post(client, token=token)
    _post(client, token=token)
    assert Job.objects.count() == 1


def test_a_viewer_can_create_nothing() -> None:
    viewer = Client()
    viewer.force_login(factories.staff(Role.VIEWER))
    assert viewer.get(URL).status_code == 403
    assert viewer.post(URL, {"prompts": "x"}).status_code == 403
