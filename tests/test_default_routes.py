"""Jobs that name no target go where their tenant's default route says, on every way in; a named one wins; a closed one is told."""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs import routes
from jobs.batches.plan import plan
from jobs.batches.table import read_file, read_lines
from jobs.clock import clock
from jobs.intake import InputError
from jobs.models import Batch, BatchDraft, Job, Tenant
from jobs.roles import Role
from jobs.states import JobState
from providers.models import Target
from tests import factories

JOB_ADD = "/admin/jobs/job/add/"
BATCH_ADD = "/admin/jobs/batch/add/"


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def dear(db: None) -> Target:
    return factories.target("dear", price=50)


@pytest.fixture
def spare(db: None) -> Target:
    return factories.target("spare", price=9)


@pytest.fixture
def dealer(dear: Target, spare: Target) -> Tenant:
    return factories.tenant("dealer", default_route=[dear.pk, spare.pk])


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(factories.staff(Role.OPERATOR))
    return client


def _close(target: Target) -> None:
    Target.objects.filter(pk=target.pk).update(enabled=False)


def _routes() -> list[list[int]]:
    jobs = list(Job.objects.order_by("pk"))
    assert [job.target_id for job in jobs] == [job.route[0] for job in jobs]
    return [list(job.route) for job in jobs]


# --- the one place that decides it ------------------------------------------------------------------------------------


def test_a_name_wins_over_the_tenants_route_and_that_over_the_configured_one(dealer: Tenant, dear: Target, spare: Target) -> None:  # fmt: skip
    configured = routes.ensure_configured()
    plain = factories.tenant("plain")
    assert routes.resolve(["polza:spare"], tenant=dealer) == [spare]
    assert routes.resolve([], tenant=dealer) == [dear, spare]
    assert routes.resolve([], tenant=plain) == configured
    assert routes.resolve([]) == configured


def test_the_first_target_is_never_left_out_and_a_closed_fallback_is(dear: Target, spare: Target) -> None:  # fmt: skip
    shut = Target(pk=77, provider="polza", model="shut", enabled=False)
    known = {target.pk: target for target in (dear, spare, shut)}
    tenant = Tenant(name="Dealer", default_route=[dear.pk, 77, 404, spare.pk])
    assert routes.default_of(tenant, known=known) == [dear, spare]
    tenant.default_route = [77, spare.pk]
    with pytest.raises(InputError) as caught:
        routes.default_of(tenant, known=known)
    assert caught.value.field == "target"
    assert caught.value.message.startswith(
        "The default route of Dealer, polza:shut → polza:spare, can't be used: polza:shut is closed (switched off by staff)."
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"enabled": False}, "polza:dear is closed (switched off by staff)"),
        ({"stopped_at": datetime(2026, 3, 1, tzinfo=UTC), "stopped_reason": "no such model"}, "polza:dear is closed (no such model)"),
    ],
)  # fmt: skip
def test_a_route_that_is_closed_names_the_tenant_the_route_and_the_reason(
    dealer: Tenant, values: dict[str, Any], said: str
) -> None:
    Target.objects.filter(model="dear").update(**values)
    with pytest.raises(InputError) as caught:
        routes.resolve([], tenant=dealer)
    assert said in caught.value.message
    assert "default route of Dealer, polza:dear → polza:spare" in caught.value.message
    assert routes.resolve(["polza:spare"], tenant=dealer)[0].model == "spare"


def test_a_route_whose_target_is_gone_is_told_too(dealer: Tenant) -> None:
    Target.objects.filter(model="dear").delete()
    with pytest.raises(InputError, match=r"#\d+ → polza:spare, can't be used: #\d+ is gone"):
        routes.resolve([], tenant=dealer)


def test_routes_of_many_tenants_are_read_together(dealer: Tenant, dear: Target) -> None:
    def asked() -> int:
        with CaptureQueriesContext(connection) as said:
            routes.defaults(list(Tenant.objects.all()))
        return len(said)

    routes.ensure_configured()
    few = asked()
    for number in range(5):
        factories.tenant(f"t{number}", default_route=[dear.pk])
    assert asked() == few


# --- new jobs ---------------------------------------------------------------------------------------------------------


def _new_job(client: Client, tenant: Tenant, **data: Any) -> Any:
    values = {"prompts": "A lighthouse", "count": "1", "tenant": tenant.pk, "token": uuid.uuid4()}
    return client.post(JOB_ADD, values | data)


def test_the_form_takes_the_chosen_tenants_route(client: Client, dealer: Tenant, dear: Target, spare: Target) -> None:  # fmt: skip
    plain = factories.tenant("plain")
    _new_job(client, dealer)
    _new_job(client, dealer, target=spare.pk)
    _new_job(client, plain)
    [configured] = routes.ensure_configured()
    assert _routes() == [[dear.pk, spare.pk], [spare.pk], [configured.pk]]


def test_the_form_shows_each_tenants_route_and_the_chosen_ones_line(client: Client, dealer: Tenant) -> None:  # fmt: skip
    for url in (JOB_ADD, BATCH_ADD):
        first = client.get(url)
        assert "the configured route; Studio has none of its own" in first.context["line"].whose
        text = first.content.decode()
        assert "Dealer · polza:dear → polza:spare" in text
        assert 'data-route="polza:dear → polza:spare"' in text
        chosen = client.get(f"{url}?tenant={dealer.pk}").context["line"]
        assert (chosen.route, chosen.whose) == ("polza:dear → polza:spare", "default route of Dealer")  # fmt: skip
        assert "50.00" in chosen.price


def test_a_refused_form_shows_the_line_of_what_was_chosen(client: Client, dealer: Tenant, spare: Target) -> None:  # fmt: skip
    assert _new_job(client, dealer, prompts="").context["line"].route == "polza:dear → polza:spare"
    named = _new_job(client, dealer, prompts="", target=spare.pk).context["line"]
    assert (named.route, named.whose) == ("polza:spare", "")


def test_the_form_refuses_a_closed_route_and_says_so_beforehand(client: Client, dealer: Tenant, dear: Target) -> None:  # fmt: skip
    _close(dear)
    line = client.get(f"{JOB_ADD}?tenant={dealer.pk}").context["line"]
    assert "polza:dear is closed" in line.trouble
    answer = _new_job(client, dealer)
    assert "default route of Dealer" in str(answer.context["form"].errors["target"])
    assert not Job.objects.exists()


@pytest.mark.parametrize("tenant", ["' OR 1", "987654", "-1", "<b>"])
def test_nonsense_in_the_address_gives_the_form_without_a_line(client: Client, tenant: str) -> None:
    for url in (JOB_ADD, BATCH_ADD):
        page = client.get(url, {"tenant": tenant})
        assert page.status_code == 200
        assert page.context["line"].route == ""


def test_a_tenants_name_is_escaped_where_its_route_is_told(client: Client, dear: Target) -> None:
    evil = Tenant.objects.create(slug="evil", name='"><script>alert(1)</script>', default_route=[dear.pk])  # fmt: skip
    for url in (JOB_ADD, BATCH_ADD):
        assert "<script>alert" not in client.get(f"{url}?tenant={evil.pk}").content.decode()
    _close(dear)
    answer = _new_job(client, evil).content.decode()
    assert "<script>alert" not in answer
    assert "&lt;script&gt;alert" in answer


# --- batches ----------------------------------------------------------------------------------------------------------


def _preview(client: Client, tenant: Tenant, **data: Any) -> Any:
    return client.post(BATCH_ADD, {"tenant": tenant.pk, **data}, follow=True)


def test_rows_that_name_no_target_take_the_tenants_route(dealer: Tenant, dear: Target, spare: Target) -> None:  # fmt: skip
    file = io.BytesIO(b"prompt,target\na,\nb,polza:spare\nc,\n")
    made = plan(read_file(file), tenant=dealer)
    assert [row.route for row in made.rows] == [(dear.pk, spare.pk), (spare.pk,), (dear.pk, spare.pk)]  # fmt: skip
    assert [row.route for row in plan(read_lines("a"), tenant=dealer, target="polza:spare").rows] == [(spare.pk,)]  # fmt: skip


def test_the_preview_shows_the_route_and_its_yes_uses_it(client: Client, dealer: Tenant, dear: Target, spare: Target) -> None:  # fmt: skip
    page = _preview(client, dealer, pasted="a chair")
    text = page.content.decode()
    assert "polza:dear → polza:spare" in text
    assert "default route of Dealer" in text
    client.post(page.wsgi_request.path)
    assert _routes() == [[dear.pk, spare.pk]]


def test_a_target_named_for_the_batch_wins(client: Client, dealer: Tenant, spare: Target) -> None:
    page = _preview(client, dealer, pasted="a chair", target=spare.pk)
    assert "default route of" not in page.content.decode()
    client.post(page.wsgi_request.path)
    assert _routes() == [[spare.pk]]


def test_a_closed_route_spoils_a_whole_file_once_and_no_rows_that_name_their_own(client: Client, dealer: Tenant, dear: Target, spare: Target) -> None:  # fmt: skip
    _close(dear)
    page = _preview(client, dealer, pasted="a chair\na table")
    assert "default route of Dealer" in str(page.context["form"].errors["target"])
    assert not BatchDraft.objects.exists()
    page = _preview(client, dealer, pasted="prompt\ttarget\na\t\nb\tpolza:spare")
    assert page.context["rows_count"] == 1
    [refused] = page.context["refused"]
    assert (refused.line, "default route of Dealer" in refused.message) == (2, True)


def test_a_target_that_closes_between_preview_and_yes_is_marked(client: Client, dealer: Tenant, dear: Target) -> None:  # fmt: skip
    page = _preview(client, dealer, pasted="a chair")
    assert "its jobs would wait" not in page.content.decode()
    _close(dear)
    assert "its jobs would wait" in client.get(page.wsgi_request.path).content.decode()


def test_jobs_made_again_keep_their_own_routes(client: Client, dealer: Tenant, spare: Target) -> None:  # fmt: skip
    job = factories.job(clock.now(), JobState.FAILED, tenant=dealer, target=spare)
    values = {"action": "again_selected", "_selected_action": [job.pk], "index": "0", "select_across": "0", "confirmed": "1", "template": "{prompt}", "photos": "none"}  # fmt: skip
    page = client.post("/admin/jobs/job/", values, follow=True)
    client.post(page.wsgi_request.path)
    assert list(Batch.objects.get().jobs.values_list("route", flat=True)) == [[spare.pk]]


# --- the command ------------------------------------------------------------------------------------------------------


def _generate(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("generate", *words, "--json", stdout=out, stderr=io.StringIO())
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


def test_the_command_takes_the_tenants_route_for_a_prompt_and_for_a_file(dealer: Tenant, dear: Target, spare: Target, tmp_path: Path) -> None:  # fmt: skip
    file = tmp_path / "rows.csv"
    file.write_text("prompt,target\na,\nb,polza:spare\n")
    _generate("A lighthouse", "--tenant", "dealer")
    _generate("A lighthouse", "--tenant", "dealer", "--target", "polza:spare")
    _generate("--from", str(file), "--tenant", "dealer")
    _generate("A lighthouse")
    [configured] = routes.ensure_configured()
    both = [dear.pk, spare.pk]
    assert _routes() == [both, [spare.pk], both, [spare.pk], [configured.pk]]


def test_the_command_refuses_a_closed_route(dealer: Tenant, dear: Target, tmp_path: Path) -> None:
    _close(dear)
    file = tmp_path / "rows.csv"
    file.write_text("prompt\na\nb\n")
    for words in (("A lighthouse",), ("--from", str(file))):
        [problem] = _generate(*words, "--tenant", "dealer")["refused"]
        assert problem["field"] == "target"
        assert "default route of Dealer, polza:dear → polza:spare" in problem["message"]
        with pytest.raises(CommandError, match="polza:dear is closed") as caught:
            call_command("generate", *words, "--tenant", "dealer")
        assert caught.value.returncode == 2
    assert not Job.objects.exists()


def test_a_job_makes_what_the_route_makes(db: None) -> None:
    words = factories.target("words", kind="text")
    factories.tenant("press", default_route=[words.pk])
    _generate("A title", "--tenant", "press")
    assert Job.objects.get().kind == "text"
