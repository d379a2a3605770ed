"""tenants: what each may spend, has spent and is held by; and setting it. The admin's page, on the command line."""

from __future__ import annotations

import argparse
import json
import sys
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from jobs import tenancy
from jobs.clock import clock
from jobs.intake import InputError
from jobs.lifecycle import tenants
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_REFUSED, actor, bad_input
from jobs.models import Tenant
from jobs.tenancy import View
from providers import registry
from providers.models import Target

_NONE = "none"
_PERMISSIONS = {
    "add": "jobs.add_tenant",
    "set": "jobs.change_tenant",
    "split": "jobs.change_tenant",
}


class Command(BaseCommand):
    help = (
        "Show tenants with their money, make one, or set what one may spend. Exit codes: 0 done, 2 bad input (nothing was "
        "changed), 3 refused."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
        parts = parser.add_subparsers(dest="what")
        for name, help_text in (
            ("list", "tenants with their places and money (default)"),
            ("add", "a new tenant"),
            ("set", "what is named is set, the rest stays"),
            ("split", "which target comes first, a share of the jobs for each by weight"),
        ):
            part = parts.add_parser(name, help=help_text)
            part.add_argument("--json", action="store_true", dest="as_json", default=argparse.SUPPRESS, help="print JSON")  # fmt: skip
            if name == "split":
                _who_options(part)
                part.add_argument("parts", nargs="+", help="target=weight, like polza:a=70 fal:b=30; none: no split")  # fmt: skip
            elif name != "list":
                _setting_options(part)

    def handle(self, **options: Any) -> None:
        if options["what"] in {None, "list"}:
            self._show(
                tenancy.views(list(Tenant.objects.order_by("name", "pk")), now=clock.now()), options
            )
        else:
            self._set(options)  # fmt: skip

    def _show(self, views: list[View], options: dict[str, Any]) -> None:
        if options["as_json"]:
            told = {"tenants": [tenancy.plain(view) for view in views]}
            self.stdout.write(json.dumps(told, ensure_ascii=False))
            return
        for view in views:
            for line in _lines(view):
                self.stdout.write(line)
        if not views:
            self.stdout.write(_("No tenants yet"))

    def _set(self, options: dict[str, Any]) -> None:
        by = actor(options["username"], _PERMISSIONS[options["what"]])
        values = _split(options["parts"]) if options["what"] == "split" else _values(options)
        try:
            if options["what"] == "add":
                values.setdefault("name", options["slug"])
                tenant = tenants.create(
                    slug=options["slug"],
                    actor=by,
                    now=clock.now(),
                    reason=options["reason"],
                    **values,
                )
            else:
                tenant = tenants.change(
                    tenant_id=_known(options["slug"]).pk, actor=by, now=clock.now(), reason=options["reason"], **values
                )  # fmt: skip
        except Refused as refused:
            if options["as_json"]:
                self.stdout.write(json.dumps({"done": False, "refused": str(refused)}))
            else:
                self.stderr.write(str(refused))
            sys.exit(EXIT_REFUSED)
        self._show(tenancy.views([tenant], now=clock.now()), options)


def _who_options(part: argparse.ArgumentParser) -> None:
    part.add_argument("slug", help="its short name")
    part.add_argument("--as", dest="username", default="", help="whose decision it is")
    part.add_argument("--reason", default="", help="kept in the trail")


def _setting_options(part: argparse.ArgumentParser) -> None:
    _who_options(part)
    part.add_argument("--name", help="its name for people")
    part.add_argument("--contact", help="who is asked about its money")
    part.add_argument("--weight", type=int, help="1 to 100: its share where tenants compete")
    part.add_argument("--in-flight", dest="max_in_flight", help="most in flight; none: no such limit")  # fmt: skip
    part.add_argument("--daily", dest="daily_limit", help="money; none: no such limit")
    part.add_argument("--monthly", dest="monthly_limit", help="money; none: no such limit")
    part.add_argument("--currency", help="of its limits, like RUB")
    part.add_argument("--zone", help="where its day and month begin, like Europe/Moscow")
    part.add_argument("--route", dest="default_route", help="targets, comma-separated; none: the configured route")  # fmt: skip


def _values(options: dict[str, Any]) -> dict[str, Any]:
    values = {
        name: options[name]
        for name in ("name", "contact", "weight", "currency", "zone")
        if options[name] is not None
    }
    if (most := options["max_in_flight"]) is not None:
        values["max_in_flight"] = None if most == _NONE else _count(most)
    for name in ("daily_limit", "monthly_limit"):
        if (most := options[name]) is not None:
            values[name] = None if most == _NONE else _amount(most)
    if (route := options["default_route"]) is not None:
        values["default_route"] = [] if route == _NONE else [_target(name) for name in route.split(",")]  # fmt: skip
    return values


def _split(parts: list[str]) -> dict[str, Any]:
    try:
        return {"split": [] if parts == [_NONE] else tenancy.parse_split(parts)}
    except InputError as error:
        raise bad_input(error.message) from None


def _known(slug: str) -> Tenant:
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise bad_input(_("There is no tenant “%(name)s”.") % {"name": slug})
    return tenant


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise bad_input(_("“%(text)s” is no number.") % {"text": text})
    return int(text)


def _amount(text: str) -> Decimal:
    try:
        amount = Decimal(text.replace(",", "."))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise bad_input(_("“%(text)s” is no amount of money.") % {"text": text})
    return amount


def _target(name: str) -> int:
    provider, model = registry.split_target(name)
    target = Target.objects.filter(provider=provider, model=model).first()
    if target is None:
        raise bad_input(_("“%(name)s” is not a target.") % {"name": name.strip()})
    return target.pk


def _lines(view: View) -> list[str]:
    tenant = view.tenant
    most = "—" if tenant.max_in_flight is None else tenant.max_in_flight
    places = _("weight %(weight)s, in flight %(n)s of %(most)s, waiting %(waiting)s") % {
        "weight": tenant.weight, "n": view.in_flight, "most": most, "waiting": view.waiting,
    }  # fmt: skip
    lines = [f"{tenant.slug}  {tenant.name}  {places}"]
    lines += [
        f"  {tenancy.period_words(limit.period)}: {tenancy.limit_words(limit, tenant.currency)}"
        for limit in view.budget.limits
    ]
    if not view.budget.limits:
        lines.append("  " + _("no limit"))
    if view.parts:
        lines.append("  " + _("split: %(parts)s") % {"parts": ", ".join(part.words for part in view.parts)})  # fmt: skip
    if view.words:
        lines.append("  " + view.words)
    return lines
