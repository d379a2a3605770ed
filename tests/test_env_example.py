"""`.env.example` and the settings name the same things."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ = re.compile(r'(?:env\.\w+|_number|_whole|_flag)\(\s*"([A-Z][A-Z_]+)"')


def test_the_example_lists_every_setting_and_no_other() -> None:
    source = (ROOT / "studio" / "settings.py").read_text(encoding="utf-8")
    read = set(READ.findall(source)) | {"POLZA_API_KEY", "POLZA_BASE_URL"}
    listed = set(
        re.findall(r"^([A-Z][A-Z_]+)=", (ROOT / ".env.example").read_text("utf-8"), re.MULTILINE)
    )
    assert listed == read
