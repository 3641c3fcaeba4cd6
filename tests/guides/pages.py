"""A page of documentation as a script: its blocks of one language, in order, with what each of them has to print.

Unusual: code keeps its line, so that an error names the line of the page. After each block the script prints a mark.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITTEN_URL = "http://127.0.0.1:8000"
"""The address that the pages use."""
KEY = "sk-local"
"""The key that they use."""

_MARK = "\0"
_PRINT_MARK = {
    "python": r'print("\0", flush=True)',
    "ts": r'console.log("\0");',
    "console": r"printf '\000\n'",
}
_FENCE = re.compile(r"```(\w*)")


class Block(NamedTuple):
    """Code on a page; ``expected`` is the block of text right behind it, None if there is none."""

    line: int
    language: str
    code: str
    expected: str | None


def blocks(page: str, language: str, section: str | None = None) -> list[Block]:
    """Return the blocks of one language, on the whole page or below one heading."""
    found: list[Block] = []
    for block, heading in _all_blocks((ROOT / page).read_text(encoding="utf-8").split("\n")):
        if section not in (None, heading):
            continue
        if block.language == language:
            found.append(block)
        elif block.language == "text" and found and found[-1].line + found[-1].code.count("\n") + 3 == block.line:
            found[-1] = found[-1]._replace(expected=block.code)
    assert found, f"{page} has no {language}"
    return found


def _all_blocks(lines: list[str]) -> list[tuple[Block, str]]:
    found: list[tuple[Block, str]] = []
    heading, start = "", 0
    for number, line in enumerate(lines, 1):
        if start:
            if line == "```":
                language = lines[start - 1].removeprefix("```")
                code = "".join(f"{inner}\n" for inner in lines[start : number - 1])
                found.append((Block(start + 1, language, code, None), heading))
                start = 0
        elif _FENCE.fullmatch(line):
            start = number
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found


def script(found: list[Block], url: str) -> str:
    """Put blocks into one script that asks the server at ``url``."""
    lines: list[str] = []
    for block in found:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.removesuffix("\n").split("\n")
        lines.append(_PRINT_MARK[block.language])
    text = "\n".join(lines) + "\n"
    if found[0].language == "console":
        text = re.sub(r"^\$ ", "", text, flags=re.MULTILINE)
    return text.replace(WRITTEN_URL, url)


def check(page: str, found: list[Block], printed: str) -> None:
    """Compare what a script printed with what the page says; ``...`` there stands for anything."""
    parts = printed.split(f"{_MARK}\n")
    assert len(parts) == len(found) + 1, printed
    for block, part in zip(found, parts, strict=False):
        if block.expected is None:
            continue
        told = part if part.endswith("\n") else f"{part}\n"
        if not doctest.OutputChecker().check_output(block.expected, told, doctest.ELLIPSIS):
            where = f"{page}:{block.line}"
            pytest.fail(f"{where} prints\n{told}\nbut the page says\n{block.expected}", pytrace=False)
