"""The red button: pressed by an operator, lifted by the owner."""

from __future__ import annotations

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from jobs.admin.changelist import EmptyState, MachineAdmin
from jobs.admin.confirm import run
from jobs.admin.forms import ReasonForm, RedButtonForm
from jobs.admin.verb import Effect, Verb
from jobs.clock import clock
from jobs.lifecycle import staff
from jobs.models import Hold
from jobs.templatetags import desk

PRESS = Verb(
    name="press",
    permission="jobs.press_hold",
    label=gettext_lazy("Press the red button"),
    title=gettext_lazy("Stop all new spending?"),
    icon="octagon-pause",
    done=gettext_lazy("The red button is pressed. Nothing new is sent."),
    form=RedButtonForm,
    effects=lambda _nothing: [
        Effect(
            "octagon-pause",
            gettext_lazy("From this moment no job of any tenant is sent to any provider."),
        ),
        Effect("eye", gettext_lazy("What is at a provider already is still watched and fetched.")),
        Effect("clock", gettext_lazy("Jobs stay in the queue; none is lost.")),
        Effect("lock", gettext_lazy("Only the owner can lift it.")),
    ],
    run=lambda _nothing, actor, now, data: staff.press_red_button(
        actor=actor, now=now, reason=data["reason"]
    ),
    dangerous=True,
)

LIFT = Verb(
    name="lift",
    permission="jobs.lift_hold",
    label=gettext_lazy("Lift the red button"),
    title=gettext_lazy("Let sends go on?"),
    icon="play",
    done=gettext_lazy("The red button is lifted. Sends go on."),
    form=ReasonForm,
    effects=lambda _nothing: [
        Effect("play", gettext_lazy("Waiting jobs are sent again, within all limits, at once."))
    ],
    run=lambda _nothing, actor, now, data: staff.lift_red_button(
        actor=actor, now=now, reason=data["reason"]
    ),
)


def press(request: HttpRequest) -> HttpResponse:
    return _page(request, PRESS)


def lift(request: HttpRequest) -> HttpResponse:
    return _page(request, LIFT)


def _page(request: HttpRequest, verb: Verb) -> HttpResponse:
    if not request.user.has_perm(verb.permission):
        raise PermissionDenied
    if request.method == "POST":
        form = verb.form(request.POST)
        if form.is_valid() and run(request, verb, None, form.cleaned_data):
            return HttpResponseRedirect(reverse("admin:index"))
    else:
        form = verb.form()
    context = {
        **admin.site.each_context(request),
        "title": verb.title,
        "verb": verb,
        "form": form,
        "effects": verb.effects(None),
        "thing_url": reverse("admin:index"),
    }
    return TemplateResponse(request, "desk/confirm.html", context)


@admin.register(Hold)
class HoldAdmin(MachineAdmin):
    """Every time it was pressed, and by whom."""

    list_display = (
        "kind",
        "reason",
        "set_cell",
        "set_by",
        "lifted_cell",
        "lifted_by",
        "lift_reason",
    )
    list_select_related = ("set_by", "lifted_by")
    ordering = ("-set_at",)
    sortable_by = ()
    empty = EmptyState(
        "octagon-pause",
        gettext_lazy("The red button was never pressed"),
        gettext_lazy(
            "An operator presses it from the menu under their name; it stops all new spending."
        ),
    )

    @admin.display(description=gettext_lazy("since"))
    def set_cell(self, hold: Hold) -> SafeString:
        return desk.ago(hold.set_at, clock.now())

    @admin.display(description=gettext_lazy("lifted"))
    def lifted_cell(self, hold: Hold) -> SafeString:
        return desk.ago(hold.lifted_at, clock.now())
