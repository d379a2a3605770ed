"""The choice of a tenant and a target for new jobs, and the line below it that tells where they go and for how much.

Each tenant has a route of its own, so each option tells its own; a script only moves the chosen one's words to the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.utils.translation import get_language_bidi, gettext_lazy
from django.utils.translation import gettext as _

from jobs import routes, written
from jobs.intake import InputError
from jobs.models import Tenant
from jobs.routes import Routing
from providers.models import Target


@dataclass(frozen=True, slots=True)
class Line:
    """Where jobs go. `whose` says why there, "" for a named target; `trouble` why none can be made."""

    whose: str = ""
    route: str = ""
    price: str = ""
    trouble: str = ""


class LineSelect(forms.Select):
    """A select whose options carry their lines, for route.js."""

    lines: Mapping[str, Line] = {}

    def create_option(
        self, name: str, value: Any, label: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        option: dict[str, Any] = super().create_option(name, value, label, *args, **kwargs)
        line = self.lines.get(str(value))
        if line is not None:
            option["attrs"] |= {
                "data-whose": line.whose,
                "data-route": line.route,
                "data-price": line.price,
                "data-trouble": line.trouble,
            }
        return option


class TargetField(forms.ModelChoiceField):  # type: ignore[type-arg]  # not subscriptable at run time
    """The open targets; none chosen: the tenant's default route."""

    widget = LineSelect

    def __init__(self, **kwargs: Any) -> None:
        values = {"label": gettext_lazy("Target"), "empty_label": gettext_lazy("the tenant's default route")}  # fmt: skip
        super().__init__(queryset=Target.objects.none(), required=False, **values | kwargs)

    def offer(self) -> None:
        self.queryset = Target.objects.filter(enabled=True, stopped_at__isnull=True).order_by(
            "provider", "model"
        )
        _select(self).lines = {str(target.pk): _line(Routing([target])) for target in self.queryset}


class TenantField(forms.ModelChoiceField):  # type: ignore[type-arg]  # not subscriptable at run time
    """Each tenant with its default route behind its name."""

    widget = LineSelect

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            label=gettext_lazy("Tenant"), queryset=Tenant.objects.none(), empty_label=None, **kwargs
        )

    def offer(self) -> None:
        self.queryset = Tenant.objects.order_by("name")
        tenants = list(self.queryset)
        found = routes.defaults(tenants)
        _select(self).lines = {
            str(tenant.pk): _line(found[tenant.pk], whose=tenant) for tenant in tenants
        }

    def label_from_instance(self, obj: Any) -> str:
        line = _select(self).lines.get(str(obj.pk), Line())
        return f"{obj.name} · {line.route or _('its default route is closed')}"


def offer(form: forms.Form) -> None:
    """Read what there is to choose from, once a form. Tenants first: that look makes the configured target where it is missing."""
    fields = list(form.fields.values())
    for kind in (TenantField, TargetField):
        for field in fields:
            if isinstance(field, kind):
                field.offer()


def whose_words(tenant: Tenant) -> str:
    """Which route that of a job of the tenant is that names no target."""
    if tenant.split:
        return _("split of %(tenant)s") % {"tenant": tenant.name}
    words = _("default route of %(tenant)s") if tenant.default_route else _("the configured route; %(tenant)s has none of its own")  # fmt: skip
    return words % {"tenant": tenant.name}


def chosen(form: forms.Form) -> Line:
    """The line of what is chosen in the form as it stands; an empty one for nonsense."""
    for name in ("target", "tenant"):
        if value := form[name].value():
            return _select(form.fields[name]).lines.get(str(value), Line())
    return Line()


def _select(field: forms.Field) -> LineSelect:
    return cast("LineSelect", field.widget)


def _line(found: Routing | InputError, *, whose: Tenant | None = None) -> Line:
    if isinstance(found, InputError):
        return Line(trouble=found.message)
    ways = found.ways()
    # In right-to-left text the names of a route would stand in the wrong order; an isolate keeps it.
    names = [" → ".join(target.name for target in way) for way in ways]
    shown = [f"\u2066{name}\u2069" for name in names] if get_language_bidi() else names
    if found.shares:
        whole = sum(weight for _target, weight in found.shares)
        weights = [weight for _target, weight in found.shares]
        shown = [
            f"{written.percent(weight, whole)} {name}"
            for name, weight in zip(shown, weights, strict=True)
        ]
    prices = [written.both(way[0].price, way[0].currency, estimate=True) for way in ways]
    return Line(
        whose=whose_words(whose) if whose else "",
        route=" · ".join(shown),
        price=_("%(price)s a picture") % {"price": " / ".join(dict.fromkeys(prices))},
    )
