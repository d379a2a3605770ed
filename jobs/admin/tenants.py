"""Tenants: what each may spend, has spent and is held by. What owners set goes through jobs/lifecycle/tenants.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from jobs import callbacks, tenancy
from jobs.admin import callback_verbs
from jobs.admin import callbacks as callback_pages
from jobs.admin.changelist import DeskAdmin, EmptyState, capped_words
from jobs.admin.confirm import VerbsMixin
from jobs.admin.verbs import allowed
from jobs.budgets import Limit
from jobs.clock import clock
from jobs.display import Look
from jobs.intake import InputError
from jobs.lifecycle import tenants
from jobs.lifecycle.errors import Refused
from jobs.models import Tenant
from jobs.tenancy import View
from providers import registry
from providers.models import Target

_HISTORY = 50


# --- bars: SVG, because the content policy allows no inline style -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """`charged` and `possible` are widths of 100, written for SVG; `at` is where the possible begins."""

    limit: Limit
    name: str
    words: str
    look: Look
    charged: str
    at: str
    possible: str


def bars(view: View) -> list[Bar]:
    return [_bar(limit, view) for limit in view.budget.limits]


def _bar(limit: Limit, view: View) -> Bar:
    whole = max(limit.most, limit.spent.total, Decimal("0.01"))  # over the limit, the bar is full
    charged = 100 * limit.spent.charged / whole
    possible = 100 * limit.spent.possible / whole
    fits = view.held is None or view.held.ceiling <= limit.left
    return Bar(
        limit=limit,
        name=tenancy.period_words(limit.period),
        words=tenancy.limit_words(limit, view.tenant.currency),
        look=tenancy.look(limit, fits=fits),
        charged=f"{charged:.2f}",
        at=f"{charged:.2f}",
        possible=f"{possible:.2f}",
    )


# --- the form ---------------------------------------------------------------------------------------------------------


class TenantForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    route_names = forms.CharField(
        label=gettext_lazy("Default route"),
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3, "dir": "ltr", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "Targets in their order, one a line, written provider:model. Empty: the configured route."
        ),
    )

    split_names = forms.CharField(
        label=gettext_lazy("Split"),
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3, "dir": "ltr", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "Which target comes first, by weight: one a line, written provider:model=70. Empty: always the first of the route."
        ),
    )

    why = forms.CharField(
        label=gettext_lazy("Why"), required=False, max_length=300, help_text=gettext_lazy("Kept in the trail."),
        widget=forms.TextInput(attrs={"dir": "auto"}),
    )  # fmt: skip

    class Meta:
        model = Tenant
        fields = (
            "name", "slug", "contact", "weight", "max_in_flight", "currency", "daily_limit", "monthly_limit", "zone",
        )  # fmt: skip
        # Here, not in the model: a better word is no migration.
        help_texts = {
            "name": gettext_lazy("As people call it: on pages, in statements and alerts."),
            "slug": gettext_lazy(
                "In commands and the API: small letters, digits and hyphens. It can't be changed later."
            ),
            "contact": gettext_lazy(
                "Who is asked about its money: a name, a mail address or a phone. Shown to staff only. Empty, the default: nobody."
            ),
            "weight": gettext_lazy(
                "Its share where tenants compete for places, from 1 to 100: 2 gets twice as many as 1. By default 1."
            ),
            "max_in_flight": gettext_lazy(
                "How many of its jobs may be at providers at the same time. Empty, the default: only the overall limit (WORKER_CONCURRENCY) holds."
            ),
            "currency": gettext_lazy(
                "Of the spending limits, three capital letters. With a limit, only targets in this currency are used. By default RUB."
            ),
            "daily_limit": gettext_lazy(
                "Money a day, in the currency above, from midnight of its time zone. Empty, the default: no such limit; 0: nothing is sent. Nothing is sent that could pass it."
            ),
            "monthly_limit": gettext_lazy(
                "Money a month, in the currency above, from the first of the month in its time zone. Empty, the default: no such limit. Nothing is sent that could pass it."
            ),
            "zone": gettext_lazy(
                "Where its day and its month begin, like Europe/Moscow (the default). It has nothing to do with the zone in which you read times."
            ),
        }
        widgets = {
            "zone": forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false"}),
        }  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.initial.setdefault("route_names", route_text(self.instance))
            self.initial.setdefault(
                "split_names", "\n".join(tenancy.split_lines(self.instance.split))
            )

    def clean_route_names(self) -> str:
        names = [
            line.strip() for line in str(self.cleaned_data["route_names"]).splitlines() if line.strip()
        ]  # fmt: skip
        route = []
        for name in names:
            provider, model = registry.split_target(name)
            target = Target.objects.filter(provider=provider, model=model).first()
            if target is None:
                raise forms.ValidationError(_("“%(name)s” is not a target.") % {"name": name})
            if target in route:
                raise forms.ValidationError(
                    _("“%(name)s” stands in the route twice.") % {"name": name}
                )
            route.append(target)
        self.route = [target.pk for target in route]
        return "\n".join(target.name for target in route)

    def clean_split_names(self) -> str:
        try:
            self.split = tenancy.parse_split(str(self.cleaned_data["split_names"]).splitlines())
        except InputError as error:
            raise forms.ValidationError(error.message) from None
        return "\n".join(tenancy.split_lines(self.split))


def route_text(tenant: Tenant) -> str:
    """Also closed ones: what was set is shown."""
    found = Target.objects.in_bulk(tenant.default_route)
    return "\n".join(found[pk].name for pk in tenant.default_route if pk in found)


# --- pages ------------------------------------------------------------------------------------------------------------


@admin.register(Tenant)
class TenantAdmin(VerbsMixin, DeskAdmin):
    verbs = (callback_verbs.SET_URL, callback_verbs.ROTATE)
    form = TenantForm
    change_form_template = "desk/tenant.html"
    list_display = ("name_cell", "places_cell", "waiting_cell", "money_cell", "contact")
    list_display_links = ("name_cell",)
    search_fields = ("name", "slug")
    ordering = ("name",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": ("name", "slug", "contact")}),
        (gettext_lazy("Places"), {"fields": ("weight", "max_in_flight")}),
        (
            gettext_lazy("Money"),
            {"fields": ("currency", "daily_limit", "monthly_limit", "zone")},
        ),
        (gettext_lazy("Route"), {"fields": ("route_names", "split_names")}),
        (gettext_lazy("Trail"), {"fields": ("why",)}),
    )
    empty = EmptyState(
        "building-2",
        gettext_lazy("No tenants yet"),
        gettext_lazy(
            "A tenant is on whose behalf jobs run, with its share of the places, its budget and its tokens. The first job makes one, the studio itself; add one for each customer who shall have a limit of their own."
        ),
    )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Jobs and money hang on a tenant."""
        return False

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj else {"slug": ["name"]}

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Who may only look is asked for no reason."""
        may = self.has_change_permission(request, obj) if obj else True
        return self.fieldsets if may else self.fieldsets[:-1]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Programs know it by its short name."""
        return ("slug",) if obj else ()

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.secret_view)
        return [path("<int:pk>/secret/", view, name="jobs_tenant_secret"), *super().get_urls()]

    def secret_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return callback_pages.secret(request, pk, self.admin_site.each_context(request))

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        for view in tenancy.views(rows, now=clock.now()):
            view.tenant.shown_view = view  # type: ignore[attr-defined]
        return rows

    @admin.display(description=gettext_lazy("tenant"))
    def name_cell(self, tenant: Tenant) -> SafeString:
        return format_html(
            '<span class="what"><span class="what-first"><bdi>{}</bdi></span><span class="what-second"><bdi class="ltr">{}</bdi></span></span>',
            tenant.name,
            tenant.slug,
        )

    @admin.display(description=gettext_lazy("in flight"))
    def places_cell(self, tenant: Any) -> SafeString:
        view: View = tenant.shown_view
        most = "—" if tenant.max_in_flight is None else tenant.max_in_flight
        weight = _("weight %(weight)s") % {"weight": tenant.weight}
        return format_html(
            '<bdi class="num ltr">{} / {}</bdi> <span class="small quiet nowrap">{}</span>',
            view.in_flight,
            most,
            weight,
        )

    @admin.display(description=gettext_lazy("waiting"))
    def waiting_cell(self, tenant: Any) -> str:
        return capped_words(tenant.shown_view.waiting)

    @admin.display(description=gettext_lazy("money"))
    def money_cell(self, tenant: Any) -> SafeString:
        view: View = tenant.shown_view
        shown = bars(view)
        if not shown:
            return format_html('<span class="quiet">{}</span>', _("no limit"))
        return render_to_string("desk/tenant_money.html", {"bars": shown, "now": view.now})

    @admin.display(description=gettext_lazy("Default route"))
    def route_names(self, tenant: Tenant) -> str:
        """For those who may only look."""
        return route_text(tenant) or _("the configured route")

    @admin.display(description=gettext_lazy("Split"))
    def split_names(self, tenant: Tenant) -> str:
        """For those who may only look."""
        return "\n".join(tenancy.split_lines(tenant.split)) or _("always the first of the route")

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        tenant = self.get_object(request, object_id)
        context = dict(extra_context or {})
        if isinstance(tenant, Tenant) and self.has_view_permission(request, tenant):
            [view] = tenancy.views([tenant], now=clock.now())
            context |= {
                "view": view,
                "bars": bars(view),
                "waiting": capped_words(view.waiting),
                "now": view.now,
                "history": _history(tenant),
                "callback_url": callbacks.shown(callback_verbs.endpoint(tenant).url),
                "callback_verbs": allowed(self.verbs, request.user, tenant),
            }
        return super().change_view(request, object_id, form_url, context)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        assert request.user.is_authenticated
        names = [
            name
            for name in form.changed_data
            if name not in {"slug", "route_names", "split_names", "why"}
        ]
        values: dict[str, Any] = {name: form.cleaned_data[name] for name in names}
        if "route_names" in form.changed_data:
            values["default_route"] = form.route
        if "split_names" in form.changed_data:
            values["split"] = form.split
        if change and not values:
            return
        common: dict[str, Any] = {
            "actor": request.user, "now": clock.now(), "reason": form.cleaned_data["why"]
        }  # fmt: skip
        try:
            if change:
                tenants.change(tenant_id=obj.pk, **common, **values)
            else:
                obj.pk = tenants.create(slug=form.cleaned_data["slug"], **common, **values).pk
        except Refused as refused:  # somebody else was faster
            if not change:
                raise
            self.message_user(request, str(refused), messages.ERROR)


@dataclass(frozen=True, slots=True)
class Line:
    """A change as it is shown: what, from, to. `words`: of what is no change of a setting."""

    event: Any
    words: str
    parts: Sequence[tuple[str, str, str]]


_DEEDS = {
    "created": gettext_noop("created"),
    "token_issued": gettext_noop("API token made: %(token)s"),
    "token_rotated": gettext_noop("API token replaced: %(token)s"),
    "token_revoked": gettext_noop("API token revoked: %(token)s"),
}


def _history(tenant: Tenant) -> list[Line]:
    labels = {field.name: str(field.verbose_name) for field in Tenant._meta.fields}  # noqa: SLF001  Django's documented meta API
    lines = []
    for event in tenant.events.select_related("actor").order_by("-pk")[:_HISTORY]:
        parts = [
            (labels.get(name, name), _shown(value[0]), _shown(value[1]))
            for name, value in event.data.items()
            if event.kind == "changed"
        ]
        words = "" if parts else _(_DEEDS.get(event.kind, event.kind)) % event.data
        lines.append(Line(event, words, parts))
    return lines


def _shown(value: Any) -> str:
    """Route ids and parts of a split by name."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ", ".join(tenancy.split_lines(value))
    if isinstance(value, list):
        found = Target.objects.in_bulk(value)
        return ", ".join(found[pk].name for pk in value if pk in found) or "—"
    return "—" if value in {None, ""} else str(value)
