"""Photos from an uploaded ZIP archive. Nothing is unpacked to the disk by its own name, and nothing without bounds.

Entries are found by the name that a row gives, read one at a time, and go through the same checks as any photo. A name that
leads out of the archive (`../`, absolute, with a drive) is never found, whoever asks for it.
"""

from __future__ import annotations

import io
import lzma
import unicodedata
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import IO, cast

from django.utils.translation import gettext as _

from jobs import intake
from jobs.intake import InputError, Taken

MAX_ARCHIVE_BYTES = 512 * 1024 * 1024
MAX_ENTRIES = 2000
MAX_UNPACKED_BYTES = 1024 * 1024 * 1024
# Photos are packed already. What shrinks a hundredfold is no photo.
MAX_RATIO = 100
_RATIO_FROM_BYTES = 1024 * 1024
_ENCRYPTED = 0x1


def check_bounds(file: IO[bytes], *, parts: int, total_bytes: int) -> zipfile.ZipFile:
    """The opened archive. InputError for what is none, has too many parts, or says that it unpacks to too much.

    zipfile never gives more bytes of an entry than its directory says, so a lying one is cut, not trusted.
    """
    try:
        opened = zipfile.ZipFile(file)
        entries = opened.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise InputError("", _("The archive can't be read. Pack it again as ZIP.")) from error
    if len(entries) > parts:
        raise InputError(
            "", _("The archive has more than %(limit)d files. Split it.") % {"limit": parts}
        )
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > total_bytes:
        raise InputError(
            "",
            _("The archive would unpack to %(size)d MB, more than %(limit)d MB. Is it a zip bomb?")
            % {"size": unpacked // 2**20, "limit": total_bytes // 2**20},
        )
    file.seek(0)
    return opened


class Photos:
    """The photos of one archive, by name. `close` it, or use it in a `with`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._zip = check_bounds(file, parts=MAX_ENTRIES, total_bytes=MAX_UNPACKED_BYTES)
        self._by_path: dict[str, zipfile.ZipInfo] = {}
        self._by_name: dict[str, list[zipfile.ZipInfo]] = {}
        self._taken: dict[str, Taken | InputError] = {}
        self.unsafe: list[str] = []
        for entry in self._zip.infolist():
            if entry.is_dir() or _is_rubbish(entry.filename):
                continue
            if leads_out(entry.filename):
                self.unsafe.append(entry.filename)
                continue
            path = _same(entry.filename)
            self._by_path[path] = entry
            self._by_name.setdefault(PurePosixPath(path).name, []).append(entry)

    def __enter__(self) -> Photos:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._zip.close()

    def take(self, name: str) -> Taken:
        """The photo of that path, or of that file name where only one folder has it; checked and kept. InputError (field
        `photo`) says what is wrong with it; each photo is looked at once."""
        entry = self._find(name)
        if entry.filename not in self._taken:
            try:
                self._taken[entry.filename] = self._keep(entry)
            except InputError as error:
                self._taken[entry.filename] = error
        taken = self._taken[entry.filename]
        if isinstance(taken, InputError):
            raise taken
        return taken

    def _find(self, name: str) -> zipfile.ZipInfo:
        if leads_out(name):
            raise leads_out_error(name)
        asked = _same(name)
        found = [self._by_path[asked]] if asked in self._by_path else self._by_name.get(asked, [])
        if not found:
            raise InputError(
                "photo", _("The archive has no photo “%(name)s”.") % {"name": _short(name)}
            )
        if len(found) > 1:
            raise InputError(
                "photo",
                _("The archive has “%(name)s” in several folders. Write the folder too.")
                % {"name": _short(name)},
            )
        return found[0]

    def _keep(self, entry: zipfile.ZipInfo) -> Taken:
        if entry.flag_bits & _ENCRYPTED:
            raise InputError("photo", _("The photo is locked with a password in the archive."))
        if entry.file_size > intake.MAX_PHOTO_BYTES:
            raise InputError(
                "photo",
                _("The photo has more than %(limit)d MB. Save it smaller.")
                % {"limit": intake.MAX_PHOTO_BYTES // 2**20},
            )
        packed = max(entry.compress_size, 1)
        if entry.file_size > _RATIO_FROM_BYTES and entry.file_size / packed > MAX_RATIO:
            raise InputError(
                "photo",
                _("It unpacks to %(times)d times its size: no photo does. Is it a zip bomb?")
                % {"times": entry.file_size // packed},
            )
        try:
            with self._zip.open(entry) as file:
                return intake.take_photo(cast("IO[bytes]", _Unpacked(file)))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:  # fmt: skip
            raise _damaged() from error


class _Unpacked(io.BufferedIOBase):
    """An entry being read. What its unpacking stumbles over is the archive's fault: bz2 says it by an OSError, which from our
    own disk would mean something else."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int | None = -1, /) -> bytes:
        try:
            return self._file.read(-1 if size is None else size)
        except (OSError, ValueError, lzma.LZMAError) as error:
            raise _damaged() from error


def _damaged() -> InputError:
    return InputError("photo", _("The photo is damaged in the archive. Pack it again."))


def leads_out(name: str) -> bool:
    """Whether a name tries to be anything but a path inside the archive."""
    path = name.replace("\\", "/")
    return (
        path.startswith("/")
        or "\0" in name
        or ".." in path.split("/")
        or (len(path) > 1 and path[1] == ":")
    )


def leads_out_error(name: str) -> InputError:
    return InputError(
        "photo",
        _("“%(name)s” leads out of the archive. Write the photo's name in it.")
        % {"name": _short(name)},
    )


def _same(name: str) -> str:
    """Names that people take for the same: macOS packs them decomposed, Windows does not care about case."""
    return unicodedata.normalize("NFC", name.replace("\\", "/")).casefold().removeprefix("./")


def _is_rubbish(name: str) -> bool:
    """What macOS and Windows add by themselves."""
    parts = name.split("/")
    return parts[0] == "__MACOSX" or parts[-1] in {".DS_Store", "Thumbs.db"}


def _short(name: str) -> str:
    line = "".join(c if c.isprintable() else "?" for c in name)
    return line if len(line) <= 60 else line[:59] + "…"
