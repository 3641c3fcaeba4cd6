"""Write the pages of this folder from the code: ``make docs``. A test fails while they differ."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from unittest.mock import patch

from openk3.cli.main import make_app

FOLDER = Path(__file__).parent

_NOTICE = "<!-- Written by docs/reference/generate.py; `make docs` writes it anew. -->\n\n"
_EXIT_CODES = """
## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, or the check did |
| 2 | bad usage |
| 130 | ended by Ctrl-C |

Data goes to stdout, everything else to stderr. A flag of a verb can also be an environment variable, e.g.
`OPENK3_CHAT_MAX_TOKENS` for `openk3 chat --max-tokens`; the flag wins.
"""


def cli_page() -> str:
    """Give the page of all verbs and flags."""
    # a verb with verbs of its own names the program after the running process, which may be pytest
    with patch.object(sys, "argv", ["openk3"]):
        text = make_app().generate_docs(output_format="markdown")
    # The list of commands that follows it says the same and more.
    text = re.sub(r"## Table of Contents\n.*?(?=\*\*Commands\*\*)", "", text, flags=re.DOTALL)
    return _NOTICE + text.strip() + "\n" + _EXIT_CODES


if __name__ == "__main__":
    (FOLDER / "cli.md").write_text(cli_page(), encoding="utf-8")
