"""Breaking the product on purpose: a module is loaded with one piece of its text exchanged.

`install` must run before the module is imported. The piece must occur exactly once, so that a mutant which the code has
outgrown says so instead of changing nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType


@dataclass(frozen=True, slots=True)
class Mutant:
    """`catcher`: "simulation", or the pytest node that must fail. `edits`: (module, text, what stands there instead)."""

    name: str
    says: str
    edits: tuple[tuple[str, str, str], ...]
    catcher: str = "simulation"


class OutgrownError(RuntimeError):
    """The text a mutant exchanges does not stand in its module exactly once."""


def mutated(mutant: Mutant, module: str, source: str) -> str:
    """The source of a module with the mutant's edits. Raises OutgrownError."""
    for where, old, new in mutant.edits:
        if where == module:
            if source.count(old) != 1:
                raise OutgrownError(
                    f"mutant {mutant.name}: its text occurs {source.count(old)} times in {module}, not once"
                )
            source = source.replace(old, new)
    return source


def source_of(module: str) -> str:
    root = Path(__file__).resolve().parent.parent.parent
    return (root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def install(mutant: Mutant) -> None:
    """From now on the mutant's modules are imported in their broken form. Raises OutgrownError at once, not then."""
    modules = {where for where, _, _ in mutant.edits}
    for module in modules:
        mutated(mutant, module, source_of(module))
        if module in sys.modules:
            raise RuntimeError(f"{module} is imported already")
    sys.meta_path.insert(0, _Finder(mutant, modules))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant, modules: set[str]) -> None:
        self._mutant, self._modules = mutant, modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._mutant)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        """From the source, past the cache of compiled modules."""
        source = mutated(self._mutant, fullname, self.get_data(self.path).decode())
        return self.source_to_code(source.encode(), self.path)
