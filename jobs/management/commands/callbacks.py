"""callbacks: what other programs were told, and what they would not take, from the command line."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q
from django.utils.translation import gettext as _

from jobs import callbacks
from jobs.admin import callback_verbs
from jobs.clock import clock
from jobs.lifecycle import callbacks as outbox
from jobs.lifecycle import endpoints
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_REFUSED, actor, bad_input
from jobs.models import Callback, Tenant
from jobs.models.callback import WAITS

_LIST_LIMIT = 50
_STATES = {
    "waiting": WAITS,
    "delivered": Q(delivered_at__isnull=False),
    "given_up": Q(given_up_at__isnull=False),
}


class Command(BaseCommand):
    help = (
        "Callbacks: list them, send given-up ones again, set a tenant's address, show or change its secret. Exit codes: "
        "0 done, 2 bad input, 3 refused (nothing was changed)."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parts = parser.add_subparsers(dest="what", required=True)
        listing = parts.add_parser("list", help="the newest first")
        listing.add_argument("--state", choices=list(_STATES))
        listing.add_argument("--tenant", default="", help="short name")
        listing.add_argument("--limit", type=int, default=_LIST_LIMIT, help="at most so many")
        listing.add_argument("--json", action="store_true", dest="as_json")
        again = parts.add_parser("replay", help="send one again, or all of a case")
        again.add_argument("id", type=int, help="number of the callback; with --case, of the case")
        again.add_argument("--case", action="store_true", help="the number is that of a case")
        url = parts.add_parser("url", help="where a tenant hears of jobs that name no address")
        url.add_argument("tenant", help="short name")
        url.add_argument("url", help='like https://shop.example/hook; "" for nowhere')
        rotate = parts.add_parser("rotate", help="a new secret signs; the old one too for a day")
        rotate.add_argument("tenant", help="short name")
        secret = parts.add_parser("secret", help="show the secret in force")
        secret.add_argument("tenant", help="short name")
        for part in (again, url, rotate, secret):
            part.add_argument("--as", dest="username", default="", help="whose decision it is")
        for part in (url, rotate):
            part.add_argument("--reason", default="", help="kept in the trail")

    def handle(self, **options: Any) -> None:
        try:
            getattr(self, f"_{options['what']}")(options)
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_REFUSED) from refused

    def _list(self, options: dict[str, Any]) -> None:
        rows = Callback.objects.select_related("tenant", "job", "batch").order_by("-pk")
        if options["state"]:
            rows = rows.filter(_STATES[options["state"]])
        if options["tenant"]:
            rows = rows.filter(tenant=_tenant(options["tenant"]))
        told = [_row(row) for row in rows[: options["limit"]]]
        if options["as_json"]:
            self.stdout.write(json.dumps({"callbacks": told}, ensure_ascii=False))
            return
        for one in told:
            about = f"job #{one['job']}" if one["job"] else f"batch #{one['batch']}"
            self.stdout.write(
                f"{one['id']:<7} {one['kind']:<16} {about:<14} {one['state']:<10} {one['tries']:<4} {one['url']}  {one['trouble']}".rstrip()
            )
        if not told:
            self.stdout.write(_("No callbacks."))

    def _replay(self, options: dict[str, Any]) -> None:
        by, now = actor(options["username"], callback_verbs.REPLAY.permission), clock.now()
        count = 1
        if options["case"]:
            count = outbox.replay_case(case_id=options["id"], actor=by, now=now)
        else:
            outbox.replay(callback_id=options["id"], actor=by, now=now)
        self.stdout.write(_("%(n)s to be sent again.") % {"n": count})

    def _url(self, options: dict[str, Any]) -> None:
        by = actor(options["username"], callback_verbs.SET_URL.permission)
        tenant = _tenant(options["tenant"])
        endpoints.set_url(
            tenant_id=tenant.pk, url=options["url"], actor=by, now=clock.now(), reason=options["reason"]
        )  # fmt: skip
        self.stdout.write(_("The address is set."))

    def _rotate(self, options: dict[str, Any]) -> None:
        by = actor(options["username"], callback_verbs.ROTATE.permission)
        tenant = _tenant(options["tenant"])
        endpoints.rotate(tenant_id=tenant.pk, actor=by, now=clock.now(), reason=options["reason"])
        self.stdout.write(_("A new secret signs. Give it to the tenant's people."))

    def _secret(self, options: dict[str, Any]) -> None:
        by = actor(options["username"], "jobs.reveal_endpoint")
        tenant = _tenant(options["tenant"])
        self.stdout.write(endpoints.reveal(tenant_id=tenant.pk, actor=by, now=clock.now()))


def _tenant(slug: str) -> Tenant:
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise bad_input(_("There is no tenant “%(name)s”.") % {"name": slug})
    return tenant


def _row(row: Callback) -> dict[str, Any]:
    state = "delivered" if row.delivered_at else "given_up" if row.given_up_at else "waiting"
    return {
        "id": row.pk,
        "message": callbacks.message_id(row.message),
        "kind": row.kind,
        "tenant": row.tenant.slug,
        "job": row.job_id,
        "batch": row.batch_id,
        "url": callbacks.shown(row.url),
        "state": state,
        "tries": row.tries,
        "at": row.at.isoformat() if row.at else None,
        "next_try": row.not_before.isoformat() if row.not_before else None,
        "status": row.status,
        "trouble": row.trouble,
        "case": row.case_id,
    }
