"""What a verb answers when it will not do a thing."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818  a refusal, not a fault
    """A verb's condition does not hold; nothing was changed. The message is for people."""
