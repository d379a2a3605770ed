"""Whose decision a command carries out."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.core.management.base import CommandError
from django.utils.translation import gettext as _

EXIT_BAD_INPUT = 2


def actor(username: str) -> AbstractBaseUser | None:
    """The user of that name; None for "". CommandError (exit code 2) where there is none."""
    if not username:
        return None
    user = get_user_model().objects.filter(username=username).first()
    if user is None:
        raise CommandError(
            _("There is no user “%(name)s”.") % {"name": username}, returncode=EXIT_BAD_INPUT
        )
    return user
