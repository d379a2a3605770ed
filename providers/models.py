"""Rows about the outside world: accounts, targets, what state a provider is in, its limits, its timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext_lazy as _

from providers import word
from providers.health import Block, Cause, Gate, Health
from providers.word import Phrase, Told


class Account(models.Model):
    """A provider reached with one key. The key itself is never stored; `fingerprint` is a short hash of it.

    `echoes_id`, `history_lag_s` and `exclusive` are facts about the provider's history; None means not measured, and
    then a lost send is never concluded absent.
    """

    provider = models.CharField(_("provider"), max_length=40)
    fingerprint = models.CharField(_("key fingerprint"), max_length=32)
    label = models.CharField(_("label"), max_length=80, blank=True)
    echoes_id = models.BooleanField(
        _("history echoes our id"),
        null=True,
        blank=True,
        help_text=_("Measured: its history shows the id we sent."),
    )
    history_lag_s = models.FloatField(
        _("history lag, s"),
        null=True,
        blank=True,
        help_text=_("Measured: how late a generation shows up in its history."),
    )
    exclusive = models.BooleanField(
        _("exclusive"),
        default=False,
        help_text=_("No other program uses this key. Only the owner can know."),
    )
    balance = models.DecimalField(
        _("balance"), max_digits=16, decimal_places=6, null=True, blank=True
    )
    balance_currency = models.CharField(max_length=3, blank=True)
    balance_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(_("first seen"))
    alerts_silenced = models.BooleanField(
        _("alerts silenced"),
        default=False,
        help_text=_("Its outages are recorded and shown, but nobody is told."),
    )

    class Meta:
        verbose_name = _("account")
        verbose_name_plural = _("accounts")
        permissions = [("silence_account", _("Can silence an account's alerts"))]
        constraints = [
            models.UniqueConstraint(fields=["provider", "fingerprint"], name="account_unique")
        ]

    def __str__(self) -> str:
        return f"{self.provider} …{self.fingerprint[-6:]}"


class Target(models.Model):
    """`provider:model`, what a job's route is made of. `stopped_reason` is set when the provider called it wrong."""

    class Kind(models.TextChoices):
        IMAGE = "image", _("picture")
        TEXT = "text", _("text")

    provider = models.CharField(_("provider"), max_length=40)
    model = models.CharField(_("model"), max_length=160)
    kind = models.CharField(_("makes"), max_length=8, choices=Kind.choices, default=Kind.IMAGE)
    price = models.DecimalField(
        _("price"),
        max_digits=12,
        decimal_places=4,
        help_text=_("What one generation usually costs; reckons money at risk."),
    )
    currency = models.CharField(_("currency"), max_length=3, default="RUB")
    max_in_flight = models.PositiveIntegerField(
        _("most in flight"),
        null=True,
        blank=True,
        help_text=_("Empty: only the overall limit holds."),
    )
    capabilities = models.JSONField(_("capabilities"), default=dict, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    stopped_at = models.DateTimeField(_("stopped"), null=True, blank=True)
    stopped_reason = models.CharField(_("why stopped"), max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("target")
        verbose_name_plural = _("targets")
        constraints = [
            models.UniqueConstraint(fields=["provider", "model"], name="target_unique"),
            models.CheckConstraint(condition=Q(price__gte=0), name="target_price_not_negative"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"

    @property
    def open(self) -> bool:
        return self.enabled and self.stopped_at is None


class ProviderState(models.Model):
    """What we know of an account (`model` empty) or of one of its models. One row is read by all processes.

    `state` "paused" is staff's pause; its other words only repeat, for filters, what the columns said when they were last
    written. What holds now is told by `providers.word.word(row.health(), now=now)`, what it is called by `in_words`.

    Outcomes are not counted here but in the tasks they are facts of (jobs/lifecycle/providers.py): a good send writes
    nothing, a bad one one row, and no process can forget or double a count.
    """

    class State(models.TextChoices):
        AVAILABLE = "available", _("available")
        THROTTLED = "throttled", _("throttled")
        QUOTA_EXHAUSTED = "quota_exhausted", _("quota exhausted")
        BLOCKED = "blocked", _("blocked by staff")
        DOWN = "down", _("down")
        PAUSED = "paused", _("paused")

    class BlockKind(models.TextChoices):
        THROTTLED = Block.THROTTLED, _("throttled")
        QUOTA_EXHAUSTED = Block.QUOTA, _("quota exhausted")
        BLOCKED = Block.STAFF, _("blocked by staff")

    class Gate(models.TextChoices):
        CLOSED = Gate.CLOSED, _("closed")
        OPEN = Gate.OPEN, _("open")
        HALF_OPEN = Gate.HALF_OPEN, _("half-open")

    class Cause(models.TextChoices):
        FAILURES = Cause.FAILURES, _("failures")
        KEY = Cause.KEY, _("key rejected")

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="states")
    model = models.CharField(_("model"), max_length=160, blank=True)
    state = models.CharField(
        _("state"), max_length=20, choices=State.choices, default=State.AVAILABLE
    )
    since = models.DateTimeField(_("since"))
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    blocked_until = models.DateTimeField(_("blocked until"), null=True, blank=True)
    block = models.CharField(_("blocked for"), max_length=20, choices=BlockKind.choices, blank=True)

    # --- the breaker (providers/health.py) ---
    gate = models.CharField(_("breaker"), max_length=10, choices=Gate.choices, default=Gate.CLOSED)
    cause = models.CharField(_("cause"), max_length=10, choices=Cause.choices, blank=True)
    opened_at = models.DateTimeField(_("down since"), null=True, blank=True)
    next_try_at = models.DateTimeField(_("next try"), null=True, blank=True)
    closed_at = models.DateTimeField(_("up again"), null=True, blank=True)
    open_s = models.FloatField(default=0.0)  # how long the last opening was, for the doubling
    sends_failed = models.PositiveIntegerField(default=0)  # in a row, like the next two
    verdicts_failed = models.PositiveIntegerField(default=0)
    polls_failed = models.PositiveIntegerField(default=0)
    ramp = models.PositiveSmallIntegerField(null=True, blank=True)
    ramp_won = models.PositiveSmallIntegerField(default=0)
    # The lease of the one probe: which task, until when.
    probe_id = models.UUIDField(null=True, blank=True)
    probe_until = models.DateTimeField(null=True, blank=True)
    # The lease of a free read: until when somebody is at it.
    look_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("provider state")
        verbose_name_plural = _("provider states")
        constraints = [
            models.UniqueConstraint(fields=["account", "model"], name="provider_state_unique"),
            models.CheckConstraint(
                condition=~Q(gate="open") | Q(next_try_at__isnull=False),
                name="provider_state_open_has_next_try",
            ),
            models.CheckConstraint(
                condition=Q(probe_id__isnull=True, probe_until__isnull=True)
                | Q(probe_id__isnull=False, probe_until__isnull=False, gate="half_open"),
                name="provider_state_probe_when_half_open",
            ),
            models.CheckConstraint(
                condition=Q(ramp__isnull=True) | Q(ramp__gt=0), name="provider_state_ramp_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.account} {self.model}: {self.state}"

    def health(self) -> Health:
        """The row as a value."""
        kind = self.block
        if not kind and self.blocked_until is not None and self.state in self.BlockKind.values:
            kind = self.state
        return Health(
            paused=self.state == self.State.PAUSED,
            block=Block(kind),
            gate=Gate(self.gate),
            cause=Cause(self.cause),
            **{name: getattr(self, name) for name in _PLAIN},
        )

    def put(self, health: Health, *, now: datetime) -> None:
        """Take the value over, unsaved; `since` moves only where the stored word changes."""
        state = word.stored(health, now=now)
        for name, value in asdict(health).items():
            if name in _PLAIN or name in {"block", "gate", "cause"}:
                setattr(self, name, value)
        self.reason = health.reason[:300]
        if state != self.state:
            self.since = now
        self.state = state


_PLAIN = (
    "blocked_until", "opened_at", "next_try_at", "closed_at", "open_s", "sends_failed", "verdicts_failed", "polls_failed",
    "ramp", "ramp_won", "probe_id", "probe_until", "since", "reason",
)  # fmt: skip

_WORDS = {
    word.Word.AVAILABLE: _("available"),
    word.Word.QUOTA_EXHAUSTED: _("quota exhausted"),
    word.Word.DOWN: _("down"),
}
_PHRASES = {
    Phrase.PAUSED: _("paused by staff"),
    Phrase.KEY_REJECTED: _("down: the key is rejected, next try %(until)s"),
    Phrase.DOWN: _("down, next try %(until)s"),
    Phrase.CHECKING: _("down, being checked"),
    Phrase.PROBING: _("down, a probe is on its way"),
    Phrase.NEXT_IS_PROBE: _("down, the next job is the probe"),
    Phrase.QUOTA_EXHAUSTED: _("quota exhausted until %(until)s"),
    Phrase.BLOCKED: _("blocked by staff until %(until)s"),
    Phrase.THROTTLED: _("throttled until %(until)s"),
    Phrase.RAMPING: _("available, starting gently"),
    Phrase.AVAILABLE: _("available"),
}
_UNTOLD = {
    Phrase.QUOTA_EXHAUSTED: _("quota exhausted"),
    Phrase.THROTTLED: _("throttled"),
}


def one_word(told: Told) -> str:
    """One of the three words, in the reader's language."""
    return str(_WORDS[told.word])


def in_words(
    told: Told, *, now: datetime, moment: Callable[[datetime, datetime], str] | None = None
) -> str:
    """The finer phrase in the reader's language and time zone: "down, next try 12:03". `moment` writes the time otherwise."""
    if told.until is None:
        return str(_UNTOLD.get(told.phrase, _PHRASES[told.phrase]))
    return str(_PHRASES[told.phrase]) % {"until": (moment or _moment)(told.until, now)}


def _moment(moment: datetime, now: datetime) -> str:
    """The time alone for today, with the date otherwise."""
    here = timezone.localtime(moment)
    if here.date() == timezone.localtime(now).date():
        return f"{here:%H:%M}"
    return f"{date_format(here, 'MONTH_DAY_FORMAT')}, {here:%H:%M}"


def check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown is a KeyError
        raise ValidationError(
            _("“%(name)s” is no time zone. Write one like Europe/Moscow."), params={"name": name}
        ) from error


class QuotaWindow(models.Model):
    """A limit a provider has: so many sends within `seconds`, or (`seconds` empty) so many in flight at once.

    A rolling window looks back `seconds` from now; a fixed one starts anew every `seconds` from the anchor, by the wall
    clock of `zone` (a day there may have 23 hours). Counted from our own tasks: what was proven not to have arrived
    counts nowhere, a free refusal only in windows up to an hour, which limit requests rather than generations.
    """

    class Resets(models.TextChoices):
        ROLLING = "rolling", _("rolling")
        FIXED = "fixed", _("at fixed times")

    account = models.ForeignKey(
        Account, on_delete=models.CASCADE, related_name="windows", verbose_name=_("account")
    )
    model = models.CharField(
        _("model"), max_length=160, blank=True, help_text=_("Empty: the whole account.")
    )
    seconds = models.PositiveIntegerField(
        _("window, s"),
        null=True,
        blank=True,
        help_text=_("60, 3600, 86400, 604800; empty: at the same time."),
    )
    most = models.PositiveIntegerField(_("most"))
    resets = models.CharField(
        _("starts anew"), max_length=8, choices=Resets.choices, default=Resets.ROLLING
    )
    anchor_at = models.DateTimeField(
        _("anchor"),
        null=True,
        blank=True,
        help_text=_("At fixed times: any moment at which the window started anew."),
    )
    zone = models.CharField(_("time zone"), max_length=40, default="UTC", validators=[check_zone])

    class Meta:
        verbose_name = _("quota window")
        verbose_name_plural = _("quota windows")
        constraints = [
            models.UniqueConstraint(
                fields=["account", "model", "seconds"],
                name="quota_window_unique",
                nulls_distinct=False,
            ),
            models.CheckConstraint(condition=Q(most__gt=0), name="quota_window_most_positive"),
            models.CheckConstraint(
                condition=Q(seconds__isnull=True) | Q(seconds__gt=0),
                name="quota_window_seconds_positive",
            ),
            models.CheckConstraint(
                condition=Q(resets="rolling")
                | Q(resets="fixed", anchor_at__isnull=False, seconds__isnull=False),
                name="quota_window_fixed_has_anchor",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.account} {self.model} {self.most} / {self.seconds or 'at once'}"


# Steps that only people take; without an actor it was somebody with the shell.
OF_PEOPLE = (
    "paused", "resumed", "blocked", "limits_changed", "target_opened", "alerts_silenced", "alerts_unsilenced",
)  # fmt: skip
BY_PEOPLE = Q(actor__isnull=False) | Q(kind__in=OF_PEOPLE)
# Where a trouble begins or ends (jobs/episodes.py); throttles come and go by the second.
EPISODE_KINDS = (
    "opened", "key_rejected", "quota_exhausted", "blocked", "paused", "target_stopped", "closed", "unblocked", "resumed",
    "target_opened",
)  # fmt: skip


class ProviderEvent(models.Model):
    """Append-only timeline of an account, written in the transaction of the change."""

    account = models.ForeignKey(
        Account, on_delete=models.CASCADE, related_name="events", verbose_name=_("account")
    )
    model = models.CharField(_("model"), max_length=160, blank=True)
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("what"), max_length=40)
    data = models.JSONField(default=dict, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+",
        verbose_name=_("by"),
    )  # fmt: skip

    class Meta:
        verbose_name = _("provider event")
        verbose_name_plural = _("provider events")
        indexes = [
            # An account's page, newest first.
            models.Index(F("account"), F("id").desc(), name="provider_event_timeline"),
            # The trail (jobs/trail.py): few among the machine's events.
            models.Index(F("at").desc(), F("id").desc(), name="provider_event_by_people", condition=BY_PEOPLE),
            # The reports (jobs/strips.py): an account's troubles within a span of time, and what held before.
            models.Index(fields=["account", "at"], name="provider_event_episodes", condition=Q(kind__in=EPISODE_KINDS)),
            models.Index(fields=["account", "at"], name="provider_event_throttles", condition=Q(kind="throttled")),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.kind}"


class SmokeRun(models.Model):
    """One proof of a provider's contract against the provider itself (jobs/smoke.py says what its checks mean).

    Without `ended_at` it is under way or was killed; whoever holds `lease_until` is at it, and after that anyone goes on.
    `day`: a daily run, of which an account has one a day. `job_id`: the job that paid for it, None for free reads alone.
    """

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="smokes")
    target = models.ForeignKey(Target, on_delete=models.CASCADE, null=True, related_name="+")
    at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    real = models.BooleanField(_("with a real generation"))
    day = models.DateField(null=True, blank=True)
    most = models.DecimalField(
        _("most it may cost"), max_digits=14, decimal_places=6, null=True, blank=True
    )
    job_id = models.BigIntegerField(null=True, blank=True)
    ok = models.BooleanField(_("passed"), null=True, blank=True)
    checks = models.JSONField(default=list, blank=True)  # [{"name", "ok", "finding", "data"}]
    seen = models.JSONField(default=dict, blank=True)  # what is known so far, for whoever goes on
    cost = models.DecimalField(max_digits=20, decimal_places=10, null=True, blank=True)
    currency = models.CharField(max_length=3, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("smoke run")
        verbose_name_plural = _("smoke runs")
        constraints = [
            models.UniqueConstraint(fields=["account", "day"], name="smoke_once_a_day"),
        ]
        indexes = [
            # The panel: the last one of an account.
            models.Index(F("account"), F("at").desc(), name="smoke_of_account"),
            # The minute's ring: what somebody must go on with.
            models.Index(F("at"), name="smoke_unfinished", condition=Q(ended_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.account} {self.at:%F %T}"
