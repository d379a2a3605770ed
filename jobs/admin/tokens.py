"""API tokens: made, replaced and revoked. A token's text is on the page that answers the POST which makes it, and on no other."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin.changelist import EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin
from jobs.admin.forms import ReasonForm, VerbForm
from jobs.admin.verb import Effect, Verb
from jobs.admin.verbs import allowed
from jobs.clock import clock
from jobs.display import Look
from jobs.lifecycle import tokens
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.tokens import Issued
from jobs.models import ApiToken, Tenant
from jobs.models.token import MOST_PER_MINUTE
from jobs.templatetags import desk


class TokenForm(forms.Form):
    """`id` is that of the token to be: the same form sent twice makes one."""

    id = forms.UUIDField(widget=forms.HiddenInput)
    tenant = forms.ModelChoiceField(
        label=gettext_lazy("Tenant"), queryset=Tenant.objects.order_by("name"), empty_label=None,
        help_text=gettext_lazy("On whose behalf it acts, and whose money it spends."),
    )  # fmt: skip
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=80, help_text=gettext_lazy("Which program uses it, so that you know what stops when you revoke it."),
        widget=forms.TextInput(attrs={"dir": "auto", "autocomplete": "off"}),
    )  # fmt: skip
    scopes = forms.MultipleChoiceField(
        label=gettext_lazy("It may"), choices=ApiToken.Scope.choices, widget=forms.CheckboxSelectMultiple
    )  # fmt: skip
    per_minute = forms.IntegerField(
        label=gettext_lazy("Requests a minute"), min_value=1, max_value=MOST_PER_MINUTE, initial=600,
        help_text=gettext_lazy("More are told to come back (429). As many may also come at once. By default 600."),
    )  # fmt: skip
    expires_at = forms.DateTimeField(
        label=gettext_lazy("Expires"), required=False, help_text=gettext_lazy("From then on it is refused; in your time zone. Empty, the default: never."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)


class RotateForm(VerbForm):
    id = forms.UUIDField(widget=forms.HiddenInput, required=False)
    hours = forms.IntegerField(
        label=gettext_lazy("Hours that the old one goes on"), min_value=0,
        max_value=tokens.MOST_OVERLAP // timedelta(hours=1), initial=24,
        help_text=gettext_lazy("Until then both work."),
    )  # fmt: skip
    reason = forms.CharField(label=gettext_lazy("Why"), max_length=300, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial.setdefault("id", uuid.uuid4())


def _rotate(token: Any, actor: Any, now: Any, data: dict[str, Any]) -> None:
    token.issued = tokens.rotate(
        token_id=token.pk, overlap=timedelta(hours=data["hours"]), actor=actor, now=now, new_id=data["id"],
        reason=data["reason"],
    )  # fmt: skip


def _works(token: ApiToken) -> bool:
    return token.works(clock.now())


ROTATE = Verb(
    name="rotate", permission="jobs.rotate_apitoken", label=gettext_lazy("Replace"),
    title=gettext_lazy("Replace this token"), icon="refresh-cw", done=gettext_lazy("The new token is made."),
    form=RotateForm, offered=_works, run=_rotate,
    effects=lambda _token: [
        Effect("key-round", gettext_lazy("A new token with the same rights is made, and shown once.")),
        Effect("hourglass", gettext_lazy("The old one goes on for a while, so that the program can be changed in peace.")),
    ],
)  # fmt: skip
REVOKE = Verb(
    name="revoke", permission="jobs.revoke_apitoken", label=gettext_lazy("Revoke"),
    title=gettext_lazy("Revoke this token"), icon="ban", done=gettext_lazy("The token is revoked."), form=ReasonForm,
    offered=lambda token: token.revoked_at is None, dangerous=True,
    run=lambda token, actor, now, data: tokens.revoke(token_id=token.pk, actor=actor, now=now, reason=data["reason"]),
    effects=lambda _token: [
        Effect("unplug", gettext_lazy("From now on every request with it is refused.")),
        Effect("images", gettext_lazy("Jobs that it has made go on.")),
    ],
)  # fmt: skip


def look(token: ApiToken, now: Any) -> Look:
    if token.revoked_at is not None:
        return Look(_("revoked"), "ban", "grey")
    if not token.works(now):
        return Look(_("over"), "hourglass", "grey")
    if token.expires_at is not None:
        return Look(_("works, ends"), "hourglass", "amber")
    return Look(_("works"), "circle-check", "green")


@admin.register(ApiToken)
class ApiTokenAdmin(VerbsMixin, MachineAdmin):
    verbs = (ROTATE, REVOKE)
    list_display = ("name_cell", "tenant", "scopes_cell", "state_cell", "pace_cell", "used_cell", "ends_cell")  # fmt: skip
    list_display_links = ("name_cell",)
    list_filter = ("tenant",)
    search_fields = ("name", "prefix")
    ordering = ("-created_at",)
    sortable_by = ()
    actions = None
    fields = (
        "name_cell", "tenant", "scopes_cell", "state_cell", "pace_cell", "used_cell", "ends_cell", "made_cell", "replaces",
    )  # fmt: skip
    readonly_fields = fields
    change_form_template = "desk/token.html"
    empty = EmptyState(
        "key-round",
        gettext_lazy("No tokens yet"),
        gettext_lazy(
            "A token lets another program create jobs and learn their fate over the HTTP API, for one tenant. Its text is shown once, when it is made."
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("jobs.add_apitoken"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("tenant", "created_by", "replaces")

    def get_object(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        # `do_view` looks up the thing by this: what its verb has made is found on it afterwards.
        request.desk_token = super().get_object(request, *args, **kwargs)  # type: ignore[attr-defined]
        return request.desk_token  # type: ignore[attr-defined]

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for row in rows:
            row.shown_now = now
        return rows

    # --- pages ---

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = TokenForm(
            request.POST or None,
            initial={"id": uuid.uuid4(), "tenant": request.GET.get("tenant"), "scopes": ["submit", "read"]},
        )  # fmt: skip
        if request.method == "POST" and form.is_valid():
            made = self._issue(request, form)
            if made is not None:
                return self._once(request, made)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("New API token"),
            "form": form,
        }
        return TemplateResponse(request, "desk/token_new.html", context)

    def _issue(self, request: HttpRequest, form: TokenForm) -> Issued | None:
        assert request.user.is_authenticated
        data = form.cleaned_data
        try:
            return tokens.issue(
                tenant=data["tenant"], name=data["name"], scopes=data["scopes"], per_minute=data["per_minute"],
                expires_at=data["expires_at"], actor=request.user, now=clock.now(), token_id=data["id"],
            )  # fmt: skip
        except Refused as refused:
            form.add_error(None, str(refused))
            return None

    def do_view(self, request: HttpRequest, object_id: str, verb_name: str) -> HttpResponse:
        response = super().do_view(request, object_id, verb_name)
        issued = getattr(request.desk_token, "issued", None)  # type: ignore[attr-defined]
        return response if issued is None else self._once(request, issued)

    def _once(self, request: HttpRequest, issued: Issued) -> HttpResponse:
        """No redirect: whatever is passed on to the next page is kept somewhere on the way. Browsers keep no page of the
        admin."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("The new token"),
            "token": issued.token,
            "text": issued.text,
        }
        return TemplateResponse(request, "desk/token_shown.html", context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        token = self.get_object(request, object_id)
        context = dict(extra_context or {})
        if token is not None and self.has_view_permission(request, token):
            context |= {"verbs": allowed(self.verbs, request.user, token)}
        return super().change_view(request, object_id, form_url, context)

    # --- cells ---

    @admin.display(description=gettext_lazy("token"))
    def name_cell(self, token: ApiToken) -> SafeString:
        return format_html(
            '<span class="what"><span class="what-first"><bdi>{}</bdi></span><span class="what-second"><bdi class="ltr mono">{}…</bdi></span></span>',
            token.name,
            token.prefix,
        )

    @admin.display(description=gettext_lazy("it may"))
    def scopes_cell(self, token: ApiToken) -> SafeString:
        return format_html_join(", ", "{}", ((ApiToken.Scope(scope).label,) for scope in token.scopes))  # fmt: skip

    @admin.display(description=gettext_lazy("state"))
    def state_cell(self, token: Any) -> SafeString:
        return desk.pill(look(token, _now(token)))

    @admin.display(description=gettext_lazy("a minute"))
    def pace_cell(self, token: ApiToken) -> SafeString:
        return format_html('<bdi class="num">{}</bdi>', token.per_minute)

    @admin.display(description=gettext_lazy("last used"))
    def used_cell(self, token: Any) -> SafeString | str:
        return desk.ago(token.last_used_at, _now(token)) if token.last_used_at else _("never")

    @admin.display(description=gettext_lazy("ends"))
    def ends_cell(self, token: Any) -> SafeString | str:
        at = token.revoked_at or token.expires_at
        if at is None:
            return "—"
        now = _now(token)
        return desk.until(at, now) if at > now else desk.ago(at, now)

    @admin.display(description=gettext_lazy("made"))
    def made_cell(self, token: Any) -> SafeString:
        who = token.created_by.get_username() if token.created_by else "—"
        return format_html("{} · <bdi>{}</bdi>", desk.ago(token.created_at, _now(token)), who)


def _now(token: Any) -> Any:
    """Read once a list; a page of one reads it as it goes."""
    return getattr(token, "shown_now", None) or clock.now()
