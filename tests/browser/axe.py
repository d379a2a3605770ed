"""axe-core over a page: what it finds that is serious or critical by WCAG 2.2 AA. Its script comes with a package and is run from
outside the page, so the content policy stays as it is and nothing is fetched."""

from __future__ import annotations

from importlib import resources
from typing import Any

from playwright.sync_api import Page

SCRIPT = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    "resultTypes": ["violations"],
}
SERIOUS = frozenset({"serious", "critical"})


def findings(page: Page) -> list[str]:
    """One line an element: the rule, what is wrong, where. Whatever moves is let come to rest before."""
    page.evaluate(SCRIPT)
    said: dict[str, Any] = page.evaluate("rules => axe.run(document, rules)", RULES)
    return [
        f"{found['id']} ({found['impact']}): {' '.join(map(str, node['target']))}: {_why(node)}"
        for found in said["violations"]
        if found["impact"] in SERIOUS
        for node in found["nodes"]
    ]


def _why(node: dict[str, Any]) -> str:
    checks = [*node["any"], *node["all"], *node["none"]]
    return "; ".join(check["message"] for check in checks) + f"  {node['html'][:160]}"
