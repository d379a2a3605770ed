"""Where a job goes: the targets that are named, else the tenant's default route, else the configured one; with a split, the
target that is drawn by the tenant's weights comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.utils.translation import gettext as _

from jobs import split
from jobs.intake import InputError
from jobs.models import Tenant
from providers import registry
from providers.models import Target


def default_names() -> list[str]:
    """The configured route: AI_MODEL (or the provider's default) and then AI_MODEL_FALLBACK, as `provider:model`."""
    names = [
        settings.AI_MODEL or registry.adapter(settings.AI_PROVIDER).default_model,
        *settings.AI_MODEL_FALLBACK,
    ]
    return [":".join(registry.split_target(name)) for name in names]


def ensure_configured() -> list[Target]:
    """The rows of the configured route, made where they are missing; one that staff have changed stays as it is."""
    targets = []
    for name in default_names():
        provider, model = registry.split_target(name)
        target, _made = Target.objects.get_or_create(
            provider=provider,
            model=model,
            defaults={
                "price": _usual_price(provider),
                "currency": registry.adapter(provider).currency,
            },
        )
        targets.append(target)
    return targets


def _usual_price(provider: str) -> Decimal:
    """AI_PRICE is in the currency of AI_PROVIDER's provider."""
    speaks = registry.adapter(provider)
    if speaks is registry.adapter(settings.AI_PROVIDER):
        return Decimal(str(settings.AI_PRICE))
    return speaks.default_price


@dataclass(frozen=True, slots=True)
class Routing:
    """Where jobs go that ask for the same. `shares`: open targets with their weights, one of which comes first, drawn for each
    job; none: all take `route`. `whose`: the tenant's id, so that two tenants draw apart."""

    route: Sequence[Target]
    shares: Sequence[tuple[Target, int]] = ()
    whose: int = 0

    def of(self, key: str) -> list[Target]:
        """The route of one job. `key`: what tells it from others, the same whenever it is asked for again."""
        if not self.shares:
            return list(self.route)
        weights = {target.pk: weight for target, weight in self.shares}
        drawn = split.draw(weights, key=f"{self.whose} {key}")
        return self._from(next(target for target, _weight in self.shares if target.pk == drawn))

    def ways(self) -> list[list[Target]]:
        """Each route that one of its jobs may take."""
        return [self._from(target) for target, _weight in self.shares] or [list(self.route)]

    def _from(self, drawn: Target) -> list[Target]:
        """The drawn one stands for the first of the default route, whose fallbacks stay. Only where it is one of them itself
        is the first a fallback too: nothing falls back to where nobody said so."""
        others = self.route if drawn in self.route else self.route[1:]
        return [drawn, *(target for target in others if target != drawn and target.open)]


def routing(names: Sequence[str], *, tenant: Tenant | None = None) -> Routing:
    """Where jobs go that name these targets, in order. No names: by the split and the default route of the tenant; where it
    has none, or nobody is given, the configured route.

    Raises InputError (field `target`) for a name that is not among the targets, is closed, or comes twice, and where the
    tenant's split or default route can't be used.
    """
    configured = ensure_configured()
    if names:
        return Routing(_named(names))
    if tenant is None:
        return Routing(configured)
    return _routing_of(tenant, known=Target.objects.in_bulk(_ids(tenant)), configured=configured)


def resolve(names: Sequence[str], *, tenant: Tenant | None = None, key: str = "") -> list[Target]:
    """The route of one job; raises as `routing` does. With a split the `key` draws."""
    return routing(names, tenant=tenant).of(key)


def defaults(tenants: Iterable[Tenant]) -> dict[int, Routing | InputError]:
    """By tenant's id: where its jobs go that name no target, or why nothing can be made without naming one."""
    configured = ensure_configured()
    rows = list(tenants)
    known = Target.objects.in_bulk({pk for tenant in rows for pk in _ids(tenant)})
    found: dict[int, Routing | InputError] = {}
    for tenant in rows:
        try:
            found[tenant.pk] = _routing_of(tenant, known=known, configured=configured)
        except InputError as error:
            found[tenant.pk] = error
    return found


def _ids(tenant: Tenant) -> list[int]:
    return [*tenant.default_route, *split.weights(tenant.split)]


def _routing_of(
    tenant: Tenant, *, known: Mapping[int, Target], configured: Sequence[Target]
) -> Routing:
    """Closed targets of a split drop out with their share. All closed: InputError, as nobody asked for another picture."""
    weights = split.weights(tenant.split)
    if not weights:
        return Routing(default_of(tenant, known=known) if tenant.default_route else configured)
    shares = [(known[pk], n) for pk, n in weights.items() if pk in known and known[pk].open]
    if not shares:
        names = ", ".join(known[pk].name if pk in known else f"#{pk}" for pk in weights)
        text = _(
            "The split of %(tenant)s can't be used: all of its targets are closed (%(names)s). Name a target, or have the"
            " split of the tenant changed."
        )
        raise InputError("target", text % {"tenant": tenant.name, "names": names})
    route = [known[pk] for pk in tenant.default_route if pk in known] or configured
    return Routing(route, shares, tenant.pk)


def default_of(tenant: Tenant, *, known: Mapping[int, Target]) -> list[Target]:
    """The default route that the tenant has, made of the targets in `known`. Pure.

    A fallback that is closed is left out, as a job that came to it would only wait there. The first target never is: to
    start with another would be another picture at another price, which nobody asked for. Then InputError says so.
    """
    first = known.get(tenant.default_route[0])
    if first is not None and first.open:
        return [known[pk] for pk in tenant.default_route if pk in known and known[pk].open]
    names = [known[pk].name if pk in known else f"#{pk}" for pk in tenant.default_route]
    words = {"tenant": tenant.name, "route": " → ".join(names), "target": names[0]}
    if first is None:
        text = _(
            "The default route of %(tenant)s, %(route)s, can't be used: %(target)s is gone. Name a target, or have the"
            " route of the tenant changed."
        )
        raise InputError("target", text % words)
    text = _(
        "The default route of %(tenant)s, %(route)s, can't be used: %(target)s is closed (%(why)s). Name a target, or"
        " have the route of the tenant changed."
    )
    raise InputError("target", text % {**words, "why": _why_closed(first)})


def _named(names: Sequence[str]) -> list[Target]:
    route: list[Target] = []
    for name in names:
        provider, model = registry.split_target(name)
        target = Target.objects.filter(provider=provider, model=model).first()
        if target is None:
            known = ", ".join(sorted(t.name for t in Target.objects.filter(enabled=True)[:20]))
            raise InputError(
                "target",
                _("“%(name)s” is not a target. There are: %(known)s.")
                % {"name": name, "known": known},
            )
        if not target.open:
            why = _why_closed(target)
            raise InputError(
                "target", _("“%(name)s” is closed: %(why)s.") % {"name": name, "why": why}
            )
        if target in route:
            raise InputError("target", _("“%(name)s” stands in the route twice.") % {"name": name})
        route.append(target)
    return route


def _why_closed(target: Target) -> str:
    return target.stopped_reason or _("switched off by staff")
