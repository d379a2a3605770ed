"""What staff may do about callbacks: send one again, say where a tenant hears of its jobs, change the secret that signs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib.auth.models import AbstractBaseUser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import callbacks
from jobs.admin import forms as desk_forms
from jobs.admin.verb import Effect, Verb
from jobs.lifecycle import callbacks as outbox
from jobs.lifecycle import endpoints
from jobs.models import Case, Endpoint, Tenant
from jobs.states import CaseKind

_HOURS = int(callbacks.OVERLAP_S / 3600)


def endpoint(tenant: Tenant) -> Endpoint:
    """The tenant's own, as it stands; unsaved where nothing was ever set."""
    return Endpoint.objects.filter(tenant=tenant).first() or Endpoint(tenant=tenant)


class UrlForm(desk_forms.VerbForm):
    url = forms.CharField(
        label=gettext_lazy("Address"),
        required=False,
        max_length=callbacks.URL_LENGTH,
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false"}),
        help_text=gettext_lazy("Like https://shop.example/hook. Empty: nobody is told."),
    )
    reason = forms.CharField(
        label=gettext_lazy("Why"), required=False, max_length=300, help_text=gettext_lazy("Kept in the trail."),
        widget=forms.TextInput(attrs={"dir": "auto"}),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial.setdefault("url", endpoint(self.thing).url)


def _again_effects(_thing: Any) -> list[Effect]:
    return [
        Effect("send", _("It is sent at once, and for a day again and again until it is taken.")),
        Effect("shield", _("Under the same id as before, so that the other program can tell.")),
    ]


REPLAY = Verb(
    name="replay",
    permission="jobs.replay_callback",
    label=gettext_lazy("Send again"),
    title=gettext_lazy("Send this callback again?"),
    icon="send",
    done=gettext_lazy("It is being sent."),
    form=desk_forms.NothingForm,
    effects=_again_effects,
    offered=lambda callback: callback.delivered_at is None,
    run=lambda callback, actor, now, _data: outbox.replay(
        callback_id=callback.pk, actor=actor, now=now
    ),
)


def _can_be_replayed(case: Case) -> bool:
    return case.kind == CaseKind.DEAD_CALLBACK and case.resolved_at is None


def _replay_case(case: Case, actor: AbstractBaseUser, now: datetime, _data: Any) -> None:
    outbox.replay_case(case_id=case.pk, actor=actor, now=now)


REPLAY_CASE = Verb(
    name="replay",
    permission="jobs.replay_callback",
    label=gettext_lazy("Send the callbacks again"),
    title=gettext_lazy("Send the callbacks of this case again?"),
    icon="send",
    done=gettext_lazy("They are being sent. The case closes once they are taken."),
    form=desk_forms.NothingForm,
    effects=_again_effects,
    offered=_can_be_replayed,
    run=_replay_case,
)


SET_URL = Verb(
    name="callback-url",
    permission="jobs.change_tenant",
    label=gettext_lazy("Set the address"),
    title=gettext_lazy("Where does this tenant hear of its jobs?"),
    icon="link",
    done=gettext_lazy("The address is set."),
    form=UrlForm,
    effects=lambda _tenant: [
        Effect("bell", _("Each job that is made from now on and names no address itself is told of there.")),
        Effect("history", _("What was made before keeps its own.")),
    ],
    run=lambda tenant, actor, now, data: endpoints.set_url(
        tenant_id=tenant.pk, url=data["url"], actor=actor, now=now, reason=data["reason"]
    ),
)  # fmt: skip

ROTATE = Verb(
    name="callback-secret",
    permission="jobs.rotate_endpoint",
    label=pgettext_lazy("of callbacks", "Change the secret"),
    title=gettext_lazy("Change the secret of this tenant's callbacks?"),
    icon="key-round",
    done=gettext_lazy("A new secret signs. Give it to the tenant's people."),
    effects=lambda _tenant: [
        Effect("key-round", _("From now on a new secret signs.")),
        Effect(
            "timer",
            _("For %(hours)s hours the one before signs too, so that receivers can be changed in peace.")
            % {"hours": _HOURS},
        ),
    ],
    run=lambda tenant, actor, now, data: endpoints.rotate(
        tenant_id=tenant.pk, actor=actor, now=now, reason=data["reason"]
    ),
)  # fmt: skip
