"""From names to targets: which rows a route is made of."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from django.conf import settings
from django.utils.translation import gettext as _

from jobs.intake import InputError
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
                "price": Decimal(str(settings.AI_PRICE)),
                "currency": registry.adapter(provider).currency,
            },
        )
        targets.append(target)
    return targets


def resolve(names: Sequence[str]) -> list[Target]:
    """The targets of a route by name, in order; an empty list asks for the configured route.

    Raises InputError (field `target`) for a name that is not among the targets, is closed, or comes twice.
    """
    configured = ensure_configured()
    if not names:
        return configured
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
            why = target.stopped_reason or _("switched off by staff")
            raise InputError(
                "target", _("“%(name)s” is closed: %(why)s.") % {"name": name, "why": why}
            )
        if target in route:
            raise InputError("target", _("“%(name)s” stands in the route twice.") % {"name": name})
        route.append(target)
    return route
