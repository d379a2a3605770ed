"""providers: the panel on the command line, and what staff may do about a provider."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import available_timezones

from django.contrib.auth.models import AbstractBaseUser
from django.core.management.base import BaseCommand
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from jobs import balance, panel, written
from jobs.admin import provider_verbs
from jobs.clock import clock
from jobs.lifecycle import limits, providers
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_REFUSED, actor, bad_input
from jobs.panel import AccountView, Closed, ModelView, Panel
from providers.models import Account, QuotaWindow
from providers.word import Told, Usage

EXIT_UNREAD = 3
_LENGTHS = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "once": None}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AHEAD = re.compile(r"\+(\d{1,6})([smhd])")
_VERBS = {
    "probe": "the next try is due now: a free read where there is one, then one job",
    "topped-up": "read the balance, for nothing; if it pays for a generation, quota blocks end",
    "block": "send nothing there until a time",
    "unblock": "end a block, whoever made it",
    "pause": "send nothing there until somebody resumes",
    "resume": "end the pause",
    "limit": "a target's most in flight, or with --window a quota window",
    "open": "open a target that the provider called wrong",
    "silence": "send no alerts about the account; --off sends them again",
}


class Command(BaseCommand):
    help = (
        "Show each account and model as the panel does, or do something about one. Exit codes: 0 done, "
        "2 bad input (nothing was changed), 3 refused, or a balance could not be read."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _show_options(parser, top=True)
        parts = parser.add_subparsers(dest="what")
        _show_options(parts.add_parser("list", help="states, limits, outcomes, money (default)"))
        for name, help_text in _VERBS.items():
            verb = parts.add_parser(name, help=help_text)
            verb.add_argument("account", help="provider, or the end of the key's fingerprint")
            verb.add_argument("--json", action="store_true", dest="as_json", default=argparse.SUPPRESS)  # fmt: skip
            verb.add_argument("--as", dest="username", default="", help="whose decision it is")
            if name not in {"topped-up", "silence"}:
                verb.add_argument("--model", default="", help="one model; empty: the whole account")
            if name in {"block", "pause", "limit"}:
                verb.add_argument("--reason", default="", help="kept in the trail; of a block or a pause shown on the panel")  # fmt: skip
            if name == "block":
                verb.add_argument("--until", required=True, help="2026-12-01T09:00, or +90m, +2h, +1d")  # fmt: skip
            if name == "limit":
                _limit_options(verb)
            if name == "silence":
                verb.add_argument("--off", action="store_true", help="send its alerts again")

    def handle(self, **options: Any) -> None:
        if options["what"] in {None, "list"}:
            self._list(options)
        else:
            self._do(options)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _list(self, options: dict[str, Any]) -> None:
        now = clock.now()
        troubles = _read_balances(now) if options["balance"] else {}
        shown = panel.read(now=now)
        if options["as_json"]:
            told = panel.plain(shown)
            for row in told["accounts"]:
                if row["id"] in troubles:
                    row["balance_trouble"] = troubles[row["id"]]
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        else:
            self._print(shown, troubles)
        if troubles:
            sys.exit(EXIT_UNREAD)

    def _print(self, shown: Panel, troubles: Mapping[int, str]) -> None:
        self.stdout.write(
            _("In flight: %(n)s of %(most)s") % {"n": shown.in_flight, "most": shown.limit}
        )
        for account in shown.accounts:
            for line in _account_lines(account, troubles.get(account.id, ""), shown.now):
                self.stdout.write(line)
        if not shown.accounts:
            self.stdout.write(_("No account has been used yet."))

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _do(self, options: dict[str, Any]) -> None:
        by = actor(options["username"], _permission(options))
        account = _chosen(panel.read(now=clock.now(), counts=False), options["account"])
        model = _chosen_model(account, options.get("model", ""))
        verb = _verb(options, account, model, by)
        refused = ""
        try:
            verb(clock.now())
        except Refused as said:
            refused = str(said)
        now = clock.now()
        after = _chosen(panel.read(now=now, counts=False), account.fingerprint)
        place = after if model is None else _chosen_model(after, model.model) or after
        if options["as_json"]:
            told = {
                "what": options["what"], "place": place.name, "done": not refused, "refused": refused,
                "word": place.told.word.value, "words": place.words(now),
            }  # fmt: skip
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        else:
            self.stdout.write(
                f"{place.name}  {options['what']}: {refused or _('done')}; {place.words(now)}"
            )
        if refused:
            sys.exit(EXIT_REFUSED)


def _show_options(parser: argparse.ArgumentParser, *, top: bool = False) -> None:
    """The same before and after `list`; what stands before it is not forgotten after it."""
    default = False if top else argparse.SUPPRESS
    parser.add_argument("--json", action="store_true", dest="as_json", default=default, help="print JSON")  # fmt: skip
    parser.add_argument(
        "--balance",
        action="store_true",
        default=default,
        help="ask each account what money is left (free)",
    )


def _permission(options: dict[str, Any]) -> str:
    """That of the panel's verb of the same name."""
    if options["what"] == "limit" and options["window"]:
        return provider_verbs.CHANGE.permission
    verbs = {verb.name: verb for verb in provider_verbs.OF_PLACE}
    return verbs[options["what"]].permission


def _limit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most", required=True, help="a number; none: no such limit")
    parser.add_argument("--window", default="", help="minute, hour, day, week, once, or seconds")
    parser.add_argument("--anchor", default="", help="a moment at which the window started anew; without one it rolls")  # fmt: skip
    parser.add_argument("--zone", default="UTC", help="time zone of the anchor's wall clock")


# --- words ------------------------------------------------------------------------------------------------------------


def _account_lines(account: AccountView, trouble: str, now: datetime) -> list[str]:
    key = "" if account.key_set else " " + _("(no key is set for it)")
    lines = [
        f"{account.name}{key}: {_sentence(account.words(now), account.told, now)}; {_flight(account)}"
    ]
    if account.accepted_at is not None:
        lines.append("  " + _("key last accepted %(ago)s") % {"ago": written.ago(account.accepted_at, now)})  # fmt: skip
    if account.next_try_at is not None:
        lines.append("  " + _("next try %(when)s") % {"when": written.ago(account.next_try_at, now)})  # fmt: skip
    money = account.money
    if money.balance is not None:
        words = f"  {_('balance')}: {written.money(money.balance, money.currency)}"
        if money.spent:
            words += "; " + _("%(money)s in 24 h") % {"money": written.totals(money.spent)}
        if money.lasts_s is not None:
            words += "; " + _("lasts about %(time)s") % {"time": written.short(money.lasts_s)}
        lines.append(words)
    if trouble:
        lines.append(f"  {_('balance')}: {trouble}")
    if account.alerts_silenced:
        lines.append("  " + _("alerts silenced"))
    lines += [_window_line(window, now) for window in account.windows]
    for model in account.models:
        lines.append(f"  {model.name}: {_model_words(model, now)}; {_flight(model)}")
        lines += ["  " + _window_line(window, now) for window in model.windows]
    return lines


def _model_words(model: ModelView, now: datetime) -> str:
    if model.closed is Closed.NO:
        return _sentence(model.words(now), model.told, now)
    parts = [model.words(now)]
    if model.closed_at is not None:
        parts.append(_("since %(at)s") % {"at": written.exact(model.closed_at)})
    return ", ".join([*parts, *filter(None, [model.closed_reason])])


def _sentence(words: str, told: Told, now: datetime) -> str:
    parts = [words]
    if told.since is not None:
        parts.append(_("since %(at)s") % {"at": written.exact(told.since)})
    return ", ".join([*parts, *filter(None, [told.reason])])


def _flight(place: AccountView | ModelView) -> str:
    most = "-" if place.limit is None else place.limit
    parts = [f"{place.in_flight}/{most} {_('in flight')}"]
    told = place.outcomes
    if told.total:
        counts = {
            _("succeeded"): told.succeeded, _("refused"): told.refused, _("failed"): told.failed,
            _("unknown"): told.unknown,
        }  # fmt: skip
        last = ", ".join(f"{n} {words}" for words, n in counts.items() if n)
        parts.append(_("last hour: %(what)s") % {"what": last})
    return "; ".join(parts)


def _window_line(usage: Usage, now: datetime) -> str:
    per = _("at once") if usage.seconds is None else _("in %(time)s") % {"time": written.duration(usage.seconds)}  # fmt: skip
    words = _("%(used)s of %(most)s %(per)s") % {"used": usage.used, "most": usage.most, "per": per}
    if usage.resets_at is not None:
        words += ", " + written.until(usage.resets_at, now)
    return f"  {words}"


# --- choosing ---------------------------------------------------------------------------------------------------------


def _chosen(shown: Panel, name: str) -> AccountView:
    """By provider or the end of the fingerprint. Of several keys of a provider the one that is set is meant."""
    wanted = name.strip().lstrip("…").lower()
    found = [one for one in shown.accounts if one.provider == wanted]
    if len(found) > 1:
        found = [one for one in found if one.key_set] or found
    if not found and len(wanted) >= 4:
        found = [one for one in shown.accounts if one.fingerprint.endswith(wanted)]
    if not found:
        known = ", ".join(one.name for one in shown.accounts) or _("none")
        raise bad_input(_("There is no account “%(name)s”. Known: %(known)s.") % {"name": name, "known": known})  # fmt: skip
    if len(found) > 1:
        names = ", ".join(one.fingerprint for one in found)
        raise bad_input(_("“%(name)s” may be any of %(names)s: say which key.") % {"name": name, "names": names})  # fmt: skip
    return found[0]


def _chosen_model(account: AccountView, name: str) -> ModelView | None:
    if not name:
        return None
    for model in account.models:
        if name in {model.model, model.name}:
            return model
    known = ", ".join(model.model for model in account.models) or _("none")
    raise bad_input(_("There is no model “%(name)s” at %(account)s. Known: %(known)s.") % {"name": name, "account": account.name, "known": known})  # fmt: skip


def _verb(
    options: dict[str, Any], account: AccountView, model: ModelView | None, by: AbstractBaseUser | None
) -> Callable[[datetime], object]:  # fmt: skip
    """What to do, with everything that was typed already read: nothing is half done over bad input."""
    key: dict[str, Any] = {"account_id": account.id, "model": "" if model is None else model.model}
    match options["what"]:
        case "probe":
            return lambda now: providers.probe_now(**key, actor=by, now=now)
        case "topped-up":
            return lambda _now: balance.topped_up(account, actor=by)
        case "block":
            until, why = _moment(options["until"]), options["reason"]
            return lambda now: providers.block_until(**key, until=until, actor=by, now=now, reason=why)  # fmt: skip
        case "unblock":
            return lambda now: providers.unblock(**key, actor=by, now=now)
        case "pause":
            return lambda now: providers.pause(**key, actor=by, now=now, reason=options["reason"])
        case "resume":
            return lambda now: providers.resume(**key, actor=by, now=now)
        case "limit":
            return _limit(options, key, model, by)
        case "open":
            target_id = _target(model)
            return lambda now: limits.open_target(target_id=target_id, actor=by, now=now)
        case _:
            silenced = not options["off"]
            return lambda now: providers.silence_alerts(account_id=account.id, silenced=silenced, actor=by, now=now)  # fmt: skip


def _limit(
    options: dict[str, Any], key: dict[str, Any], model: ModelView | None, by: AbstractBaseUser | None
) -> Callable[[datetime], object]:  # fmt: skip
    most = _number(options["most"])
    if not options["window"]:
        target_id = _target(model)
        return lambda now: limits.limit_target(
            target_id=target_id, most=most, actor=by, now=now, reason=options["reason"]
        )
    seconds = _length(options["window"])
    values: dict[str, Any] = {}
    if options["anchor"] and most is not None:
        if options["zone"] not in available_timezones():
            raise bad_input(_("“%(name)s” is no time zone. Write one like Europe/Moscow.") % {"name": options["zone"]})  # fmt: skip
        values = {
            "resets": QuotaWindow.Resets.FIXED, "anchor_at": _moment(options["anchor"]), "zone": options["zone"]
        }  # fmt: skip
    return lambda now: limits.limit_window(
        **key, seconds=seconds, most=most, actor=by, now=now, reason=options["reason"], **values
    )


def _target(model: ModelView | None) -> int:
    if model is None or model.target_id is None:
        raise bad_input(_("Say which target, with --model."))
    return model.target_id


def _number(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise bad_input(_("“%(text)s” is no number.") % {"text": text})
    return int(text)


def _length(text: str) -> int | None:
    if text in _LENGTHS:
        return _LENGTHS[text]
    seconds = _number(text)
    if not seconds:
        raise bad_input(_("“%(text)s” is no length of a window.") % {"text": text})
    return seconds


def _moment(text: str) -> datetime:
    """A date and time (without a zone: ours), or so long from now."""
    if ahead := _AHEAD.fullmatch(text):
        return clock.now() + timedelta(seconds=int(ahead[1]) * _UNITS_S[ahead[2]])
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise bad_input(_("“%(text)s” is no time. Write 2026-12-01T09:00 or +2h.") % {"text": text})
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


# --- balances ----------------------------------------------------------------------------------------------------------


def _read_balances(now: datetime) -> dict[int, str]:
    """Ask each account that has a key and keep what it told; why where it told nothing."""
    troubles = {}
    for account in Account.objects.order_by("pk"):
        if panel.reached(account.provider, account.fingerprint) is None:
            continue
        try:
            read = balance.read(account.provider, account.fingerprint)
        except balance.Unread as why:
            troubles[account.pk] = str(why)
            continue
        if read is not None:
            Account.objects.filter(pk=account.pk).update(
                balance=read.amount, balance_currency=read.currency, balance_at=now
            )
    return troubles
