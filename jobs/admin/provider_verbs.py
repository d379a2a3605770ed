"""What staff may do about a provider: the verbs of the panel. Each calls one verb of jobs/lifecycle/."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import balance
from jobs.admin.forms import NothingForm, VerbForm
from jobs.admin.limits import InFlightForm, WindowForm, window_name
from jobs.admin.verb import Effect, Verb
from jobs.clock import clock
from jobs.lifecycle import limits, providers
from jobs.lifecycle.errors import Refused
from jobs.panel import AccountView, Closed, ModelView
from providers.health import Gate, Health
from providers.models import QuotaWindow

OPERATE = "jobs.press_hold"
LIMIT = "providers.change_quotawindow"
ADD_WINDOW = "providers.add_quotawindow"
DROP_WINDOW = "providers.delete_quotawindow"
TARGET = "providers.change_target"
SILENT = "providers.silence_account"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a verb is about: an account, or (`model`) one of its models, or (`window`) one of the windows there."""

    now: datetime
    account: AccountView
    model: ModelView | None = None
    window: QuotaWindow | None = None

    def __str__(self) -> str:
        return self.model.name if self.model is not None else self.account.name

    @property
    def own(self) -> Health:
        return self.account.own if self.model is None else self.model.own

    @property
    def key(self) -> dict[str, Any]:
        return {
            "account_id": self.account.id,
            "model": "" if self.model is None else self.model.model,
        }


class BlockForm(VerbForm):
    until = forms.DateTimeField(
        label=gettext_lazy("Until"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    reason = forms.CharField(
        label=gettext_lazy("Why"),
        required=False,
        max_length=300,
        help_text=gettext_lazy("Shown on the panel and kept in the timeline with your name."),
        widget=forms.Textarea(attrs={"rows": 2}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["until"].help_text = _("By the clock of %(zone)s.") % {
            "zone": timezone.get_current_timezone_name()
        }
        self.initial.setdefault("until", timezone.localtime(clock.now() + timedelta(hours=1)))


class PauseForm(VerbForm):
    reason = BlockForm.base_fields["reason"]


# --- effects ----------------------------------------------------------------------------------------------------------


def _shut_effects(place: Place) -> list[Effect]:
    return [
        Effect("octagon-pause", _("Nothing more is sent to %(place)s.") % {"place": place}),
        Effect("eye", _("What is there already is still watched and fetched.")),
        Effect(
            "inbox",
            _("Jobs that wait for it stay in the queue: what staff have shut, waits for staff."),
        ),
    ]


def _block_effects(place: Place) -> list[Effect]:
    return [
        *_shut_effects(place),
        Effect("clock", _("It ends by itself at that time, or when somebody unblocks it.")),
    ]


def _flow_effects(place: Place) -> list[Effect]:
    flow = Effect(
        "play", _("Waiting jobs are sent to %(place)s again, within all limits.") % {"place": place}
    )
    more = []
    if place.own.gate is not Gate.CLOSED:
        more = [Effect("octagon-alert", _("It stays down until a probe job has succeeded."))]
    return [flow, *more]


def _unblock_effects(place: Place) -> list[Effect]:
    told = Effect(
        "info",
        _(
            "If the provider still refuses, its next answer blocks it again; a refusal costs nothing."
        ),
    )
    return [*_flow_effects(place), told]


def _topped_effects(place: Place) -> list[Effect]:
    return [
        Effect(
            "wallet",
            _("The balance of %(place)s is read, which costs nothing.") % {"place": place},
        ),
        Effect(
            "play",
            _("If it pays for one generation, its quota blocks end and waiting jobs are sent."),
        ),
        Effect("shield", _("If it doesn't, or can't be read, nothing changes.")),
    ]


def _limit_effects(_place: Place) -> list[Effect]:
    return [
        Effect("gauge", _("It holds for all processes from the next send on.")),
        Effect("eye", _("What is in flight already stays.")),
    ]


def _window_effects(place: Place) -> list[Effect]:
    name = "" if place.window is None else window_name(place.window.seconds)
    held = _("Counted from our own sends: a request that must fail is not sent.")
    return [
        *([Effect("hourglass", _("The window: %(name)s.") % {"name": name})] if name else []),
        Effect("gauge", held),
    ]


# --- running ----------------------------------------------------------------------------------------------------------

_Run = Callable[[Place, AbstractBaseUser, datetime, dict[str, Any]], None]


def _limit(place: Place, actor: AbstractBaseUser, now: datetime, data: dict[str, Any]) -> None:
    if place.model is None or place.model.target_id is None:
        raise Refused(_("Only a target has this limit."))
    limits.limit_target(
        target_id=place.model.target_id,
        most=data["most"],
        actor=actor,
        now=now,
        reason=data["reason"],
    )


def _open(place: Place, actor: AbstractBaseUser, now: datetime, _data: dict[str, Any]) -> None:
    if place.model is None or place.model.target_id is None:
        raise Refused(_("It is not stopped."))
    limits.open_target(target_id=place.model.target_id, actor=actor, now=now)


def _set_window(place: Place, actor: AbstractBaseUser, now: datetime, data: dict[str, Any]) -> None:
    limits.limit_window(
        **place.key, seconds=data["seconds"], most=data["most"], resets=data["resets"], anchor_at=data["anchor_at"],
        zone=data["zone"], actor=actor, now=now, reason=data["reason"],
    )  # fmt: skip


def _drop_window(
    place: Place, actor: AbstractBaseUser, now: datetime, _data: dict[str, Any]
) -> None:
    if place.window is None:
        raise Refused(_("There is no such window."))
    limits.limit_window(**place.key, seconds=place.window.seconds, most=None, actor=actor, now=now)


def _silence(silenced: bool) -> _Run:
    def run(place: Place, actor: AbstractBaseUser, now: datetime, _data: dict[str, Any]) -> None:
        providers.silence_alerts(
            account_id=place.account.id, silenced=silenced, actor=actor, now=now
        )

    return run


# --- the verbs --------------------------------------------------------------------------------------------------------

PROBE = Verb(
    name="probe",
    permission=OPERATE,
    label=gettext_lazy("Probe now"),
    title=gettext_lazy("Try it now?"),
    icon="refresh-cw",
    done=gettext_lazy("The next try is due now: a free read where there is one, then one job."),
    form=NothingForm,
    effects=lambda place: [
        Effect("refresh-cw", _("The next try is due at once: a free read where there is one.")),
        Effect("send", _("If that goes well, one waiting job is sent to find out.")),
    ],
    offered=lambda place: place.own.gate is Gate.OPEN and not place.own.paused,
    run=lambda place, actor, now, _data: providers.probe_now(**place.key, actor=actor, now=now),
)
TOPPED_UP = Verb(
    name="topped-up",
    permission=OPERATE,
    label=gettext_lazy("I have topped up"),
    title=gettext_lazy("Read the balance and go on?"),
    icon="wallet",
    done=gettext_lazy("The balance is read; the quota blocks it pays for are ended."),
    form=NothingForm,
    effects=_topped_effects,
    offered=lambda place: place.model is None and place.account.key_set,
    run=lambda place, actor, _now, _data: balance.topped_up(place.account, actor=actor),
)
UNBLOCK = Verb(
    name="unblock",
    permission=OPERATE,
    label=gettext_lazy("Unblock"),
    title=gettext_lazy("End the block?"),
    icon="play",
    done=gettext_lazy("The block is ended."),
    form=NothingForm,
    effects=_unblock_effects,
    offered=lambda place: place.own.blocked(place.now),
    run=lambda place, actor, now, _data: providers.unblock(**place.key, actor=actor, now=now),
)
RESUME = Verb(
    name="resume",
    permission=OPERATE,
    label=gettext_lazy("Resume"),
    title=gettext_lazy("End the pause?"),
    icon="play",
    done=gettext_lazy("The pause is ended."),
    form=NothingForm,
    effects=_flow_effects,
    offered=lambda place: place.own.paused,
    run=lambda place, actor, now, _data: providers.resume(**place.key, actor=actor, now=now),
)
PAUSE = Verb(
    name="pause",
    permission=OPERATE,
    label=pgettext_lazy("provider", "Pause"),
    title=gettext_lazy("Pause it until somebody resumes?"),
    icon="circle-pause",
    done=gettext_lazy("It is paused. Nothing more is sent there."),
    form=PauseForm,
    effects=_shut_effects,
    offered=lambda place: not place.own.paused,
    run=lambda place, actor, now, data: providers.pause(
        **place.key, actor=actor, now=now, reason=data["reason"]
    ),
)
BLOCK = Verb(
    name="block",
    permission=OPERATE,
    label=gettext_lazy("Block until…"),
    title=gettext_lazy("Block it until a time?"),
    icon="lock",
    done=gettext_lazy("It is blocked until then."),
    form=BlockForm,
    effects=_block_effects,
    run=lambda place, actor, now, data: providers.block_until(
        **place.key, until=data["until"], actor=actor, now=now, reason=data["reason"]
    ),
)
OPEN = Verb(
    name="open",
    permission=TARGET,
    label=gettext_lazy("Open again"),
    title=gettext_lazy("Open this target again?"),
    icon="play",
    done=gettext_lazy("The target is open again."),
    form=NothingForm,
    effects=lambda place: [
        *_flow_effects(place),
        Effect("octagon-pause", _("If the provider calls it wrong once more, it stops again.")),
    ],
    offered=lambda place: place.model is not None and place.model.closed is Closed.STOPPED,
    run=_open,
)
LIMIT_TARGET = Verb(
    name="limit",
    permission=TARGET,
    label=gettext_lazy("Change the most in flight"),
    title=gettext_lazy("How many at the same time?"),
    icon="gauge",
    done=gettext_lazy("The limit is set."),
    form=InFlightForm,
    effects=_limit_effects,
    offered=lambda place: place.model is not None and place.model.target_id is not None,
    run=_limit,
)
ADD = Verb(
    name="add-window",
    permission=ADD_WINDOW,
    label=gettext_lazy("Add a quota window"),
    title=gettext_lazy("How much does the provider allow?"),
    icon="plus",
    done=gettext_lazy("The window is set."),
    form=WindowForm,
    effects=_window_effects,
    offered=lambda place: place.window is None,
    run=_set_window,
)
CHANGE = replace(
    ADD,
    name="change-window",
    permission=LIMIT,
    label=gettext_lazy("Change"),
    title=gettext_lazy("Change this window?"),
    icon="pencil",
    offered=lambda place: place.window is not None,
)
DROP = Verb(
    name="drop-window",
    permission=DROP_WINDOW,
    label=gettext_lazy("Drop"),
    title=gettext_lazy("Drop this window?"),
    icon="trash-2",
    done=gettext_lazy("The window is dropped."),
    form=NothingForm,
    effects=lambda place: [
        *_window_effects(place)[:1],
        Effect("play", _("It holds no send back any more; the provider's own refusals do.")),
    ],
    offered=lambda place: place.window is not None,
    run=_drop_window,
    dangerous=True,
)
SILENCE = Verb(
    name="silence",
    permission=SILENT,
    label=gettext_lazy("Silence its alerts"),
    title=gettext_lazy("Send no alerts about it?"),
    icon="message-square",
    done=gettext_lazy("Its alerts are silenced; the panel still shows everything."),
    form=NothingForm,
    effects=lambda place: [
        Effect("message-square", _("No alert about %(place)s is sent.") % {"place": place}),
        Effect("eye", _("The panel still shows everything.")),
    ],
    offered=lambda place: place.model is None and not place.account.alerts_silenced,
    run=_silence(True),
)
UNSILENCE = replace(
    SILENCE,
    name="unsilence",
    label=gettext_lazy("Send its alerts again"),
    title=gettext_lazy("Send its alerts again?"),
    done=gettext_lazy("Its alerts are sent again."),
    offered=lambda place: place.model is None and place.account.alerts_silenced,
    run=_silence(False),
)

# In the order of a menu; those that let money flow again first.
OF_PLACE: Sequence[Verb] = (
    PROBE, TOPPED_UP, UNBLOCK, RESUME, OPEN, PAUSE, BLOCK, LIMIT_TARGET, ADD, SILENCE, UNSILENCE,
)  # fmt: skip
OF_WINDOW: Sequence[Verb] = (CHANGE, DROP)
# Nothing is lost and nothing spent beyond what was to be spent anyway: no confirmation.
AT_ONCE = frozenset({PROBE.name, SILENCE.name, UNSILENCE.name})
