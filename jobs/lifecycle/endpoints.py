"""Where a tenant's programs hear of its jobs: its own address, and the secret that signs. Who set what stays on record."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from jobs import callbacks
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.providers import Actor
from jobs.models import Endpoint, Tenant, TenantEvent


def default_url(tenant: Tenant) -> str:
    """The address of whatever names none; "" for nobody."""
    urls = Endpoint.objects.filter(tenant=tenant).values_list("url", flat=True)
    return urls.first() or ""


def set_url(*, tenant_id: int, url: str, actor: Actor, now: datetime, reason: str = "") -> None:
    """The address of what is made from now on; "" for none. What exists keeps its own. Raises Refused."""
    if url.strip():
        try:
            url = callbacks.check_url(url, allowed=settings.CALLBACK_ALLOW)
        except callbacks.BadUrlError as error:
            raise Refused(str(error)) from error
    with transaction.atomic():
        row = _locked(tenant_id)
        before, after = row.url, url.strip()
        if before == after:
            raise Refused(_("Nothing was changed."))
        Endpoint.objects.filter(pk=row.pk).update(url=after)
        change = [callbacks.shown(before), callbacks.shown(after)]
        _tell(tenant_id, "callback_url", change, actor=actor, now=now, reason=reason)


def rotate(*, tenant_id: int, actor: Actor, now: datetime, reason: str = "") -> None:
    """A new secret signs from now on; for a day the one before signs too, so that receivers can be changed in peace."""
    with transaction.atomic():
        row = _locked(tenant_id)
        Endpoint.objects.filter(pk=row.pk).update(generation=row.generation + 1, rotated_at=now)
        change = [str(row.generation), str(row.generation + 1)]
        _tell(tenant_id, "callback_secret", change, actor=actor, now=now, reason=reason)


def reveal(*, tenant_id: int, actor: Actor, now: datetime) -> str:
    """The secret in force, for the tenant's people. That it was shown is on record."""
    with transaction.atomic():
        row = _locked(tenant_id)
        change = [str(row.generation), _("shown")]
        _tell(tenant_id, "callback_secret", change, actor=actor, now=now, reason="")
    return callbacks.secret_text(
        callbacks.secret(tenant_id=tenant_id, generation=row.generation)
    )  # fmt: skip


def _locked(tenant_id: int) -> Endpoint:
    if not Tenant.objects.filter(pk=tenant_id).exists():
        raise Refused(_("There is no such tenant."))
    Endpoint.objects.bulk_create([Endpoint(tenant_id=tenant_id)], ignore_conflicts=True)
    return Endpoint.objects.select_for_update(no_key=True).get(pk=tenant_id)


def _tell(
    tenant_id: int, what: str, change: list[str], *, actor: Actor, now: datetime, reason: str
) -> None:
    TenantEvent.objects.create(
        tenant_id=tenant_id, kind="changed", at=now, data={what: change}, reason=reason.strip(),
        actor_id=actor.pk if actor else None,
    )  # fmt: skip
