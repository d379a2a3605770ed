"""How well answers are understood: class, wait and charge against corpora of real ones.

`python -m bench.classify [--json] [--quick] [--corpus FILE]`. Each line of a corpus holds `id, provider, status, headers,
body, expected, retry_after_s, charge_risk`. The classes are mapped to the corpus's labels first: unauthorized counts as
rejected, unknown as down with a possible charge. Waits are judged only where a line tells one.

Two corpora are judged: the shared one, and answers gathered from public reports, documents and tests, or composed in their
shape, each labelled before the classifier had seen it. Both are known to the rules by now, so they guard against
steps back; how well a new answer is understood, only the first pass over a new batch tells.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from providers.adapters.polza import RULES as POLZA
from providers.classify import GENERIC, Rules, classify
from providers.contract import Answer, Charge, FailureClass, Refusal

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
SHARED = DATA / "error-corpus.jsonl"
GATHERED = DATA / "error-gathered.jsonl"
LABELS = ("quota_exhausted", "rate_limited", "rejected", "down")
LIMITS = {"class_share_min": 0.97, "wait_share_min": 0.97, "possible_taken_for_none_max": 0}
RULES: Mapping[str, Rules] = {"polza": POLZA}
_LABEL = {FailureClass.UNAUTHORIZED: "rejected", FailureClass.UNKNOWN: "down"}


@dataclass(frozen=True)
class Judged:
    """One line and what became of it. `wait_right` is None where the line tells no wait."""

    line: Mapping[str, Any]
    got: Refusal
    label: str
    class_right: bool
    wait_right: bool | None
    charge_safe: bool

    @property
    def right(self) -> bool:
        return self.class_right and self.wait_right is not False and self.charge_safe


def judge(line: Mapping[str, Any]) -> Judged:
    """Classify one line of a corpus and compare."""
    answer = Answer(line["status"], line["headers"], line["body"].encode())
    got = classify(answer, rules=RULES.get(line["provider"], GENERIC))
    label = _LABEL.get(got.failure, got.failure.value)
    told = line["retry_after_s"]
    wait_right = None
    if told is not None:
        wait_right = got.wait_s is not None and abs(got.wait_s - told) <= max(1.0, 0.02 * told)
    return Judged(
        line=line,
        got=got,
        label=label,
        class_right=label == line["expected"],
        wait_right=wait_right,
        charge_safe=not (line["charge_risk"] == "possible" and got.charge is Charge.NONE),
    )


def read_corpus(path: Path) -> list[dict[str, Any]]:
    """The lines of a corpus file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def confusion(judged: Iterable[Judged]) -> dict[str, dict[str, int]]:
    """expected -> got -> count."""
    counts = Counter((one.line["expected"], one.label) for one in judged)
    return {expected: {got: counts[expected, got] for got in LABELS} for expected in LABELS}


def figures_of(path: Path) -> dict[str, Any]:
    """The figures of one corpus."""
    judged = [judge(line) for line in read_corpus(path)]
    waits = [one.wait_right for one in judged if one.wait_right is not None]
    return {
        "lines": len(judged),
        "class_share": round(sum(one.class_right for one in judged) / max(1, len(judged)), 4),
        "wait_lines": len(waits),
        "wait_share": round(sum(waits) / len(waits), 4) if waits else 1.0,
        "waits_invented": sum(
            one.wait_right is None and one.got.wait_s is not None for one in judged
        ),
        "possible_taken_for_none": sum(not one.charge_safe for one in judged),
        "free_taken_for_possible": sum(
            one.line["charge_risk"] == "none" and one.got.charge is not Charge.NONE
            for one in judged
        ),
        "confusion": confusion(judged),
        "wrong": [_told(one) for one in judged if not one.right],
    }


def _told(one: Judged) -> dict[str, Any]:
    line, got = one.line, one.got
    return {
        "id": line["id"],
        "expected": [line["expected"], line["retry_after_s"], line["charge_risk"]],
        "got": [got.failure.value, got.wait_s, got.charge.value],
    }


def within_limits(figures: Mapping[str, Any]) -> bool:
    """Whether the figures of one corpus keep LIMITS."""
    return bool(
        figures["lines"]
        and figures["class_share"] >= LIMITS["class_share_min"]
        and figures["wait_share"] >= LIMITS["wait_share_min"]
        and figures["possible_taken_for_none"] <= LIMITS["possible_taken_for_none_max"]
    )


def measure(path: Path = SHARED, *, beside: Path | None = None) -> dict[str, Any]:
    """The report: `name, ok, figures, limits, machine`. The figures of `beside` stand under its own name in them."""
    figures = figures_of(path)
    ok = within_limits(figures)
    if beside is not None:
        figures["gathered"] = figures_of(beside)
        ok = ok and within_limits(figures["gathered"])
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    return {"name": "classify", "ok": ok, "figures": figures, "limits": LIMITS, "machine": machine}


def table(figures: Mapping[str, Any]) -> str:
    """The figures of one corpus for people."""
    lines = [f"{'expected / got':>16} " + " ".join(f"{label:>16}" for label in LABELS)]
    for expected, row in figures["confusion"].items():
        lines.append(f"{expected:>16} " + " ".join(f"{row[label]:>16}" for label in LABELS))
    lines.append("")
    lines += [
        f"{name}: {value}"
        for name, value in figures.items()
        if name not in ("confusion", "wrong", "gathered")
    ]
    lines += [
        f"wrong: {one['id']} expected {one['expected']} got {one['got']}"
        for one in figures["wrong"]
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when the limits are kept, 1 when not."""
    parser = argparse.ArgumentParser(description="How well provider answers are understood.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="accepted for uniformity: it is quick")
    parser.add_argument("--corpus", type=Path, help="only this corpus")
    options = parser.parse_args(arguments)
    report = measure(options.corpus) if options.corpus else measure(beside=GATHERED)
    if options.json:
        text = json.dumps(report, ensure_ascii=False)
    else:
        figures = report["figures"]
        parts = [f"{options.corpus or SHARED.name}\n{table(figures)}"]
        if "gathered" in figures:
            parts.append(f"{GATHERED.name}\n{table(figures['gathered'])}")
        text = "\n\n".join((*parts, "ok" if report["ok"] else "NOT ok"))
    sys.stdout.write(text + "\n")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
