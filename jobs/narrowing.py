"""How a list is narrowed, as its address tells: what of it can be kept under a name. Pure."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

# The lists that have them; those of the admin under the name of their model.
PLACES = (
    "jobs_job", "jobs_batch", "jobs_case", "jobs_providertask", "jobs_polzatask", "jobs_callback", "jobs_result",
    "jobs_alert", "gallery",
)  # fmt: skip
# Where somebody is in a list is no filter of it.
_PAGES = frozenset({"p", "o", "e", "all", "older", "newer", "before", "after", "_changelist_filters", "_popup"})  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")


def plain(query: str) -> str:
    """The filters of an address's query, and nothing else that it may carry."""
    pairs = parse_qsl(query.removeprefix("?"), max_num_fields=50)
    kept = [(name, value[:300]) for name, value in pairs if _NAME.fullmatch(name) and name not in _PAGES and "\0" not in value]  # fmt: skip
    return urlencode(sorted(kept))
