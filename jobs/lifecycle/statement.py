"""Statements as rows, and what people decide about generations that no send of ours belongs to.

A reading is done in slices, by whichever process holds its claim; the rows carry it from one to the next, so a killed
worker costs the slice it was at. Nothing here speaks to a provider (jobs/stages/statement.py does).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils.translation import gettext as _

from jobs import bell
from jobs import statement as rules_of
from jobs.lifecycle import decide, events
from jobs.lifecycle.errors import Refused
from jobs.models import Case, Job, Orphan, ProviderTask, Statement, Tenant
from jobs.rules import SEND_WINDOW_S, rules
from jobs.statement import Finding
from jobs.states import CaseKind, JobState, TaskState
from providers import registry
from providers.models import Account, Target

Actor = AbstractBaseUser | None

LEASE_S = 120.0  # a reading without a sign of life for so long may be taken over
LONGEST = timedelta(days=400)
# Another program with the same key would make thousands: these many wait for a person at once, the dearest first.
CASES_AT_ONCE = 200
# What the columns hold; a history may tell any number.
_MOST = Decimal(9_999_999_999)
_MOST_PRICE = Decimal(99_999_999)


# --- asking for one, and its slices -----------------------------------------------------------------------------------


def ask(
    *,
    provider: str,
    account_id: int | None,
    since: datetime,
    until: datetime,
    actor: Actor,
    now: datetime,
) -> Statement:
    """A reading to be done; the one under way where the same is being read already. Whoever asked starts a worker."""
    if provider not in registry.ADAPTERS:
        raise Refused(_("There is no provider “%(name)s”.") % {"name": provider})
    if since >= until:
        raise Refused(_("The statement must end after it begins."))
    if until - since > LONGEST:
        raise Refused(_("That is too long for one statement: a year at the most."))
    count = len(accounts(provider=provider, account_id=account_id, since=since, until=until))
    if not count:
        raise Refused(_("No account of that provider has been used in that time."))
    found, _made = Statement.objects.get_or_create(
        provider=provider,
        account=Account.objects.filter(pk=account_id).first() if account_id is not None else None,
        since=since,
        until=until,
        state=Statement.State.READING,
        defaults={
            "asked_at": now,
            "asked_by_id": actor.pk if actor else None,
            "pieces": len(rules_of.windows(since, until)) * count,
        },
    )
    return found


def accounts(
    *, provider: str, account_id: int | None, since: datetime, until: datetime
) -> list[Account]:
    """Whose history it is about: those whose key is set, and those of earlier keys that have sends in the period."""
    rows = Account.objects.filter(provider=provider)
    if account_id is not None:
        rows = rows.filter(pk=account_id)
    sends = ProviderTask.objects.filter(
        account=OuterRef("pk"), armed_at__gte=since, armed_at__lt=until
    )
    return [
        row
        for row in rows.annotate(has_sends=Exists(sends)).order_by("pk")
        if row.has_sends or registry.reached(row.provider, row.fingerprint) is not None
    ]


def left_behind(*, now: datetime) -> list[int]:
    """Readings that nobody is at: their message was lost, or their worker died. Whoever asks starts them again."""
    silent = now - timedelta(seconds=LEASE_S)
    return list(
        Statement.objects.filter(state=Statement.State.READING, asked_at__lt=silent)
        .filter(Q(beat_at__isnull=True) | Q(beat_at__lt=silent))
        .values_list("pk", flat=True)
    )


def take(*, statement_id: int, claim: uuid.UUID, now: datetime) -> Statement | None:
    """The reading, if it is to be done and nobody else is at it."""
    taken = (
        Statement.objects.filter(pk=statement_id, state=Statement.State.READING)
        .filter(
            Q(claim__isnull=True) | Q(claim=claim) | Q(beat_at__lt=now - timedelta(seconds=LEASE_S))
        )
        .update(claim=claim, beat_at=now)
    )
    return Statement.objects.get(pk=statement_id) if taken else None


def keep(
    *,
    statement_id: int,
    claim: uuid.UUID,
    cursor: int,
    kept: Mapping[str, Any],
    seen: int,
    now: datetime,
) -> bool:
    """So far. False: somebody else has taken over, and goes on from what was kept before."""
    return bool(_mine(statement_id, claim).update(cursor=cursor, kept=kept, seen=seen, beat_at=now))


def let_go(*, statement_id: int, claim: uuid.UUID) -> None:
    """The next slice may begin."""
    _mine(statement_id, claim).update(claim=None)


def store(
    *,
    statement_id: int,
    claim: uuid.UUID,
    told: Mapping[str, Any],
    findings: Sequence[Finding],
    read_at: datetime,
    now: datetime,
) -> int | None:
    """The end of a reading, and a case for each new orphan, in one transaction; how many cases. None: not ours any more."""
    with transaction.atomic():
        row = _mine(statement_id, claim).select_for_update().first()
        if row is None:
            return None
        opened, waiting = _open_cases(row, findings, now=now)
        Statement.objects.filter(pk=row.pk).update(
            state=Statement.State.READY, told={**told, "cases": {"opened": opened, "waiting": waiting}},
            open_count=sum(one.kind in rules_of.DISCREPANCIES and not one.settled for one in findings),
            read_at=read_at, ended_at=now, cursor=F("pieces"), kept={}, claim=None,
        )  # fmt: skip
        return opened


def fail(*, statement_id: int, claim: uuid.UUID, why: str, now: datetime) -> None:
    """Nothing could be read."""
    _mine(statement_id, claim).update(
        state=Statement.State.FAILED, trouble=why[:300], ended_at=now, kept={}, claim=None
    )


def _mine(statement_id: int, claim: uuid.UUID) -> Any:
    return Statement.objects.filter(pk=statement_id, claim=claim, state=Statement.State.READING)


# --- orphans ----------------------------------------------------------------------------------------------------------


def settled(*, adapter_name: str) -> dict[str, str]:
    """What people have decided about generations that were orphans, by provider id. A case closed in another way counts."""
    rows = Orphan.objects.filter(provider=adapter_name).filter(
        ~Q(outcome="") | Q(case__resolved_at__isnull=False)
    )
    return {
        provider_id: outcome or resolution
        for provider_id, outcome, resolution in rows.values_list(
            "provider_id", "outcome", "case__resolution"
        )
    }


def _open_cases(row: Statement, findings: Sequence[Finding], *, now: datetime) -> tuple[int, int]:
    """A case for each orphan that has none, the dearest first; how many, and how many more wait for room.

    An orphan is one row for ever, so that a second statement, or one beside this one, opens no second case.
    """
    name = registry.adapter(row.provider).name
    wanted = [one for one in findings if one.kind is rules_of.Kind.ORPHAN and not one.settled]
    known = set(
        Orphan.objects.filter(
            provider=name, provider_id__in=[one.provider_id for one in wanted]
        ).values_list("provider_id", flat=True)
    )
    new = [one for one in wanted if one.provider_id not in known]
    new.sort(key=lambda one: (-(one.theirs or Decimal(0)), one.provider_id))
    at_once = Case.objects.filter(orphan__isnull=False, resolved_at__isnull=True).count()
    room = max(CASES_AT_ONCE - at_once, 0)
    opened = sum(_open_case(name, one, now=now) for one in new[:room])
    return opened, len(new[room:])


def _open_case(name: str, one: Finding, *, now: datetime) -> bool:
    cost = None if one.theirs is None else min(one.theirs, _MOST)
    orphan, made = Orphan.objects.get_or_create(
        provider=name,
        provider_id=one.provider_id,
        defaults={
            "account_id": one.account_id, "model": one.model, "status": one.status, "cost": cost,
            "currency": one.currency, "made_at": one.at, "correlation_id": one.correlation_id, "found_at": now,
        },
    )  # fmt: skip
    if not made:
        return False
    Case.objects.create(
        kind=CaseKind.ORPHAN, orphan=orphan, money_at_risk=cost or 0, currency=one.currency, opened_at=now,
        due_at=now + decide.due_after(CaseKind.ORPHAN),
        detail={
            name: value
            for name, value in {
                "provider_id": one.provider_id, "model": one.model, "made_at": one.at.isoformat() if one.at else "",
                "status": one.status, "cost": str(one.theirs) if one.theirs is not None else "",
                "carries_the_id": one.correlation_id, "second_of_job": one.job_id or "",
            }.items()
            if value
        },
    )  # fmt: skip
    return True


def _locked(orphan_id: int) -> Orphan:
    """The orphan under its row lock, undecided; the case's row is locked by its own update."""
    orphan = (
        Orphan.objects.select_for_update(no_key=True, of=("self",))
        .select_related("account")
        .filter(pk=orphan_id)
        .first()
    )
    if orphan is None:
        raise Refused(_("There is no such orphan."))
    if orphan.outcome:
        raise Refused(
            _("This was decided already: %(outcome)s.") % {"outcome": orphan.get_outcome_display()}
        )
    return orphan


def _decided(orphan: Orphan, *, actor: Actor, now: datetime, **values: Any) -> None:
    Orphan.objects.filter(pk=orphan.pk).update(
        decided_at=now, decided_by_id=actor.pk if actor else None, **values
    )
    lines = [values.get("note", ""), values.get("reference", "")]
    case = (
        Case.objects.select_for_update(no_key=True)
        .filter(orphan=orphan, resolved_at__isnull=True)
        .first()
    )
    if case is not None:
        Case.objects.filter(pk=case.pk).update(
            resolved_at=now,
            resolution=values["outcome"],
            resolved_by_id=actor.pk if actor else None,
            note="\n".join(line for line in [case.note, *lines] if line),
        )


def adopt(
    *,
    orphan_id: int,
    tenant_id: int,
    prompt: str,
    reference: str,
    actor: Actor,
    now: datetime,
    note: str = "",
) -> Job:
    """Make it ours: a new job of the tenant whose only send is this generation, watched and fetched like any other.

    Nothing is sent. Refused where it may be a lost send of ours: then its id belongs to that send.
    """
    try:
        with transaction.atomic():
            orphan = _locked(orphan_id)
            tenant = Tenant.objects.filter(pk=tenant_id).first()
            if tenant is None:
                raise Refused(_("There is no such tenant."))
            if orphan.account.provider not in registry.ADAPTERS:
                raise Refused(
                    _("The settings name no such account any more: nothing could be fetched.")
                )
            job_id = _may_be_of(orphan)
            if job_id is not None:
                raise Refused(
                    _("This may be the lost send of job %(job)s. Settle that one first: attach the id there, or decide it.")
                    % {"job": job_id}
                )  # fmt: skip
            task = _adopted(orphan, tenant, prompt=prompt, reference=reference, actor=actor, now=now)  # fmt: skip
            _decided(
                orphan,
                actor=actor,
                now=now,
                outcome=Orphan.Outcome.ADOPTED,
                task=task,
                note=note.strip(),
            )
            bell.ring()
            return task.job
    except IntegrityError as error:
        raise Refused(_("This id belongs to a job already.")) from error


def _adopted(
    orphan: Orphan,
    tenant: Tenant,
    *,
    prompt: str,
    reference: str,
    actor: Actor,
    now: datetime,
) -> ProviderTask:
    if (
        ProviderTask.objects.filter(provider_id=orphan.provider_id)
        .filter(account__in=_same_provider(orphan))
        .exists()
    ):
        raise Refused(_("This id belongs to a job already."))
    adapter = registry.adapter(orphan.account.provider)
    cost = min(orphan.cost or Decimal(0), _MOST_PRICE)
    # A model that nobody has set up as a target stays closed: this adoption opens it to no job.
    target, _made = Target.objects.get_or_create(
        provider=orphan.account.provider,
        model=(orphan.model or _("unknown"))[:160],
        defaults={"price": cost, "currency": adapter.currency, "enabled": False},
    )
    job = Job.objects.create(
        tenant=tenant, kind=target.kind, reference=reference.strip()[:200],
        prompt=prompt.strip() or _("Adopted from %(provider)s: %(id)s") % {"provider": orphan.account.provider, "id": orphan.provider_id},
        route=[target.pk], target=target, state=JobState.ACTIVE, not_before=now, attempts_since=now, created_at=now,
        created_by_id=actor.pk if actor else None,
    )  # fmt: skip
    made_at = orphan.made_at or now
    task = ProviderTask.objects.create(
        job=job, tenant=tenant, target=target, account=orphan.account, estimated_cost=cost or target.price,
        currency=orphan.currency, run_id=uuid.uuid4(), host="", created_at=now, armed_at=made_at,
        send_not_after=made_at + timedelta(seconds=SEND_WINDOW_S), call_deadline_s=0.0,
        provider_id=orphan.provider_id, accepted_at=now, last_status=orphan.status, next_poll_at=now,
        watch_until=now + timedelta(seconds=adapter.retention_s),
    )  # fmt: skip
    events.write(
        [
            events.event(job_id=job.pk, kind="created", now=now, actor=actor, target=target.name),
            events.event(
                job_id=job.pk, task_id=task.pk, kind="adopted", now=now, actor=actor, provider_id=orphan.provider_id,
                target=target.name,
            ),
        ]
    )  # fmt: skip
    decide.decide(job_ids=[job.pk], rules=rules(), now=now, rng=random.Random())  # noqa: S311  jitter
    return task


def _same_provider(orphan: Orphan) -> Any:
    """All our accounts at this provider, whatever name they bear."""
    return Account.objects.filter(provider__in=registry.same(orphan.account.provider))


def _may_be_of(orphan: Orphan) -> int | None:
    """A job with a send that is still looked for and may have made this."""
    if orphan.account.echoes_id and orphan.correlation_id:
        return None
    lost = ProviderTask.objects.filter(
        account=orphan.account,
        provider_id__isnull=True,
        state__in=[TaskState.SENDING, TaskState.UNKNOWN],
        blocks_send=True,
    )
    if orphan.model:
        lost = lost.filter(target__model=orphan.model)
    if orphan.made_at is not None:
        skew = timedelta(seconds=rules_of.CLOCK_SKEW_S)
        lost = lost.filter(armed_at__lte=orphan.made_at + skew)
    for job_id, armed_at, deadline_s in lost.values_list("job_id", "armed_at", "call_deadline_s"):
        if armed_at is not None and rules_of.may_be(
            orphan.made_at, armed_at=armed_at, deadline_s=deadline_s or 0.0
        ):
            return int(job_id)
    return None


def dispute(*, orphan_id: int, reference: str, actor: Actor, now: datetime, note: str = "") -> None:
    """Not ours: the provider was told so, under its reference. The case is closed; later statements tell it as disputed."""
    if not reference.strip():
        raise Refused(_("Write the provider's reference: the number of the ticket or letter."))
    with transaction.atomic():
        orphan = _locked(orphan_id)
        _decided(
            orphan,
            actor=actor,
            now=now,
            outcome=Orphan.Outcome.DISPUTED,
            reference=reference.strip()[:200],
            note=note.strip(),
        )
