"""Attaching a provider's id to a lost send, typed in or picked among the candidates of the provider's history: checked at the
provider and against our other sends first, then recorded."""

from __future__ import annotations

import asyncio
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _

from jobs.clock import clock
from jobs.lifecycle import staff
from jobs.lifecycle.errors import Refused
from jobs.models import ProviderTask
from providers import asking, registry
from providers.contract import Account, Adapter, Named, PollTrouble, Running, Verdict
from providers.http import Transport

DEADLINE_S = 15.0


def candidates(task: ProviderTask) -> list[dict[str, str]]:
    """What the provider's history showed at the time of the send, by the last look: id, created_at, model, status, cost."""
    return [one for one in task.candidates if isinstance(one, dict) and one.get("id")]


def accept(task_id: UUID, provider_id: str, actor: AbstractBaseUser | None, reason: str) -> None:
    """One of the candidates is this send. Raises Refused where it is none of them, and like `attach`."""
    task = ProviderTask.objects.filter(pk=task_id).first()
    if task is None:
        raise Refused(_("There is no such task."))
    if provider_id.strip() not in {one["id"] for one in candidates(task)}:
        raise Refused(_("This id is no candidate any more: look at the evidence again."))
    _attach(task_id, provider_id, actor, reason, kind="candidate_accepted")


def attach(task_id: UUID, provider_id: str, actor: AbstractBaseUser | None, reason: str) -> None:
    """Raises Refused where the id is another task's, the provider does not know it, or could not be asked."""
    _attach(task_id, provider_id, actor, reason, kind="id_attached")


def _attach(
    task_id: UUID, provider_id: str, actor: AbstractBaseUser | None, reason: str, *, kind: str
) -> None:
    provider_id = provider_id.strip()
    task = ProviderTask.objects.select_related("account", "target").filter(pk=task_id).first()
    if task is None:
        raise Refused(_("There is no such task."))
    if not provider_id or len(provider_id) > 200:
        raise Refused(_("Write the id as the provider's dashboard shows it."))
    other = (
        # With whichever key it was sent: a provider gives an id once.
        ProviderTask.objects.filter(
            account__provider=task.account.provider, provider_id=provider_id
        )
        .exclude(pk=task_id)
        .first()
    )
    if other is not None:
        raise Refused(_("This id belongs to job %(job)s already.") % {"job": other.job_id})
    adapter = registry.adapter(task.account.provider)
    try:
        account = registry.account(task.account.provider)
    except ImproperlyConfigured as error:
        raise Refused(str(error)) from error
    read = asyncio.run(_ask(adapter, account, Named(provider_id, task.target.model)))
    if isinstance(read, PollTrouble):
        raise Refused(
            _("The provider does not know this id.") if read.missing
            else _("The provider could not be asked: %(why)s") % {"why": read.reason}
        )  # fmt: skip
    now = clock.now()
    staff.attach_provider_id(
        task_id=task_id, provider_id=provider_id, actor=actor, now=now, reason=reason, poll_at=now, kind=kind
    )  # fmt: skip


async def _ask(adapter: Adapter, account: Account, named: Named) -> Verdict | Running | PollTrouble:
    async with Transport() as transport:
        _answer, read = await asking.status(
            transport, adapter, account, named, deadline_s=DEADLINE_S, retries=1
        )
    return read
