"""tokens: those of other programs for the HTTP API. The admin's page, on the command line."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from jobs.clock import clock
from jobs.lifecycle import tokens
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.tokens import Issued
from jobs.management.who import EXIT_REFUSED, actor, bad_input
from jobs.models import ApiToken, Tenant


class Command(BaseCommand):
    help = (
        "List the tokens of the HTTP API, make one, replace or revoke it. A new token's text is printed once and kept "
        "nowhere. Exit codes: 0 done, 2 bad input, 3 refused (nothing was changed)."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parts = parser.add_subparsers(dest="what", required=True)
        listing = parts.add_parser("list", help="all of them, or a tenant's")
        listing.add_argument("--tenant", default="", help="short name")
        listing.add_argument("--json", action="store_true", dest="as_json")
        new = parts.add_parser("add", help="a new token")
        new.add_argument("tenant", help="short name")
        new.add_argument("--name", required=True, help="which program uses it")
        new.add_argument(
            "--scopes", default="submit,read", help="of submit, read, cancel; separated by commas"
        )
        new.add_argument("--per-minute", type=int, default=600, help="requests")
        new.add_argument("--days", type=float, default=None, help="it ends then; left out: never")
        rotate = parts.add_parser("rotate", help="a new one in its place; both work for a while")
        rotate.add_argument("--hours", type=float, default=24.0, help="that the old one goes on")
        revoke = parts.add_parser("revoke", help="it works no more")
        for part in (rotate, revoke):
            part.add_argument("prefix", help="how it begins, as the list shows it")
        for part in (new, rotate, revoke):
            part.add_argument("--as", dest="username", default="", help="whose decision it is")
            part.add_argument("--reason", default="", help="kept in the trail")

    def handle(self, **options: Any) -> None:
        try:
            getattr(self, f"_{options['what']}")(options)
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_REFUSED) from refused

    def _list(self, options: dict[str, Any]) -> None:
        rows = ApiToken.objects.select_related("tenant").order_by("tenant__slug", "-created_at")
        if options["tenant"]:
            rows = rows.filter(tenant=_tenant(options["tenant"]))
        now = clock.now()
        told = [_row(row, works=row.works(now)) for row in rows]
        if options["as_json"]:
            self.stdout.write(json.dumps({"tokens": told}, ensure_ascii=False))
            return
        for one in told:
            works = _("works") if one["works"] else _("works no more")
            self.stdout.write(
                f"{one['prefix']}  {one['tenant']:<16} {one['name']:<20} {','.join(one['scopes']):<20} {works}"
            )

    def _add(self, options: dict[str, Any]) -> None:
        who = actor(options["username"], "jobs.add_apitoken")
        scopes = [part.strip() for part in options["scopes"].split(",") if part.strip()]
        if not scopes or set(scopes) - set(ApiToken.Scope.values):
            raise bad_input(_("Scopes are submit, read and cancel."))
        now = clock.now()
        days = options["days"]
        self._print(
            tokens.issue(
                tenant=_tenant(options["tenant"]), name=options["name"], scopes=scopes, actor=who, now=now,
                per_minute=options["per_minute"], reason=options["reason"],
                expires_at=None if days is None else now + timedelta(days=days),
            )
        )  # fmt: skip

    def _rotate(self, options: dict[str, Any]) -> None:
        who = actor(options["username"], "jobs.rotate_apitoken")
        self._print(
            tokens.rotate(
                token_id=_token(options["prefix"]).pk, overlap=timedelta(hours=options["hours"]), actor=who,
                now=clock.now(), reason=options["reason"],
            )
        )  # fmt: skip

    def _revoke(self, options: dict[str, Any]) -> None:
        who = actor(options["username"], "jobs.revoke_apitoken")
        token = _token(options["prefix"])
        tokens.revoke(token_id=token.pk, actor=who, now=clock.now(), reason=options["reason"])
        self.stdout.write(_("Revoked: %(token)s") % {"token": token})

    def _print(self, issued: Issued) -> None:
        self.stdout.write(issued.text)


def _tenant(slug: str) -> Tenant:
    found = Tenant.objects.filter(slug=slug).first()
    if found is None:
        raise bad_input(_("There is no tenant “%(slug)s”.") % {"slug": slug})
    return found


def _token(prefix: str) -> ApiToken:
    found = ApiToken.objects.filter(prefix=prefix).first()
    if found is None:
        raise bad_input(_("There is no token that begins with “%(prefix)s”.") % {"prefix": prefix})
    return found


def _row(row: ApiToken, *, works: bool) -> dict[str, Any]:
    moments = {"expires_at": row.expires_at, "revoked_at": row.revoked_at, "last_used_at": row.last_used_at}  # fmt: skip
    return {
        "prefix": row.prefix,
        "tenant": row.tenant.slug,
        "name": row.name,
        "scopes": row.scopes,
        "per_minute": row.per_minute,
        "works": works,
        **{name: at.isoformat() if at else None for name, at in moments.items()},
    }
