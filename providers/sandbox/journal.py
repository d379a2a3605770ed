"""A ledger's file: one JSON record a line, appended as it happens, read back at the next start."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Self

from .ledger import Ledger, Record


class Journal:
    """Opens (or begins) the file and gives `ledger`, filled with what the file tells.

    A last line without its end (the process was killed while writing) is dropped. Raises ValueError naming the line for
    anything else that is not a ledger's record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger()
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_bytes() if path.exists() else b""
        kept = whole[: whole.rfind(b"\n") + 1]
        for number, line in enumerate(kept.splitlines(), start=1):
            try:
                self.ledger.replay(json.loads(line))
            except (KeyError, TypeError, ValueError) as wrong:
                raise ValueError(
                    f"{path}, line {number}: not a record of a sandbox ledger ({wrong})"
                ) from None
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.truncate(len(kept))
        self._file.seek(len(kept))
        self.ledger.sink = self._write

    def _write(self, record: Record) -> None:
        # Unbuffered: what was accepted is in the kernel before the answer leaves, so that it survives a kill.
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def clear(self) -> Ledger:
        """Forgets everything; the empty ledger that goes on in the same file."""
        self._file.truncate(0)
        self._file.seek(0)
        self.ledger = Ledger(self._write)
        return self.ledger

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
