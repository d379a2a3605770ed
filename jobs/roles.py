"""Viewer, operator, owner: which verbs each may use.

The three groups belong to the product: after every migrate they hold at least what is written here, so that a new verb
reaches the right people. Other mixes go into groups of other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class Role(TextChoices):
    """The names of the groups, in the order of what they may do."""

    VIEWER = "Viewer", _("viewer")
    OPERATOR = "Operator", _("operator")
    OWNER = "Owner", _("owner")


_VIEWER = frozenset(
    f"{app}.view_{model}"
    for app, models in {
        "jobs": (
            "alert", "alertchannel", "apitoken", "batch", "callback", "case", "hold", "job", "jobevent", "jobphoto", "lane", "orphan", "polzatask", "providertask", "result",
            "spoolhost", "standingdecision", "statement", "tenant",
        ),
        "providers": ("account", "providerevent", "providerstate", "quotawindow", "target"),
    }.items()
    for model in models
)  # fmt: skip

_OPERATOR = _VIEWER | {
    "jobs.add_job",
    "jobs.add_batch",
    "jobs.pause_batch",
    "jobs.cancel_batch",
    "jobs.retry_batch",
    "jobs.retarget_batch",
    "jobs.retry_job",
    "jobs.retarget_job",
    "jobs.manual_job",
    "jobs.resolve_job",
    "jobs.cancel_job",
    "jobs.edit_job",
    "jobs.deliver_job",
    "jobs.rate_result",
    "jobs.share_savedfilter",
    "jobs.poll_providertask",
    "jobs.attach_providertask",
    "jobs.accept_providertask",
    "jobs.absent_providertask",
    "jobs.writeoff_providertask",
    "jobs.refund_providertask",
    "jobs.read_statement",
    "jobs.adopt_orphan",
    "jobs.dispute_orphan",
    "jobs.work_case",
    "jobs.replay_callback",
    "jobs.press_hold",
    "jobs.view_trail",
    "jobs.revoke_apitoken",
}

_OWNER = _OPERATOR | {
    "jobs.resend_job",
    "jobs.run_prune",
    "jobs.lift_hold",
    "jobs.forget_savedfilter",
    "jobs.drain_lane",
    "jobs.add_apitoken",
    "jobs.rotate_apitoken",
    "jobs.add_tenant",
    "jobs.change_tenant",
    "jobs.rotate_endpoint",
    "jobs.reveal_endpoint",
    "jobs.add_standingdecision",
    "jobs.change_standingdecision",
    "providers.add_target",
    "providers.change_target",
    "providers.change_account",
    "providers.silence_account",
    "providers.add_quotawindow",
    "providers.change_quotawindow",
    "providers.delete_quotawindow",
    "auth.view_user",
    "auth.add_user",
    "auth.change_user",
}

PERMISSIONS: Mapping[Role, frozenset[str]] = {
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: _OPERATOR,
    Role.OWNER: _OWNER,
}


def grant(using: str = "default", **_kwargs: Any) -> None:
    """Receiver of post_migrate, which comes once an app. Permissions are made app by app as well, so the first rounds may
    find some missing; the last one, whichever app's it is, finds all."""
    if not apps.is_installed("django.contrib.auth"):
        return
    group_model = apps.get_model("auth", "Group")
    permission_model = apps.get_model("auth", "Permission")
    known = {
        f"{app}.{codename}": pk
        for app, codename, pk in permission_model.objects.using(using)
        .filter(content_type__app_label__in=["jobs", "providers", "auth"])
        .values_list("content_type__app_label", "codename", "pk")
    }
    for role, names in PERMISSIONS.items():
        group, _made = group_model.objects.using(using).get_or_create(name=role.value)
        group.permissions.add(*[known[name] for name in sorted(names) if name in known])
