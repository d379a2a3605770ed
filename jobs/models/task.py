"""ProviderTask: one paid call, the write-ahead intent and then facts about it."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Case as When_
from django.db.models import F, Func, Q, Value, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from jobs.models.job import Job, Tenant
from jobs.querysets import TaskQuerySet
from jobs.states import Release, TaskState
from providers.contract import Charge, Named
from providers.models import Account, Target


def _state() -> When_:
    """The SQL twin of states.task_state."""
    return When_(
        When(stored_at__isnull=False, then=Value(TaskState.STORED.value)),
        When(completed_at__isnull=False, then=Value(TaskState.COMPLETED.value)),
        When(failed_at__isnull=False, then=Value(TaskState.FAILED.value)),
        When(provider_id__isnull=False, then=Value(TaskState.ACCEPTED.value)),
        When(refusal_class__isnull=False, then=Value(TaskState.REFUSED.value)),
        When(
            Q(unsent_at__isnull=False) | Q(absent_at__isnull=False),
            then=Value(TaskState.UNSENT.value),
        ),
        When(lost_at__isnull=False, then=Value(TaskState.UNKNOWN.value)),
        When(armed_at__isnull=False, then=Value(TaskState.SENDING.value)),
        default=Value(TaskState.INTENT.value),
    )


def _cost() -> Coalesce:
    """The SQL twin of states.known_cost."""
    return Coalesce("cost_staff", "cost_receipt", "cost_poll", "cost_answer")


def _charge() -> When_:
    """The SQL twin of states.task_charge."""
    return When_(
        When(staff_charge__isnull=False, then="staff_charge"),
        When(
            Q(cost_staff__gt=0)
            | Q(cost_staff__isnull=True, cost_receipt__gt=0)
            | Q(cost_staff__isnull=True, cost_receipt__isnull=True, cost_poll__gt=0)
            | Q(
                cost_staff__isnull=True,
                cost_receipt__isnull=True,
                cost_poll__isnull=True,
                cost_answer__gt=0,
            ),
            then=Value(Charge.CHARGED.value),
        ),
        When(
            Q(stored_at__isnull=False) | Q(completed_at__isnull=False),
            then=Value(Charge.CHARGED.value),
        ),
        When(
            failed_at__isnull=False,
            receipt_final_at__isnull=False,
            cost_receipt=0,
            then=Value(Charge.NONE.value),
        ),
        When(
            Q(failed_at__isnull=False) | Q(provider_id__isnull=False),
            then=Value(Charge.POSSIBLE.value),
        ),
        When(
            Q(refusal_class__isnull=False)
            | Q(unsent_at__isnull=False)
            | Q(absent_at__isnull=False),
            then=Value(Charge.NONE.value),
        ),
        When(
            Q(lost_at__isnull=False) | Q(armed_at__isnull=False),
            then=Value(Charge.POSSIBLE.value),
        ),
        default=Value(Charge.NONE.value),
    )


# Immutable, unlike date_trunc: an index can hold it.
_HOUR_ARMED = Func(
    F("armed_at"), function="date_bin", template="date_bin('1 hour', %(expressions)s, '2000-01-01 00:00:00+00')",
    output_field=models.DateTimeField(),
)  # fmt: skip


class ProviderTask(models.Model):
    """One row, one possible POST. The id is the correlation id the provider gets.

    Columns under "facts" are written once, by task id alone, whatever has been decided since. `state` and `charge`
    follow from them in the database.
    """

    class State(models.TextChoices):
        INTENT = TaskState.INTENT, _("about to send")
        SENDING = TaskState.SENDING, _("sending")
        ACCEPTED = TaskState.ACCEPTED, _("at the provider")
        COMPLETED = TaskState.COMPLETED, _("made, to be fetched")
        STORED = TaskState.STORED, _("stored")
        REFUSED = TaskState.REFUSED, _("refused")
        FAILED = TaskState.FAILED, _("failed there")
        UNSENT = TaskState.UNSENT, _("not sent")
        UNKNOWN = TaskState.UNKNOWN, _("outcome unknown")

    class ChargeKind(models.TextChoices):
        NONE = Charge.NONE, _("none")
        POSSIBLE = Charge.POSSIBLE, _("possible")
        CHARGED = Charge.CHARGED, _("charged")
        REFUNDED = Charge.REFUNDED, _("refunded")
        WRITTEN_OFF = Charge.WRITTEN_OFF, _("written off")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(
        Job, on_delete=models.PROTECT, related_name="tasks", verbose_name=_("job")
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="+", verbose_name=_("tenant")
    )
    target = models.ForeignKey(
        Target, on_delete=models.PROTECT, related_name="tasks", verbose_name=_("target")
    )
    account = models.ForeignKey(
        Account, on_delete=models.PROTECT, related_name="tasks", verbose_name=_("account")
    )
    estimated_cost = models.DecimalField(_("estimated cost"), max_digits=12, decimal_places=4)
    currency = models.CharField(max_length=3)
    # Who holds the row: the run that wrote the intent and may arm it.
    run_id = models.UUIDField()
    host = models.CharField(max_length=120)
    created_at = models.DateTimeField(_("intent written"))

    # At most one per job (constraint below). Set by the intent, cleared only by decide or a verb.
    blocks_send = models.BooleanField(default=True)
    released_by = models.CharField(max_length=10, blank=True)
    released_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    standing = models.ForeignKey(
        "jobs.StandingDecision", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )

    # --- facts, each written once ---
    armed_at = models.DateTimeField(_("armed"), null=True, blank=True)
    send_not_after = models.DateTimeField(null=True, blank=True)
    call_deadline_s = models.FloatField(null=True, blank=True)
    provider_id = models.CharField(_("provider's id"), max_length=200, null=True, blank=True)  # noqa: DJ001  null: not known
    # The addresses that came with it ("status", "result", "cancel"), where the provider gives any.
    provider_links = models.JSONField(
        default=dict, blank=True, db_default=Value({}, models.JSONField())
    )
    accepted_at = models.DateTimeField(_("accepted"), null=True, blank=True)
    refusal_class = models.CharField(max_length=20, null=True, blank=True)  # noqa: DJ001  only refusals known to be free
    refused_at = models.DateTimeField(null=True, blank=True)
    unsent_at = models.DateTimeField(null=True, blank=True)
    unsent_reason = models.CharField(max_length=40, blank=True)
    lost_at = models.DateTimeField(null=True, blank=True)
    absent_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(_("completed"), null=True, blank=True)
    failed_at = models.DateTimeField(_("failed"), null=True, blank=True)
    stored_at = models.DateTimeField(_("stored"), null=True, blank=True)
    receipt_final_at = models.DateTimeField(null=True, blank=True)
    cost_answer = models.DecimalField(max_digits=20, decimal_places=10, null=True, blank=True)
    cost_poll = models.DecimalField(max_digits=20, decimal_places=10, null=True, blank=True)
    cost_receipt = models.DecimalField(max_digits=20, decimal_places=10, null=True, blank=True)
    cost_staff = models.DecimalField(max_digits=20, decimal_places=10, null=True, blank=True)
    staff_charge = models.CharField(max_length=12, null=True, blank=True)  # noqa: DJ001  refunded or written_off
    # Who settled the money, when, and by which reference of the provider's.
    staff_at = models.DateTimeField(_("money settled"), null=True, blank=True)
    staff_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    staff_reference = models.CharField(
        _("the provider's reference"), max_length=200, blank=True, default="", db_default=""
    )
    failure_class = models.CharField(max_length=20, blank=True)
    failure_code = models.CharField(max_length=80, blank=True)
    failure_text = models.TextField(blank=True)
    failure_scope = models.CharField(max_length=8, blank=True)
    # Which failures are alike (jobs/failures.py), and when the newest was met; null: none was.
    failure_key = models.CharField(max_length=40, null=True, blank=True)  # noqa: DJ001
    failure_at = models.DateTimeField(null=True, blank=True)
    wait_s = models.FloatField(null=True, blank=True)
    ours = models.BooleanField(default=False)  # the failure says nothing about the provider
    target_stops = models.BooleanField(default=False)
    # How the call went, for people: status, redacted headers, the body's start, traceback.
    evidence = models.JSONField(default=dict, blank=True)
    files = models.JSONField(default=list, blank=True)  # [{"url": …} or {"inline": true}]
    result_text = models.TextField(blank=True)

    # --- follow from the facts ---
    state = models.GeneratedField(
        expression=_state(),
        output_field=models.CharField(max_length=10, choices=State.choices),
        db_persist=True,
    )
    cost = models.GeneratedField(
        expression=_cost(),
        output_field=models.DecimalField(max_digits=20, decimal_places=10, null=True),
        db_persist=True,
    )
    charge = models.GeneratedField(
        expression=_charge(),
        output_field=models.CharField(max_length=12, choices=ChargeKind.choices),
        db_persist=True,
    )

    # --- to do: due times, overwritten freely ---
    undecided_since = models.DateTimeField(
        null=True, blank=True
    )  # a fact came that no decision has read yet
    watch_until = models.DateTimeField(null=True, blank=True)
    next_poll_at = models.DateTimeField(null=True, blank=True)
    next_fetch_at = models.DateTimeField(null=True, blank=True)
    next_look_at = models.DateTimeField(null=True, blank=True)
    next_receipt_at = models.DateTimeField(null=True, blank=True)
    hinted_at = models.DateTimeField(null=True, blank=True)  # somebody said: look now
    # The provider was asked to call us at its end (jobs/hooks.py), so that asking is only a net.
    webhook = models.BooleanField(default=False, db_default=False)
    work_run_id = models.UUIDField(
        null=True, blank=True
    )  # the run that polls, fetches or looks right now
    deaths = models.PositiveSmallIntegerField(default=0)  # runs that died at it since it last moved
    polls = models.PositiveIntegerField(_("polls"), default=0)
    poll_failures = models.PositiveIntegerField(default=0)  # in a row
    missing_since = models.DateTimeField(null=True, blank=True)
    last_poll_at = models.DateTimeField(null=True, blank=True)
    last_status = models.CharField(max_length=80, blank=True)
    fetch_failures = models.PositiveSmallIntegerField(default=0)
    fetch_trouble = models.CharField(max_length=300, blank=True)
    looks = models.PositiveSmallIntegerField(default=0)
    absent_seen_at = models.DateTimeField(
        null=True, blank=True
    )  # first listing that proves absence
    candidates = models.JSONField(default=list, blank=True)
    receipt_looks = models.PositiveSmallIntegerField(default=0)
    receipts_end_at = models.DateTimeField(null=True, blank=True)

    # When this process took the row up (claim_due): no column.
    claimed_at: datetime | None = None

    objects = TaskQuerySet.as_manager()

    class Meta:
        verbose_name = _("provider task")
        verbose_name_plural = _("provider tasks")
        permissions = [
            ("poll_providertask", _("Can ask the provider now")),
            ("attach_providertask", _("Can attach a provider id")),
            ("accept_providertask", _("Can accept a candidate of the provider's history")),
            ("absent_providertask", _("Can send again what the provider says never arrived")),
            ("writeoff_providertask", _("Can write a charge off")),
            ("refund_providertask", _("Can mark a charge as refunded")),
        ]
        constraints = [
            # P2: at most one task a job may stand in the way of a further send.
            models.UniqueConstraint(
                fields=["job"], condition=Q(blocks_send=True), name="task_one_blocks_send"
            ),
            models.UniqueConstraint(
                fields=["account", "provider_id"],
                condition=Q(provider_id__isnull=False),
                name="task_provider_id_once",
            ),
            models.CheckConstraint(
                condition=Q(blocks_send=True, released_by="")
                | Q(blocks_send=False, released_by__in=[r.value for r in Release]),
                name="task_released_by_known",
            ),
            models.CheckConstraint(
                condition=~Q(released_by=Release.STANDING) | Q(standing__isnull=False),
                name="task_standing_named",
            ),
            models.CheckConstraint(
                condition=Q(armed_at__isnull=True) ^ Q(send_not_after__isnull=False),
                name="task_armed_with_fence",
            ),
            models.CheckConstraint(
                condition=Q(staff_charge__isnull=True)
                | Q(staff_charge__in=["refunded", "written_off"]),
                name="task_staff_charge_known",
            ),
            models.CheckConstraint(
                condition=Q(failure_key__isnull=True) ^ Q(failure_at__isnull=False),
                name="task_failure_with_time",
            ),
        ]
        indexes = [
            # Admission: what is in flight, by target and tenant.
            models.Index(fields=["target", "tenant", "armed_at"], name="task_in_flight",
                         condition=Q(state__in=["intent", "sending", "accepted"])),
            # Stages: what is due.
            models.Index(fields=["next_poll_at"], name="task_poll_due", condition=Q(next_poll_at__isnull=False)),
            models.Index(fields=["next_fetch_at"], name="task_fetch_due", condition=Q(next_fetch_at__isnull=False)),
            models.Index(fields=["next_look_at"], name="task_look_due", condition=Q(next_look_at__isnull=False)),
            models.Index(fields=["next_receipt_at"], name="task_receipt_due",
                         condition=Q(next_receipt_at__isnull=False)),
            models.Index(fields=["undecided_since"], name="task_undecided",
                         condition=Q(undecided_since__isnull=False)),
            # Reconcile: sends and intents of dead runs; rows a dead run was working at.
            models.Index(fields=["run_id"], name="task_unfinished_send",
                         condition=Q(state__in=["intent", "sending"])),
            models.Index(fields=["work_run_id"], name="task_at_work", condition=Q(work_run_id__isnull=False)),
            # Exposure brake and the money on the desk: possible charges by target.
            models.Index(fields=["target", "state"], name="task_possible", condition=Q(charge="possible")),
            # Spending limits (jobs/spending.py): what counts in a tenant's day and month, read from the index alone.
            models.Index(fields=["tenant", "created_at"], name="task_spent",
                         include=["currency", "charge", "state", "cost", "estimated_cost"],
                         condition=Q(state="intent") | Q(charge__in=["possible", "charged", "written_off"])),
            # Quota windows and the breaker's share: an account's newest sends.
            models.Index(fields=["account", "armed_at"], name="task_sends", condition=Q(armed_at__isnull=False)),
            # The admin list by state, in its order, and the open rows of stuck.py. Stored ones, nearly all, are found
            # fast without it.
            models.Index(F("state"), F("job").desc(), F("created_at").desc(), name="task_not_stored",
                         condition=~Q(state="stored")),
            # The admin list by the charges that are rare.
            models.Index(F("charge"), F("job").desc(), F("created_at").desc(), name="task_charge_undone",
                         condition=Q(charge__in=["refunded", "written_off"])),
            # stuck.py: whether sends of a target go out these days.
            models.Index(F("target"), F("created_at").desc(), name="task_newest_of_target"),
            # The freshness canary of a lost send: later sends of the account that the provider named.
            models.Index(fields=["account", "armed_at"], name="task_canary",
                         condition=Q(provider_id__isnull=False)),
            # Error groups (jobs/failure_groups.py): the failures of a period, read from the index alone.
            models.Index(fields=["failure_at"], name="task_failures",
                         include=["failure_key", "target", "tenant", "job"], condition=Q(failure_at__isnull=False)),
            # Polling timeouts of an hour: sends by the hour they were armed in, and how long they took to end.
            models.Index(_HOUR_ARMED, Coalesce("completed_at", "failed_at") - F("armed_at"), name="task_took",
                         condition=Q(provider_id__isnull=False)),
        ]  # fmt: skip

    def __str__(self) -> str:
        return str(self.id)

    @property
    def named(self) -> Named:
        """As its provider knows it. Its target is read."""
        return Named(
            provider_id=self.provider_id or "",
            model=self.target.model,
            links=self.provider_links,
        )


class PolzaTask(ProviderTask):
    """Only Polza's tasks, as Polza's own dashboard shows them."""

    class Meta:
        proxy = True
        verbose_name = _("Polza task")
        verbose_name_plural = _("Polza tasks")
