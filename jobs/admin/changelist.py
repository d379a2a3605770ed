"""Lists over tables that may hold millions of rows: keyset pages, capped counts, no query per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.core.paginator import Paginator
from django.db.models import DecimalField, Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import written
from jobs.admin.amounts import AmountField

# Django's classes are generic only for the type checker.
if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    AnyPaginator = Paginator[Any]
else:
    ModelAdmin = admin.ModelAdmin
    AnyPaginator = Paginator

COUNT_CAP = 10_000
OLDER, NEWER = "older", "newer"


def capped_words(count: int) -> str:
    """A count as it is shown: "10,000+" for whatever is beyond the cap."""
    if count > COUNT_CAP:
        return _("%(count)s+") % {"count": written.number(COUNT_CAP)}
    return written.number(count)


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # not subscriptable at run time
    """Counts no further than COUNT_CAP + 1, so that a big table costs no more than a small one."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return int(rows.order_by()[: COUNT_CAP + 1].count())
        return len(rows)


@dataclass(frozen=True, slots=True)
class Step:
    """One button: where to go next, for whoever may."""

    label: str | Promise
    icon: str
    url_name: str
    permission: str = ""


STATEMENTS = Step(
    gettext_lazy("Open the statements"),
    "banknote",
    "admin:jobs_statement_changelist",
    "jobs.view_statement",
)
NEW_JOBS = Step(gettext_lazy("New jobs"), "plus", "admin:jobs_job_add", "jobs.add_job")
PANEL = Step(
    gettext_lazy("Open the providers"),
    "plug-zap",
    "admin:providers_providerstate_changelist",
    "providers.view_providerstate",
)
JOBS = Step(gettext_lazy("Open the jobs"), "images", "admin:jobs_job_changelist", "jobs.view_job")


@dataclass(frozen=True, slots=True)
class EmptyState:
    """What an empty list says: what this is, and what to do next. `step`: where no row can be added here."""

    icon: str
    title: str | Promise
    text: str | Promise
    step: Step | None = None


class DeskChangeList(ChangeList):
    """With `keyset` on the ModelAdmin: pages by "older / newer" than a row, in the order of those columns, descending."""

    older_pk: Any = None
    newer_pk: Any = None

    @property
    def keyset(self) -> Sequence[str]:
        return getattr(self.model_admin, "keyset", ())

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        wanted: dict[str, Any] = super().get_filters_params(params)
        wanted.pop(OLDER, None)
        wanted.pop(NEWER, None)
        return wanted

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        """Another filter starts at the first page."""
        return super().get_query_string(new_params, [*(remove or []), OLDER, NEWER])

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        if self.keyset:
            return [f"-{name}" for name in self.keyset]
        return super().get_ordering(request, queryset)

    def get_results(self, request: HttpRequest) -> None:
        if self.keyset:
            self._keyset_page(request)
        else:
            super().get_results(request)
        dress = getattr(self.model_admin, "dress", None)
        if dress is not None:
            self.result_list = dress(list(self.result_list), request)

    def _keyset_page(self, request: HttpRequest) -> None:
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        self.result_count = self.paginator.count
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = self.multi_page = False
        self.page_num = 1
        room = self.list_per_page
        newer_than = self._edge(request.GET.get(NEWER))
        older_than = None if newer_than else self._edge(request.GET.get(OLDER))
        if newer_than is not None:
            order = [*self.keyset]
            rows = list(
                self.queryset.filter(self._beyond(newer_than, "gt")).order_by(*order)[: room + 1]
            )
            more_newer, more_older = len(rows) > room, True
            rows = rows[:room][::-1]
        else:
            page = (
                self.queryset
                if older_than is None
                else self.queryset.filter(self._beyond(older_than, "lt"))
            )
            rows = list(page[: room + 1])
            more_newer, more_older = older_than is not None, len(rows) > room
            rows = rows[:room]
        self.result_list = rows
        if rows:
            self.newer_pk = rows[0].pk if more_newer else None
            self.older_pk = rows[-1].pk if more_older else None

    def _edge(self, raw: str | None) -> tuple[Any, ...] | None:
        """The key of the row a page starts after; None for the first page, also where the row is unknown."""
        if not raw:
            return None
        try:
            key: tuple[Any, ...] | None = (
                self.root_queryset.filter(pk=raw).values_list(*self.keyset).first()
            )
        except (ValueError, ValidationError):
            return None
        return key

    def _beyond(self, key: tuple[Any, ...], way: str) -> Q:
        """Rows before or after `key` in the order of the columns; the first condition is the one an index can use."""
        found, equal = Q(), Q()
        for name, value in zip(self.keyset, key, strict=True):
            found |= equal & Q(**{f"{name}__{way}": value})
            equal &= Q(**{name: value})
        return Q(**{f"{self.keyset[0]}__{way}e": key[0]}) & found

    # --- for the template ---

    @property
    def row_buttons(self) -> bool:
        """Whether a row has a button of its own; without one and without actions, the list is no form."""
        return any(getattr(row, "row_verbs", ()) for row in self.result_list)

    @property
    def older_query(self) -> str:
        return self._page_query(OLDER, self.older_pk)

    @property
    def newer_query(self) -> str:
        return self._page_query(NEWER, self.newer_pk)

    def _page_query(self, name: str, pk: Any) -> str:
        return "" if pk is None else super().get_query_string({name: str(pk)}, [OLDER, NEWER])

    @property
    def first_query(self) -> str:
        return self.get_query_string()

    @property
    def count_words(self) -> str:
        return capped_words(self.result_count)


def _by_name(field: Any) -> Callable[[Model], str]:
    @admin.display(description=field.verbose_name)
    def shown(row: Model) -> str:
        return str(getattr(row, field.name) or "-")

    return shown


class DeskAdmin(ModelAdmin):
    """What all our lists share. `dress` may hang onto the rows of a page what its columns show."""

    formfield_overrides = {DecimalField: {"form_class": AmountField}}
    list_per_page = 50
    list_max_show_all = 200
    show_full_result_count = False
    paginator = CappedPaginator
    keyset: ClassVar[Sequence[str]] = ()
    empty: ClassVar[EmptyState | None] = None
    cards = True  # on a phone, rows become cards

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """On pages to look at, people are told by name: Django's own link leads to their page, which few may open."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return [
            (name, {**more, "fields": [self._shown(one) for one in more["fields"]]})
            for name, more in fieldsets
        ]

    def _shown(self, name: Any) -> Any:
        try:
            field = self.opts.get_field(name)
        except (FieldDoesNotExist, TypeError):
            return name
        return _by_name(field) if field.related_model is get_user_model() else name

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return DeskChangeList

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        return rows


class MachineAdmin(DeskAdmin):
    """Rows the machine owns: looked at, never edited by hand."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
