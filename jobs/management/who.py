"""Whose decision a command carries out."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.core.management.base import CommandError
from django.utils.translation import gettext as _

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3


def bad_input(words: str) -> CommandError:
    """What a command raises over what it was given; nothing was changed."""
    return CommandError(words, returncode=EXIT_BAD_INPUT)


def actor(username: str, permission: str) -> AbstractBaseUser | None:
    """The user of that name, who may do it; None for "": whoever has the shell has the database anyway.

    CommandError where there is no such user (exit code 2), or they may not (3).
    """
    if not username:
        return None
    user = get_user_model().objects.filter(username=username).first()
    if user is None:
        raise CommandError(
            _("There is no user “%(name)s”.") % {"name": username}, returncode=EXIT_BAD_INPUT
        )
    if not user.has_perm(permission):
        raise CommandError(
            _("“%(name)s” may not do this (%(permission)s).")
            % {"name": username, "permission": permission},
            returncode=EXIT_REFUSED,
        )
    return user
