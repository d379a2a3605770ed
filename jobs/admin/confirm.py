"""The confirmation of one verb on one thing: what will happen, what it may cost, why, and the button at the far side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString

from jobs.admin.changelist import ModelAdmin
from jobs.admin.verb import Verb
from jobs.clock import clock
from jobs.lifecycle.errors import Refused
from jobs.templatetags import desk


class VerbsMixin(ModelAdmin):
    """Gives a ModelAdmin the address `<pk>/do/<verb>/` for each of its verbs. GET asks, POST does."""

    verbs: Sequence[Verb] = ()

    def get_urls(self) -> list[URLPattern]:
        opts = self.opts
        name = f"{opts.app_label}_{opts.model_name}_do"
        own = [
            path(
                "<path:object_id>/do/<slug:verb_name>/",
                self.admin_site.admin_view(self.do_view),
                name=name,
            )
        ]
        return [*own, *super().get_urls()]

    def verb_url(self, verb: Verb, pk: object) -> str:
        return reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_do", args=[pk, verb.name]
        )

    def do_view(self, request: HttpRequest, object_id: str, verb_name: str) -> HttpResponse:
        verb = next((verb for verb in self.verbs if verb.name == verb_name), None)
        thing = self.get_object(request, object_id)
        if verb is None or thing is None:
            raise Http404
        if not (
            self.has_view_permission(request, thing) and request.user.has_perm(verb.permission)
        ):
            raise PermissionDenied
        back = self.after_verb_url(request, thing)
        if request.method == "POST":
            form = verb.form(request.POST, request.FILES, thing=thing)
            if form.is_valid() and run(request, verb, thing, form.cleaned_data):
                return HttpResponseRedirect(back)
        else:
            given = {name: request.GET[name] for name in verb.form.presets if name in request.GET}
            form = verb.form(thing=thing, initial=given)
        context = {
            **self.admin_site.each_context(request),
            "title": verb.title,
            "opts": self.opts,
            "thing": thing,
            "thing_url": back,
            "verb": verb,
            "form": form,
            "effects": verb.effects(thing),
            "money": verb.money(thing),
        }
        return TemplateResponse(request, "desk/confirm.html", context)

    def after_verb_url(self, request: HttpRequest, thing: Any) -> str:
        """Where the person came from, if that is a page of ours; else the thing's own page."""
        wanted = request.POST.get("next") or request.GET.get("next") or ""
        if wanted and url_has_allowed_host_and_scheme(wanted, allowed_hosts={request.get_host()}):
            return wanted
        return reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[thing.pk]
        )


def row_button(model_admin: VerbsMixin, verb: Verb, thing: Any, *, back: str) -> SafeString:
    """A verb without fields at the end of a row. The list's own form carries it, and its token."""
    return format_html(
        '<button class="button secondary small-button" formmethod="post" formaction="{}" name="next" value="{}">{}{}</button>',
        model_admin.verb_url(verb, thing.pk),
        back,
        desk.icon(verb.icon),
        verb.label,
    )


def run(request: HttpRequest, verb: Verb, thing: Any, data: dict[str, Any]) -> bool:
    """Call the verb and tell the person how it went. False: it refused, and nothing was changed."""
    assert request.user.is_authenticated
    try:
        verb.run(thing, request.user, clock.now(), data)
    except Refused as refusal:
        messages.error(request, str(refusal))
        return False
    messages.success(request, str(verb.done))
    return True
