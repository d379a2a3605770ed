"""Users and groups. Owners manage people, but nobody gives more than they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from providers.logged import LoggedAdmin

admin.site.unregister(User)
admin.site.unregister(Group)

# Django's class is generic only for the type checker.
if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:
    _UserAdmin = UserAdmin

_OWNERS_FIELDS = (
    (None, {"fields": ("username", "password")}),
    (_("Person"), {"fields": ("first_name", "last_name", "email")}),
    (_("Access"), {"fields": ("is_active", "is_staff", "groups")}),
)


# Where Django's own forms say nothing, or too little for this desk.
_HELP = {
    "first_name": _(
        "Shown at the top in place of the user name. Empty, the default: the user name."
    ),
    "last_name": _("Only for this list and for finding somebody."),
    "email": _("Only for people to find; the desk sends nothing to it (alerts: ALERT_URLS)."),
    "is_staff": _("May log in to the desk. What they may do there, their groups say."),
    "groups": _(
        "Viewer looks, Operator works the desk and makes jobs, Owner also sets limits, targets, tokens and people."
    ),
}


@admin.register(User)
class DeskUserAdmin(LoggedAdmin, _UserAdmin):
    """Only superusers see and set what makes one; an owner gives the three roles."""

    list_display = ("username", "first_name", "last_name", "roles_cell", "is_active", "last_login")
    list_filter = ("is_active", "groups")
    filter_horizontal = ("user_permissions",)

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name in _HELP:
            kwargs.setdefault("help_text", _HELP[db_field.name])
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def formfield_for_manytomany(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        """A handful of roles is ticked rather than moved from one list to another."""
        if db_field.name == "groups":
            kwargs["widget"] = forms.CheckboxSelectMultiple
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("groups")

    @admin.display(description=_("roles"))
    def roles_cell(self, user: User) -> str:
        names = [group.name for group in user.groups.all()]
        return ", ".join([*(["superuser"] if user.is_superuser else []), *names]) or "—"

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None or request.user.is_superuser:
            return super().get_fieldsets(request, obj)
        return _OWNERS_FIELDS

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is not None and obj.is_superuser and not request.user.is_superuser:
            return False
        return super().has_change_permission(request, obj)


@admin.register(Group)
class DeskGroupAdmin(LoggedAdmin, GroupAdmin):
    pass
