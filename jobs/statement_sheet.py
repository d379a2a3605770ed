"""A stored statement in words: what each kind of line means, and the sheets for the provider's support and the bookkeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.batches import export
from jobs.display import Look, Words
from jobs.statement import DISCREPANCIES, MONEY, Kind


@dataclass(frozen=True, slots=True)
class Said:
    """A kind of line: how it looks, what it means, what can be done."""

    look: Look
    means: Words


KINDS: Mapping[Kind, Said] = {
    Kind.ORPHAN: Said(
        Look(gettext_lazy("charged, unknown to us"), "package-search", "amber"),
        gettext_lazy("The provider charged it, and no send of ours belongs to it. Adopt or dispute it."),
    ),
    Kind.UNKNOWN_THERE: Said(
        Look(gettext_lazy("ours, unknown to them"), "circle-help", "amber"),
        gettext_lazy("We sent it, and neither the history nor its receipt knows it. Nothing should be charged for it."),
    ),
    Kind.COST: Said(
        Look(gettext_lazy("different price"), "banknote", "amber"),
        gettext_lazy("Both know it, and the prices differ by a hundredth or more."),
    ),
    Kind.FAILED_CHARGED: Said(
        Look(gettext_lazy("failed but charged"), "circle-x", "red"),
        gettext_lazy("It failed, and was charged all the same. Ask for a refund with its id."),
    ),
    Kind.UNLINKED: Said(
        Look(gettext_lazy("found, not linked yet"), "link", "blue"),
        gettext_lazy("It carries the id of our send, whose answer was lost. The workers link it by themselves."),
    ),
    Kind.MAYBE: Said(
        Look(gettext_lazy("may be a lost send of ours"), "radar", "violet"),
        gettext_lazy("It may belong to one of the jobs named. Their cases on the desk settle it."),
    ),
    Kind.CANT_TELL: Said(
        Look(gettext_lazy("can't be told"), "circle-help", "violet"),
        gettext_lazy("The history proves neither that it is there nor that it is not."),
    ),
    Kind.TOO_YOUNG: Said(
        Look(gettext_lazy("too young to tell"), "clock", "grey"),
        gettext_lazy("The history may show it later, or its answer is still on the way."),
    ),
    Kind.NOT_KEPT: Said(
        Look(gettext_lazy("older than they keep"), "history", "grey"),
        gettext_lazy("The provider keeps nothing so old, so that its absence means nothing."),
    ),
    Kind.OTHER_KEY: Said(
        Look(gettext_lazy("sent with another key"), "key-round", "grey"),
        gettext_lazy("Its key is not set any more, so that its history can't be read."),
    ),
    Kind.UNREAD: Said(
        Look(gettext_lazy("could not be read"), "unplug", "grey"),
        gettext_lazy("The history was not read to its end, or its receipt could not be read."),
    ),
    Kind.RUNNING: Said(
        Look(gettext_lazy("unknown to us, still running"), "", "grey"),
        gettext_lazy("Not finished there, so that nobody knows what it costs."),
    ),
    Kind.FREE: Said(
        Look(gettext_lazy("unknown to us, free"), "circle-check", "grey"),
        gettext_lazy("No send of ours belongs to it, and it cost nothing."),
    ),
    Kind.UNPRICED: Said(
        Look(gettext_lazy("price not told"), "receipt-text", "grey"),
        gettext_lazy("Both know it, and one of them does not tell what it cost."),
    ),
}  # fmt: skip


def support(told: Mapping[str, Any]) -> str:
    """For the provider's support: each open discrepancy with both ids, the times and the prices."""
    head = [
        _("what"), _("the provider's id"), _("our id"), _("job"), _("time (UTC)"), _("account"), _("model"),
        _("status there"), _("our price"), _("their price"), _("currency"),
    ]  # fmt: skip
    rows = [
        [
            str(KINDS[Kind(one["kind"])].look.word), one["provider_id"], one["task"] or one["carries"], one["job"],
            one["at"], one["account"], one["model"], one["status"], one["ours"], one["theirs"], one["currency"],
        ]
        for one in told["findings"]
        if Kind(one["kind"]) in DISCREPANCIES and not one["settled"]
    ]  # fmt: skip
    return export.BOM + export.lines([head, *rows])


def books(told: Mapping[str, Any], *, by: str = "days") -> str:
    """For the bookkeeper: the money of each day (or month), tenant, account and currency, and the rate it was reckoned at."""
    head = [
        _("period"), _("tenant"), _("provider"), _("account"), _("currency"), _("sends"), *money_words(),
        _("rate"), _("paid, in %(currency)s") % {"currency": told["currency"]},
    ]  # fmt: skip
    rows = [
        [
            row["period"], row["tenant"] or _("unknown to us"), row["provider"], row["account"], row["currency"],
            row["sends"], *(row[name] for name in MONEY), row["rate"] or _("no rate"), row["in_studio"],
        ]
        for row in told[by]
    ]  # fmt: skip
    return export.BOM + export.lines([head, *rows])


def money_words() -> list[str]:
    """What the columns of money are called, in the order of `MONEY`."""
    words = {
        "charged": _("charged"), "unpriced": _("charged, about"), "possible": _("possible"), "refunded": _("refunded"),
        "written_off": _("written off"), "theirs": _("by their history"), "unknown": _("unknown to us"),
    }  # fmt: skip
    return [words[name] for name in MONEY]
