"""Words of Django's own pages that its Persian catalogue lacks: said here, so that ours has them."""

from __future__ import annotations

from django.utils.translation import gettext_noop

WORDS = (
    gettext_noop("Select this object for an action - {}"),
    gettext_noop("Password-based authentication"),
    gettext_noop("Enabled"),
    gettext_noop("Disabled"),
    gettext_noop("Reset password"),
    gettext_noop("salt"),
    gettext_noop(
        "Whether the user will be able to authenticate using a password or not. If disabled, they may still be able to "
        "authenticate using other backends, such as Single Sign-On or LDAP."
    ),
    gettext_noop("Raw passwords are not stored, so there is no way to see the user’s password."),
)
