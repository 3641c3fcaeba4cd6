"""Pieces of grammar text in llguidance's dialect of Lark, and whether llguidance takes them.

Unusual: a tag is one terminal between its control tokens; with terminals that begin alike, llguidance would commit
itself to the shorter one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, regex_to_lark

from openk3.chat.tags import escape

if TYPE_CHECKING:
    from openk3.tokenizer.special import SpecialTokens

ANY_TEXT = r"/(?s:.*)/"
"""A terminal for text of any length, empty too; control tokens are no text."""

# Keywords and formats that cannot be enforced while writing are passed over, oneOf is anyOf. A model that is free to
# write white space at times writes nothing else, so one run of it is bounded.
_JSON_OPTIONS = {"lenient": True, "whitespace_pattern": r"[ \n\r\t]{1,128}"}


class GrammarWriter:
    """Collect rules and terminals under names that are used once; rules may refer to what comes later."""

    def __init__(self, special: SpecialTokens) -> None:
        """Raise `TokenizerError` if the vocabulary lacks the control tokens of the chat format."""
        self._open, self._close, self._sep = (f"<[{token}]>" for token in (special.open, special.close, special.sep))
        self.end = f"<[{special.end_of_msg}]>"
        self._lines: list[str] = []

    def define(self, name: str, body: str) -> str:
        """Add a rule, or a terminal if ``name`` is in capitals, and give its name."""
        self._lines.append(f"{name}: {body}")
        return name

    def new(self, name: str, body: str) -> str:
        """Add a rule or terminal whose name begins with ``name``, and give its whole name."""
        return self.define(f"{name}_{len(self._lines)}", body)

    def open(self, tag: str) -> str:
        """Give an opening tag, ``tag`` being a literal or the name of a terminal."""
        return f"{self._open} {tag} {self._sep}"

    def close(self, name: str) -> str:
        """Give a closing tag."""
        return f"{self._close} {literal(name)} {self._sep}"

    def element(self, tag: str, name: str, body: str) -> str:
        """Give an element: the opening tag ``tag``, ``body``, and the closing tag of ``name``."""
        return f"{self.open(tag)} {body} {self.close(name)}"

    @property
    def text(self) -> str:
        """The whole grammar."""
        return "\n".join(self._lines) + "\n"


def literal(text: str) -> str:
    """Give a terminal for exactly ``text``."""
    return json.dumps(text, ensure_ascii=False)


def attribute(key: str, value: str) -> str:
    """Spell an attribute of a tag."""
    return f' {key}="{escape(value)}"'


def json_value(schema: Mapping[str, Any]) -> str:
    """Give what matches a JSON text by ``schema``, as far as that can be enforced."""
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON_OPTIONS}, ensure_ascii=False)}"


def regex(pattern: str, *, ascii_classes: bool = False) -> str:
    r"""Give a terminal for a regular expression; with ``ascii_classes``, ``\d`` and ``\w`` are ASCII only."""
    return f"/{regex_to_lark(pattern, 'dw' if ascii_classes else '')}/" if pattern else literal("")


@lru_cache(maxsize=1024)
def fault_of(start: str) -> str | None:
    """Say why llguidance refuses a grammar whose start is ``start``; None if it takes it. Remembers answers."""
    return fault_of_grammar(f"start: {start}\n")


def fault_of_grammar(lark: str) -> str | None:
    """Say why llguidance refuses a grammar; None if it takes it."""
    is_error, messages = LLMatcher.validate_grammar_with_warnings(lark)
    return messages[0].split("\n   1 |")[0].strip() if is_error else None


def has_special_tokens(lark: str) -> bool:
    """Tell whether a grammar speaks of token ids, which only a tokenizer could check."""
    return any("no tokenizer" in message for message in LLMatcher.validate_grammar_with_warnings(lark)[1])
