"""What the owner sets of a tenant: its share, its limits, its money, its route and split. Who set what when stays on record.

A lowered limit stops new sends; what has been claimed by then goes on. A raised one lets waiting jobs go on at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypedDict, Unpack

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from jobs import bell, split
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.providers import Actor
from jobs.models import Tenant, TenantEvent
from providers.models import Target


class Settings(TypedDict, total=False):
    """What is not named stays as it is. Money in the tenant's currency; None: no such limit."""

    name: str
    max_in_flight: int | None
    weight: int
    daily_limit: Decimal | None
    monthly_limit: Decimal | None
    currency: str
    zone: str
    default_route: list[int]
    split: list[dict[str, int]]  # [{"target": id, "weight": n}, …], see jobs/split.py
    contact: str


def create(
    *, slug: str, actor: Actor, now: datetime, reason: str = "", **values: Unpack[Settings]
) -> Tenant:
    """A new tenant. Raises Refused where a value is wrong or the short name is taken."""
    with transaction.atomic():
        tenant = Tenant(slug=slug, **values)
        _check(tenant)
        tenant.save()
        _event(
            tenant, "created", _plain({"slug": slug, **values}), actor=actor, now=now, reason=reason
        )
    return tenant


def change(
    *, tenant_id: int, actor: Actor, now: datetime, reason: str = "", **values: Unpack[Settings]
) -> Tenant:
    """Set what is named. Raises Refused where nothing would change or a value is wrong."""
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant_id)
        before: dict[str, Any] = {name: getattr(tenant, name) for name in values}
        for name, value in values.items():
            setattr(tenant, name, value)
        _check(tenant)
        changed = [name for name, value in before.items() if getattr(tenant, name) != value]
        if not changed:
            raise Refused(_("Nothing was changed."))
        tenant.save(update_fields=changed)
        after = _plain({name: getattr(tenant, name) for name in changed})
        data = {name: [_plain(before)[name], value] for name, value in after.items()}
        _event(tenant, "changed", data, actor=actor, now=now, reason=reason)
        bell.ring()
    return tenant


def default_route(tenant: Tenant) -> list[Target]:
    """The open targets of its default route, in order; empty where it has none, or none of them is open now."""
    found = Target.objects.in_bulk(tenant.default_route)
    return [found[pk] for pk in tenant.default_route if pk in found and found[pk].open]


def _check(tenant: Tenant) -> None:
    try:
        tenant.full_clean(validate_constraints=False)
    except ValidationError as error:
        fields = {field.name: str(field.verbose_name) for field in Tenant._meta.fields}  # noqa: SLF001  Django's documented meta API
        raise Refused(
            " ".join(
                f"{fields.get(name, name)}: {' '.join(messages)}"
                for name, messages in error.message_dict.items()
            )
        ) from error
    known = set(Target.objects.filter(pk__in=tenant.default_route).values_list("pk", flat=True))
    if len(set(tenant.default_route)) != len(tenant.default_route):
        raise Refused(_("A target stands in the default route twice."))
    if known != set(tenant.default_route):
        raise Refused(_("A target of the default route is not known."))
    _check_split(tenant.split)


def _check_split(parts: list[dict[str, int]]) -> None:
    weights = split.weights(parts)
    if len(weights) != len(parts):
        raise Refused(_("A target stands in the split twice."))
    if len(weights) > split.MOST_TARGETS:
        raise Refused(_("At most %(n)s targets in a split.") % {"n": split.MOST_TARGETS})
    if not all(1 <= weight <= split.MOST_WEIGHT for weight in weights.values()):
        raise Refused(_("A weight is a whole number from 1 to %(n)s.") % {"n": split.MOST_WEIGHT})
    kinds = dict(Target.objects.filter(pk__in=weights).values_list("pk", "kind"))
    if set(kinds) != set(weights):
        raise Refused(_("A target of the split is not known."))
    if len(set(kinds.values())) > 1:
        raise Refused(_("The targets of a split must make the same: pictures, or texts."))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON: money as text."""
    return {
        name: str(value) if isinstance(value, Decimal) else value for name, value in values.items()
    }


def _event(
    tenant: Tenant,
    kind: str,
    data: Mapping[str, Any],
    *,
    actor: Actor,
    now: datetime,
    reason: str,
) -> None:
    TenantEvent.objects.create(
        tenant=tenant, kind=kind, at=now, data=dict(data), reason=reason.strip(),
        actor_id=actor.pk if actor else None,
    )  # fmt: skip
