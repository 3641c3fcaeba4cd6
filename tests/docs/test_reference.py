"""Generated pages are current, and links between pages lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")])
_LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#)([^)#\s]+)")


def test_the_page_of_verbs_is_what_the_code_says() -> None:
    generated = runpy.run_path(str(ROOT / "docs" / "reference" / "generate.py"))["cli_page"]()
    written = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert written == generated, "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
