"""What people ask for, checked before anything is created. The command, the admin and the API all come through here.

Every problem is an `InputError` that names the field (and the line, where there is one) and says what to do, in the language
of whoever asks. Whether a target, tenant or reference exists is not known here: that takes rows.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import results
from jobs.decoder import Flaw, Picture, Rejected
from providers.contract import Kind

MAX_PROMPT_CHARS = 8000
MAX_REFERENCE_CHARS = 200
MAX_NAME_CHARS = 200  # targets, tenants, photo names
MAX_PARAMS_BYTES = 16 * 1024
MAX_PARAM_DEPTH = 4
MAX_PHOTO_BYTES = 20 * 1024 * 1024
PRIORITY_LOW, PRIORITY_HIGH = -100, 100
_PARAM_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_CHUNK = 256 * 1024


class InputError(Exception):
    """`field` is the name of an argument or a column, "" for the input as a whole; `message` is a translated sentence;
    `line` counts from 1 in the file that was read, None where there is no file."""

    def __init__(self, field: str, message: str, line: int | None = None) -> None:
        super().__init__(field, message, line)
        self.field = field
        self.message = message
        self.line = line

    def __str__(self) -> str:
        where = [_("line %(number)d") % {"number": self.line}] if self.line is not None else []
        if self.field:
            where.append(self.field)
        return f"{', '.join(where)}: {self.message}" if where else self.message

    def at(self, line: int) -> InputError:
        """The same problem, placed on a line."""
        return InputError(self.field, self.message, line)


# --- texts and numbers ------------------------------------------------------------------------------------------------


def check_prompt(text: object) -> str:
    """Stripped, in NFC, with \\n as the only line end, 1 to MAX_PROMPT_CHARS characters."""
    prompt = _clean(text, field="prompt", limit=MAX_PROMPT_CHARS, allowed="\n\t")
    if not prompt:
        raise InputError("prompt", _("The prompt is empty. Write what the picture should show."))
    return prompt


def check_reference(text: object) -> str:
    """The customer's own name for the job: one line, "" for none."""
    return _clean(text, field="reference", limit=MAX_REFERENCE_CHARS)


def numbered_reference(reference: str, at: int, many: int) -> str:
    """The reference of the `at`-th of `many` jobs made together: one keeps it as it is, several get -1, -2, … behind it,
    within the length that is allowed."""
    if not reference or many == 1:
        return reference
    number = f"-{at}"
    return reference[: MAX_REFERENCE_CHARS - len(number)] + number


def check_name(text: object, *, field: str) -> str:
    """A target's, tenant's or file's name: one line, "" for none."""
    return _clean(text, field=field, limit=MAX_NAME_CHARS)


def check_target(text: object) -> str:
    """`model` or `provider:model`, "" for the default. Whether it exists is not checked here."""
    target = check_name(text, field="target")
    if any(c.isspace() for c in target) or target.startswith(":") or target.endswith(":"):
        raise InputError(
            "target", _("“%(target)s” is not a target. Write provider:model.") % {"target": target}
        )
    return target


def check_kind(text: object) -> Kind:
    """IMAGE where nothing is given."""
    word = check_name(text, field="kind").lower()
    try:
        return Kind(word or Kind.IMAGE)
    except ValueError:
        raise InputError(
            "kind", _("“%(word)s” is unknown. Write image or text.") % {"word": word}
        ) from None


def check_priority(value: object) -> int:
    """A whole number or its digits; higher goes first; None and "" mean 0."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return 0
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value):
        number = int(value)
    if number is None or not PRIORITY_LOW <= number <= PRIORITY_HIGH:
        limits = {"low": PRIORITY_LOW, "high": PRIORITY_HIGH}
        raise InputError("priority", _("Give a whole number from %(low)d to %(high)d.") % limits)
    return number


def check_params(params: object) -> dict[str, Any]:
    """Parameters for the provider's model: a JSON object of bounded size, made only of finite numbers and clean texts.

    The result is a copy. What a model accepts is between it and the adapter.
    """
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise InputError("params", _("Parameters must be an object of names and values."))
    checked = {
        _param_name(name): _param_value(value, name=str(name), depth=1)
        for name, value in params.items()
    }
    if len(json.dumps(checked, ensure_ascii=False).encode()) > MAX_PARAMS_BYTES:
        limit = {"limit": MAX_PARAMS_BYTES // 1024}
        raise InputError(
            "params",
            _("The parameters take more than %(limit)d kB together. Shorten them.") % limit,
        )
    return checked


def _param_name(name: object) -> str:
    if not isinstance(name, str) or not _PARAM_NAME.fullmatch(name):
        shown = {"name": _shown(str(name))}
        raise InputError(
            "params",
            _("“%(name)s” is no name for a parameter. Use up to 64 Latin letters, digits and _ . -")
            % shown,
        )
    return name


def _param_value(value: object, *, name: str, depth: int) -> Any:
    field = f"param:{name}"
    if depth > MAX_PARAM_DEPTH:
        raise InputError(
            field,
            _("The value is nested too deeply. Use at most %(n)d levels.") % {"n": MAX_PARAM_DEPTH},
        )
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean(value, field=field, limit=MAX_PROMPT_CHARS, allowed="\n\t", strip=False)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InputError(field, _("The number is too large."))
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(field, _("The number must be finite."))
        return value
    if isinstance(value, list | tuple):
        return [_param_value(item, name=name, depth=depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {
            _param_name(key): _param_value(item, name=name, depth=depth + 1)
            for key, item in value.items()
        }
    raise InputError(
        field, _("A value must be a text, a number, true, false, null, a list or an object.")
    )


def _clean(text: object, *, field: str, limit: int, allowed: str = "", strip: bool = True) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(field, _("This must be a text."))
    # An early end for the absurd. Normal forms can shrink: a decomposed letter is at most four characters here.
    if len(text) > 4 * limit + 1024:
        raise _too_long(field, len(text), limit)
    cleaned = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    if strip:
        cleaned = cleaned.strip()
    for position, c in enumerate(cleaned, start=1):
        # Cc: control characters. Cs: halves of surrogate pairs, which no database takes. Cf stays: Persian needs it.
        if c not in allowed and unicodedata.category(c) in {"Cc", "Cs"}:
            shown = {"code": f"U+{ord(c):04X}", "position": position}
            if c in "\n\t":
                raise InputError(
                    field,
                    _("A line break or tab at character %(position)d. Write it in one line.")
                    % shown,
                )
            raise InputError(
                field,
                _("An invisible control character (%(code)s) at character %(position)d. Remove it.")
                % shown,
            )
    if len(cleaned) > limit:
        raise _too_long(field, len(cleaned), limit)
    return cleaned


def _too_long(field: str, length: int, limit: int) -> InputError:
    numbers = {"length": length, "limit": limit}
    return InputError(
        field,
        _("%(length)d characters, at most %(limit)d are allowed. Shorten the text.") % numbers,
    )


def _shown(text: str) -> str:
    """Someone's text inside a message: printable and short."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    return line if len(line) <= 60 else line[:59] + "…"


# --- photos -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """A stored input photo. The key is made from the hash, so the same photo is kept once; `thumb_key` is its thumbnail.
    `width` and `height` as seen, in pixels."""

    key: str
    thumb_key: str
    sha256: str
    media_type: str
    size: int  # bytes
    width: int
    height: int


def take_photo(source: Path | str | IO[bytes], *, line: int | None = None) -> Taken:
    """Check and store an input photo from a local path or an open (uploaded) file. Nothing stays behind on an InputError.

    A path must come from someone who may read this machine's files: a command line, never an upload's text.
    """
    temporary = results.new_temporary()
    thumbnail = temporary.with_suffix(".thumb")
    try:
        size = _copy(source, temporary)
        seen = _look(temporary, thumbnail)
        digest = results.flush_and_hash(temporary)
        stem = f"photos/{digest[:2]}/{digest}"
        key = f"{stem}.{seen.extension}"
        thumb_key = stem + results.THUMBNAIL_SUFFIX
        if not results.settle(temporary, key, digest):
            results.put_again(temporary, key, digest)
        results.put_thumbnail(thumbnail, thumb_key)
    except InputError as error:
        if line is None:
            raise
        raise error.at(line) from None
    finally:
        temporary.unlink(missing_ok=True)
        thumbnail.unlink(missing_ok=True)
    return Taken(key, thumb_key, digest, seen.media_type, size, seen.width, seen.height)


def _look(path: Path, thumbnail_to: Path) -> Picture:
    seen = results.picture_process().inspect_sync(path, thumbnail_to)
    if isinstance(seen, Rejected):
        raise InputError("photo", _photo_message(seen))
    return seen


def _copy(source: Path | str | IO[bytes], target: Path) -> int:
    """The number of bytes copied. InputError for what can't be read or is too large."""
    if not isinstance(source, Path | str):
        return _copy_open(source, target)
    handle = _open(source)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _no_file(source)
        with os.fdopen(handle, "rb", closefd=False) as file:
            return _copy_open(file, target)
    finally:
        os.close(handle)


_BAD_NAME = {errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO}


def _open(path: Path | str) -> int:
    name = {"name": _shown(str(path))}
    try:
        # Without O_NONBLOCK a named pipe would hold us here for ever.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError("photo", _("There is no file “%(name)s”.") % name) from None
    except PermissionError:
        text = _("“%(name)s” may not be read. Check its permissions.")
        raise InputError("photo", text % name) from None
    except ValueError:  # a NUL in the name
        raise _no_file(path) from None
    except OSError as error:
        if error.errno not in _BAD_NAME:
            raise
        raise _no_file(path) from None


def _no_file(path: Path | str) -> InputError:
    return InputError("photo", _("“%(name)s” is not a file.") % {"name": _shown(str(path))})


def _copy_open(file: IO[bytes], target: Path) -> int:
    size = 0
    with target.open("xb") as out:
        while part := file.read(_CHUNK):
            size += len(part)
            if size > MAX_PHOTO_BYTES:
                limit = {"limit": MAX_PHOTO_BYTES // 1024 // 1024}
                raise InputError(
                    "photo", _("The photo has more than %(limit)d MB. Save it smaller.") % limit
                )
            out.write(part)
    return size


_PHOTO_MESSAGES = {
    Flaw.EMPTY: gettext_lazy("The file is empty. Choose the photo again."),
    Flaw.NOT_A_PICTURE: gettext_lazy("This is no photo. Save it as PNG, JPEG, WEBP or GIF."),
    Flaw.CUT: gettext_lazy("The photo is cut off. Copy it again from its source."),
    Flaw.BROKEN: gettext_lazy("The photo is damaged. Open and save it in a photo program."),
    Flaw.TOO_MANY_PIXELS: gettext_lazy(
        "The photo is larger than %(limit)g megapixels. Make it smaller."
    ),
    Flaw.STOWAWAY: gettext_lazy(
        "Something else hides in the photo. Open and save it in a photo program."
    ),
    Flaw.TOO_SLOW: gettext_lazy(
        "The photo takes too long to open. Save it smaller, or try again later."
    ),
    Flaw.TOO_MUCH_MEMORY: gettext_lazy("The photo takes too much memory to open. Save it smaller."),
    Flaw.DECODER_DIED: gettext_lazy(
        "The photo could not be opened. Try again, or save it in another format."
    ),
}
_FINDING_HELPS = {Flaw.NOT_A_PICTURE, Flaw.TOO_MANY_PIXELS, Flaw.STOWAWAY}


def _photo_message(seen: Rejected) -> str:
    message = str(_PHOTO_MESSAGES[seen.flaw]) % {
        "limit": results.picture_process().max_pixels / 1e6
    }
    return f"{message} ({seen.reason})" if seen.flaw in _FINDING_HELPS else message
