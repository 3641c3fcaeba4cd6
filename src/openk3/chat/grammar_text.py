"""Pieces of grammar text in llguidance's dialect of Lark, and whether llguidance takes them.

Unusual: a tag is one terminal between its control tokens; with terminals that begin alike, llguidance would commit
itself to the shorter one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLTokenizer, regex_to_lark

from openk3.chat.json_text import spaced_json
from openk3.chat.tags import escape
from openk3.errors import ChatError

if TYPE_CHECKING:
    from openk3.tokenizer.special import SpecialTokens

ANY_TEXT = r"/(?s:.*)/"
"""A terminal for text of any length, empty too; control tokens are no text."""

# Keywords and formats that cannot be enforced while writing are passed over, oneOf is anyOf. A small model that is free
# to write white space writes nothing else, so a run of it is short: the next token is one that goes on.
_JSON_OPTIONS = {"lenient": True, "whitespace_pattern": r"[ \n\r\t]{1,8}"}

_MOST_REMEMBERED = 4096
# Of a grammar within another: time to read alternatives grows with the square of their number.
_MOST_LINES = 2048


class GrammarWriter:
    """Collect rules and terminals under names that are used once; rules may refer to what comes later."""

    def __init__(self, special: SpecialTokens) -> None:
        """Raise `TokenizerError` if the vocabulary lacks the control tokens of the chat format."""
        self._open, self._close, self._sep = (f"<[{token}]>" for token in (special.open, special.close, special.sep))
        self.end = f"<[{special.end_of_msg}]>"
        self._lines: list[str] = []
        self._shared: dict[str, str] = {}

    def define(self, name: str, body: str) -> str:
        """Add a rule, or a terminal if ``name`` is in capitals, and give its name."""
        self._lines.append(f"{name}: {body}")
        return name

    def new(self, name: str, body: str) -> str:
        """Add a rule or terminal whose name begins with ``name``, and give its whole name."""
        return self.define(f"{name}_{len(self._lines)}", body)

    def shared(self, name: str, body: str) -> str:
        """Like `new`, but give the rule of the same ``body`` if there is one, as grammars have a largest size."""
        if body not in self._shared:
            self._shared[body] = self.new(name, body)
        return self._shared[body]

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
    def num_rules(self) -> int:
        """How many rules and terminals there are."""
        return len(self._lines)

    @property
    def text(self) -> str:
        """The whole grammar."""
        return "\n".join(self._lines) + "\n"


def literal(text: str) -> str:
    """Give a terminal for exactly ``text``."""
    # JSON allows this one control character as it is, llguidance does not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def attribute(key: str, value: str) -> str:
    """Spell an attribute of a tag."""
    return f' {key}="{escape(value)}"'


def json_value(schema: Mapping[str, Any], *, on_one_line: bool = False) -> str:
    """Give what matches a JSON text by ``schema``, as far as that can be enforced.

    ``on_one_line`` allows no white space but single spaces.
    """
    options = {**_JSON_OPTIONS, "whitespace_pattern": " "} if on_one_line else _JSON_OPTIONS
    return f"%json {spaced_json({**schema, 'x-guidance': options}, 'a schema')}"


def regex(pattern: str, *, ascii_classes: bool = False) -> str:
    r"""Give a terminal for a regular expression; with ``ascii_classes``, ``\d`` and ``\w`` are ASCII only."""
    return f"/{regex_to_lark(pattern, 'dw' if ascii_classes else '')}/" if pattern else literal("")


def refusal_of(start: str) -> str | None:
    """Say why llguidance refuses a grammar whose start is ``start``; None if it takes it. Remembers short ones."""
    return _remembered(start) if len(start) <= _MOST_REMEMBERED else fault_of_grammar(f"start: {start}\n")


@lru_cache(maxsize=1024)
def _remembered(start: str) -> str | None:
    return fault_of_grammar(f"start: {start}\n")


def fault_of_grammar(lark: str) -> str | None:
    """Say why llguidance refuses a grammar without special tokens, or that it matches nothing; None if it takes it.

    That nothing matches is only found out if not even a first token does.
    """
    is_error, messages = LLMatcher.validate_grammar_with_warnings(lark)
    if is_error:
        return _shortened(messages[0])
    automaton = LLMatcher(_byte_tokenizer(), lark, log_level=0)
    is_refused = automaton.is_error()
    automaton.compute_bitmask()
    if not automaton.is_error():
        return None
    return _shortened(automaton.get_error()) if is_refused else "nothing matches it"


def nested(lark: str, what: str) -> str:
    """Give a whole grammar as part of another; that it is one was checked, so it does not end the braces around it.

    Raises:
        ChatError: ``what``, as it is called there, is no grammar of text, or too long.
    """
    if (num_lines := lark.count("\n")) > _MOST_LINES:
        raise ChatError(f"{what} has {num_lines} lines, expected at most {_MOST_LINES}")
    if has_special_tokens(lark):
        raise ChatError(f"{what} names special tokens, expected text only")
    if fault := fault_of_grammar(lark):
        raise ChatError(f"{what} is no grammar: {fault}")
    return f"%lark {{\n{lark}\n}}"


def has_special_tokens(lark: str) -> bool:
    """Tell whether a grammar speaks of token ids, which only a tokenizer could check."""
    return any("no tokenizer" in message for message in LLMatcher.validate_grammar_with_warnings(lark)[1])


def encodable(text: str) -> str:
    """Give ``text`` back; raise `ChatError` if it holds half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ChatError(f"a tool or schema holds half a surrogate pair: {text[error.start]!r}") from None
    return text


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def _shortened(message: str) -> str:
    """Leave out the lines around the fault, which the user did not write."""
    return message.split("<state>")[0].split("\n   1 |")[0].strip()
