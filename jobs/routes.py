"""Where a job goes: the targets that are named, else the tenant's default route, else the configured one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from django.conf import settings
from django.utils.translation import gettext as _

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


def resolve(names: Sequence[str], *, tenant: Tenant | None = None) -> list[Target]:
    """The targets of a route by name, in order. No names: the default route of the tenant; where it has none, or nobody is
    given, the configured one.

    Raises InputError (field `target`) for a name that is not among the targets, is closed, or comes twice, and where the
    tenant's default route can't be used.
    """
    configured = ensure_configured()
    if names:
        return _named(names)
    if tenant is None or not tenant.default_route:
        return configured
    return default_of(tenant, known=Target.objects.in_bulk(tenant.default_route))


def defaults(tenants: Iterable[Tenant]) -> dict[int, list[Target] | InputError]:
    """By tenant's id: where its jobs go that name no target, or why nothing can be made without naming one."""
    configured = ensure_configured()
    rows = list(tenants)
    known = Target.objects.in_bulk({pk for tenant in rows for pk in tenant.default_route})
    found: dict[int, list[Target] | InputError] = {}
    for tenant in rows:
        try:
            found[tenant.pk] = default_of(tenant, known=known) if tenant.default_route else configured  # fmt: skip
        except InputError as error:
            found[tenant.pk] = error
    return found


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
