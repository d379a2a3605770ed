"""What the templates need to draw the desk's components. Words and tones come from jobs/display.py, how things are written from jobs/written.py."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django import template
from django.contrib.admin import ListFilter
from django.contrib.admin.views.main import ChangeList
from django.contrib.messages.storage.base import Message
from django.db.models import Model, Q
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from jobs import written
from jobs.display import Look
from jobs.models import SavedFilter
from jobs.narrowing import PLACES, plain
from providers.models import Target

register = template.Library()

_DIRECTED = frozenset(
    {"arrow-left", "arrow-right", "chevron-left", "chevron-right", "send", "log-out", "undo-2"}
)
_MESSAGE_ICONS = {"success": "circle-check", "warning": "triangle-alert", "error": "circle-x"}


@register.simple_tag
def icon(name: str, *, size: int = 16, extra: str = "") -> SafeString:
    """One icon of the sprite, hidden from screen readers: a word stands beside it. Directed ones flip in RTL."""
    classes = ["icon"]
    if size == 20:
        classes.append("icon-20")
    if name in _DIRECTED:
        classes.append("icon-directed")
    if extra:
        classes.append(extra)
    return format_html(
        '<svg class="{}" aria-hidden="true"><use href="{}#{}"></use></svg>',
        " ".join(classes),
        static("desk/icons.svg"),
        name,
    )


@register.simple_tag
def mark(look: Look) -> SafeString:
    """The icon of a look; a moving dot where the look has no icon."""
    return (
        icon(look.icon)
        if look.icon
        else format_html('<span class="{}" aria-hidden="true"></span>', "dot")
    )


@register.simple_tag
def pill(look: Look, *, large: bool = False) -> SafeString:
    """Icon, word and colour."""
    return format_html(
        '<span class="pill{} tone-{}">{}<span>{}</span></span>',
        " pill-large" if large else "",
        look.tone,
        mark(look),
        look.word,
    )


@register.simple_tag
def ago(at: datetime | None, now: datetime) -> SafeString:
    """How long ago or ahead, with the exact time on hover and for screen readers."""
    if at is None:
        return format_html("{}", "—")
    words = written.ago(at, now)
    return format_html(
        '<time datetime="{}" title="{}" dir="auto">{}</time>',
        at.isoformat(),
        written.exact(at),
        words,
    )


@register.simple_tag
def clock_time(at: datetime, *, day: bool = False) -> SafeString:
    """The time of day in the person's zone, with seconds, and the exact time on hover."""
    text = written.clock_time(at, seconds=True)
    if day:
        text = f"{written.month_day(at)}, {text}"
    return format_html(
        '<time datetime="{}" title="{}" dir="auto">{}</time>',
        at.isoformat(),
        written.exact(at),
        text,
    )


@register.filter
def day(at: datetime) -> str:
    """Its date in the reader's zone and calendar."""
    return written.day(at)


@register.filter
def count(value: Any) -> Any:
    """A count in the reader's digits, grouped; for `blocktranslate count` too. What is in words already stays."""
    return written.count(value) if isinstance(value, int) else value


@register.simple_tag
def moment_of(at: datetime, now: datetime) -> SafeString:
    """`14:00`, with the date where it is another day, and the exact time on hover."""
    return format_html(
        '<time datetime="{}" title="{}" dir="auto">{}</time>',
        at.isoformat(),
        written.exact(at),
        written.moment(at, now),
    )


@register.filter
def since(now: datetime, at: datetime) -> str:
    """How long it is from `at` until now: `2 h 5 min`."""
    return written.duration((now - at).total_seconds())


@register.simple_tag
def as_of(now: datetime) -> SafeString:
    """`as of 12:03:04`."""
    return format_html(_("as of {}"), clock_time(now))


@register.simple_tag
def until(at: datetime, now: datetime) -> SafeString:
    """`until 14:05, in 12 min`, with the exact time on hover."""
    return format_html(
        '<time datetime="{}" title="{}" dir="auto">{}</time>',
        at.isoformat(),
        written.exact(at),
        written.until(at, now),
    )


@register.filter
def duration(value: timedelta | float | None) -> str:
    if value is None:
        return "—"
    return written.duration(value.total_seconds() if isinstance(value, timedelta) else value)


@register.simple_tag
def money(amount: Decimal | None, currency: str) -> SafeString:
    """In its own currency, and beside it in the studio's, where a rate is set."""
    own = written.own(amount, currency)
    beside = format_html(' <bdi class="num small quiet nowrap">{}</bdi>', own) if own else ""
    return format_html('<bdi class="num">{}</bdi>{}', written.money(amount, currency), beside)


@register.simple_tag
def target_name(target: Target) -> SafeString:
    """`provider:model` without the model's vendor, which is on hover."""
    return format_html(
        '<bdi class="ltr" title="{}"><span class="quiet">{}:</span>{}</bdi>',
        target.name,
        target.provider,
        target.model.rsplit("/", 1)[-1],
    )


@register.simple_tag
def copy(text: str) -> SafeString:
    """A button that copies `text`; without JavaScript the text beside it can be selected."""
    return format_html(
        '<button type="button" class="copy" data-copy="{}" data-done="{}" aria-label="{}" title="{}">{}{}</button>',
        text,
        _("Copied"),
        _("Copy %(text)s") % {"text": text},
        _("Copy"),
        icon("copy", extra="icon-todo"),
        icon("check", extra="icon-done"),
    )


@register.simple_tag(takes_context=True)
def next_step(context: template.Context, step: Any) -> SafeString | str:
    """The button of an empty state (changelist.Step), for whoever may follow it."""
    if not step or (step.permission and not context["request"].user.has_perm(step.permission)):
        return ""
    return format_html(
        '<a class="button" href="{}">{}{}</a>', reverse(step.url_name), icon(step.icon), step.label
    )


@register.simple_tag
def message_icon(message: Message) -> SafeString:
    return icon(_MESSAGE_ICONS.get(message.level_tag, "info"))


@register.filter
def bytes_short(size: int) -> str:
    return written.size(size)


@register.inclusion_tag("desk/filter_tabs.html")
def filter_tabs(changelist: ChangeList, spec: ListFilter) -> dict[str, Any]:
    return {"title": spec.title, "choices": list(spec.choices(changelist))}


@register.inclusion_tag("desk/filter_chip.html")
def filter_chip(changelist: ChangeList, spec: ListFilter) -> dict[str, Any]:
    """A menu of the choices; once one is chosen, a chip that can be removed. The first choice is always "all"."""
    choices = list(spec.choices(changelist))
    active = next((choice for choice in choices[1:] if choice["selected"]), None)
    return {
        "title": spec.title,
        "choices": choices,
        "active": active,
        "clear": choices[0]["query_string"] if choices else "?",
    }


@register.inclusion_tag("desk/verb_button.html", takes_context=True)
def verb_button(
    context: template.Context, verb: Any, thing: Model, *, style: str = "secondary"
) -> dict[str, Any]:
    """A link to the verb's confirmation, or, for a harmless verb without fields, a button that does it at once."""
    name = thing._meta.model_name  # noqa: SLF001  Django's documented meta API
    return {
        "verb": verb,
        "style": style,
        "url": reverse(f"admin:jobs_{name}_do", args=[thing.pk, verb.name]),
        "next": context["request"].get_full_path(),
        "csrf_token": context.get("csrf_token"),
        "at_once": not verb.form.base_fields,
    }


@register.simple_tag
def list_title(changelist: ChangeList, title: str) -> str:
    """What the list holds, instead of the stock "Select … to change"; a title of a page's own stays."""
    return (
        str(capfirst(changelist.opts.verbose_name_plural)) if title == changelist.title else title
    )


@register.inclusion_tag("desk/saved_filters.html", takes_context=True)
def saved_filters(context: template.Context, place: str) -> dict[str, Any]:
    """The kept filters of a list, one's own and shared ones, and the way to keep the present one. Nothing for other lists."""
    request, user = context["request"], context["request"].user
    if place not in PLACES:
        return {}
    rows = SavedFilter.objects.filter(Q(user=user) | Q(shared=True), place=place)
    saved = list(rows.select_related("user").order_by("name")[:40])
    query = plain(request.GET.urlencode())
    return {
        "saved": saved, "query": query, "known": any(one.query == query and one.user_id == user.pk for one in saved),
        "place": place, "request": request, "user": user, "perms": context.get("perms"),
        "csrf_token": context.get("csrf_token"),
    }  # fmt: skip


@register.simple_tag(takes_context=True)
def list_url(context: template.Context, name: str) -> str:
    """The address of a list, narrowed as it was when its row was opened."""
    filters = context["request"].GET.get("_changelist_filters", "")
    query = plain(filters)
    return reverse(name) + (f"?{query}" if query else "")
