"""Results and photos in S3-compatible storage: the same keys and promises as on the disk. The server is moto, on this machine."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pytest
from django.contrib.auth.models import Group, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from moto.server import ThreadedMotoServer
from PIL import Image
from pytest_django import Settings

from jobs import buckets, intake, results
from jobs.clock import clock
from jobs.pictures import PictureProcess
from jobs.results import Rejected, Stored
from jobs.roles import Role
from jobs.states import JobState
from providers.contract import Kind
from tests import factories
from tests.real import real_desk

BUCKET = "desk-results"


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        moto.stop()


@pytest.fixture
def client_s3(
    server: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """An empty bucket below a prefix of this test's own, and the settings that lead there."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests-only")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    settings.MEDIA_ROOT = tmp_path
    settings.MEDIA_STORAGE = {
        "bucket": BUCKET,
        "prefix": uuid4().hex,
        "endpoint": server,
        "addressing": "path",
    }
    client = boto3.client("s3", endpoint_url=server)
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()


def objects(client: Any, settings: Settings) -> dict[str, bytes]:
    """By their keys."""
    prefix = settings.MEDIA_STORAGE["prefix"] + "/"
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
    return {
        one["Key"].removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=one["Key"])[
            "Body"
        ].read()
        for one in found.get("Contents", ())
    }


def picture(colour: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(out, "PNG")
    return out.getvalue()


def keep(
    data: bytes, pictures: PictureProcess, *, base: str = "results/2026/11/x", index: int = 0
) -> Stored | Rejected:
    return asyncio.run(
        results.keep(
            results.write_temporary(data),
            key_base=base,
            index=index,
            kind=Kind.IMAGE,
            pictures=pictures,
            max_bytes=10_000_000,
        )
    )


def left_here(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_a_result_and_its_thumbnail_go_into_the_bucket_and_nothing_stays_here(
    client_s3: Any, settings: Settings, pictures: PictureProcess, tmp_path: Path
) -> None:
    kept = keep(picture(), pictures)
    assert isinstance(kept, Stored)
    found = objects(client_s3, settings)
    assert set(found) == {kept.key, kept.thumb_key}
    assert found[kept.key] == picture()
    assert b"".join(results.opened(kept.key).chunks) == picture()
    assert left_here(tmp_path) == []
    assert results.where(kept.key).startswith(f"s3://{BUCKET}/")


def test_the_same_bytes_again_keep_their_key_and_others_stand_beside(
    client_s3: Any, settings: Settings, pictures: PictureProcess
) -> None:
    first, again = keep(picture(), pictures), keep(picture(), pictures)
    assert first == again
    other = keep(picture("blue"), pictures)
    assert isinstance(first, Stored)
    assert isinstance(other, Stored)
    assert other.beside
    assert other.key != first.key
    assert objects(client_s3, settings)[first.key] == picture()
    # Under another extension the key is taken too.
    out = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(out, "JPEG")
    jpeg = keep(out.getvalue(), pictures)
    assert isinstance(jpeg, Stored)
    assert jpeg.beside


def test_what_other_means_have_put_there_is_compared_by_its_bytes(
    client_s3: Any, settings: Settings, pictures: PictureProcess
) -> None:
    name = f"{settings.MEDIA_STORAGE['prefix']}/results/2026/11/x/0.png"
    client_s3.put_object(Bucket=BUCKET, Key=name, Body=picture())
    same, other = keep(picture(), pictures), keep(picture("blue"), pictures)
    assert isinstance(same, Stored)
    assert isinstance(other, Stored)
    assert (same.beside, other.beside) == (False, True)


@pytest.mark.usefixtures("client_s3")
def test_of_two_uploads_at_once_one_wins_and_the_other_sees_whose_bytes_are_there(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = buckets.bucket()
    assert kept is not None
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.write_bytes(b"mine")
    theirs.write_bytes(b"theirs")
    kept.put(theirs, "results/a.png", results.hash_of(theirs))
    # As one that looked before the other had uploaded.
    digests = iter([None, results.hash_of(theirs)])
    monkeypatch.setattr(kept, "digest", lambda _key: next(digests))
    assert not kept.put_new(mine, "results/a.png", results.hash_of(mine))
    digests = iter([None, results.hash_of(theirs)])
    assert kept.put_new(theirs, "results/a.png", results.hash_of(theirs))
    assert b"".join(kept.chunks("results/a.png")) == b"theirs"


@pytest.mark.usefixtures("client_s3")
def test_an_upload_that_fails_leaves_nothing_and_is_an_error_of_ours(
    settings: Settings, pictures: PictureProcess, tmp_path: Path
) -> None:
    settings.MEDIA_STORAGE = {
        **settings.MEDIA_STORAGE,
        "endpoint": "http://127.0.0.1:9",
        "prefix": "away",
    }
    with pytest.raises(OSError, match="storage"):
        keep(picture(), pictures)
    assert left_here(tmp_path) == []


@pytest.mark.usefixtures("client_s3")
def test_what_was_kept_on_the_disk_before_is_read_there(
    settings: Settings, pictures: PictureProcess
) -> None:
    place, settings.MEDIA_STORAGE = settings.MEDIA_STORAGE, None
    old = keep(picture(), pictures)
    settings.MEDIA_STORAGE = place
    assert isinstance(old, Stored)
    assert b"".join(results.opened(old.key).chunks) == picture()
    assert keep(picture(), pictures) == old
    with pytest.raises(FileNotFoundError):
        results.opened("results/none.png")
    with pytest.raises(ValueError, match="key"):
        results.opened("../secret")


def test_a_photo_is_kept_once_and_brought_here_for_a_send(
    client_s3: Any, settings: Settings, tmp_path: Path
) -> None:
    one, two = intake.take_photo(io.BytesIO(picture())), intake.take_photo(io.BytesIO(picture()))
    assert one == two
    assert set(objects(client_s3, settings)) == {one.key, one.thumb_key}
    path = results.photo_path(one.key)
    assert not path.exists()
    results.at_hand(path)
    results.at_hand(path)
    assert path.read_bytes() == picture()
    assert results.sweep(now_s=path.stat().st_mtime + results.LEFTOVER_AGE_S + 1) == 1
    assert left_here(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        results.at_hand(results.photo_path("photos/ab/none.png"))


@pytest.mark.django_db
def test_pages_show_files_of_the_bucket_and_prune_removes_them(
    client_s3: Any, settings: Settings, pictures: PictureProcess, client: Client
) -> None:
    now = clock.now()
    job = factories.done(now)
    kept = keep(picture(), pictures)
    assert isinstance(kept, Stored)
    assert job.delivered is not None
    job.delivered.key, job.delivered.thumb_key, job.delivered.sha256 = (
        kept.key,
        kept.thumb_key,
        kept.sha256,
    )
    job.delivered.save()
    user = User.objects.create_user("anna", is_staff=True)
    user.groups.add(Group.objects.get(name=Role.OWNER.value))
    client.force_login(user)
    page = reverse("admin:desk_file", args=[job.delivered.pk])
    answer = client.get(page)
    assert (answer.status_code, answer["content-type"], answer["content-length"]) == (
        200,
        "image/png",
        str(len(picture())),
    )
    assert b"".join(answer.streaming_content) == picture()  # type: ignore[attr-defined]
    assert client.get(page, headers={"if-none-match": answer["etag"]}).status_code == 304
    thumb = client.get(reverse("admin:desk_thumbnail", args=[job.delivered.pk]))
    assert b"".join(thumb.streaming_content)[:4] == b"RIFF"  # type: ignore[attr-defined]
    job.delivered.created_at = now.replace(year=now.year - 1)
    job.delivered.save()
    type(job).objects.filter(pk=job.pk).update(finished_at=job.delivered.created_at)
    call_command(
        "prune",
        "--files",
        "--delivered",
        "--older-than",
        "30",
        "--only",
        "files",
        stdout=io.StringIO(),
    )
    assert objects(client_s3, settings) == {}
    assert client.get(page).status_code == 404


@pytest.mark.django_db
def test_a_result_uploaded_by_hand_goes_there_too(
    client_s3: Any, settings: Settings, client: Client
) -> None:
    job = factories.job(clock.now(), JobState.MANUAL)
    user = User.objects.create_user("anna", is_staff=True)
    user.groups.add(Group.objects.get(name=Role.OPERATOR.value))
    client.force_login(user)
    client.post(
        reverse("admin:jobs_job_do", args=[job.pk, "resolve"]),
        {
            "outcome": "done",
            "note": "by hand",
            "file": SimpleUploadedFile("a.png", picture(), "image/png"),
        },
    )
    job.refresh_from_db()
    assert job.delivered is not None
    assert objects(client_s3, settings)[job.delivered.key] == picture()


@pytest.mark.flow
@pytest.mark.django_db(transaction=True)
def test_a_cluster_works_with_photos_and_results_in_the_bucket(
    client_s3: Any, server: str, settings: Settings, tmp_path: Path
) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(picture())
    prefix = settings.MEDIA_STORAGE["prefix"]
    place = f"s3://{BUCKET}/{prefix}?endpoint={server}&addressing=path"
    with real_desk(tmp_path, MEDIA_STORAGE=place) as desk:
        desk.start_cluster()
        desk.create(4)
        desk.create(2, "like this one", "--image", str(photo))
        desk.settle(60.0, canary_every_s=None)
        assert desk.states() == {"succeeded": 6}
        assert desk.wrong() == []
        found = objects(client_s3, settings)
        kept = {key for row in desk.ask("SELECT key, thumb_key FROM jobs_result") for key in row}
        assert len(kept) == 12
        assert set(found) >= kept
        assert {key.partition("/")[0] for key in set(found) - kept} == {"photos"}
        assert not list((tmp_path / "media/results").rglob("*"))
