"""JSON schemas of arguments, as far as a grammar has to look into them: which types, and which raw strings.

Unusual: a constraint that raw text cannot be held to while it is written is passed over. Schemas here were checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from openk3.chat.grammar_text import ANY_TEXT, literal, refusal_of, regex
from openk3.chat.json_schema_check import TYPES, Schema, resolve
from openk3.chat.json_schema_refs import self_contained
from openk3.errors import ChatError

# How far references are followed from one argument, and how many schemas are looked at for one grammar.
_MAX_STEPS = 64
_MOST_VISITS = 200_000
# Characters of a pattern, or of all that a string is held to: alternatives can double it at every reference.
_MOST_CHARACTERS = 1 << 14
# They restrict nothing, and without them more schemas are alike.
ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}


class Visits:
    """Count the schemas that are looked at for one grammar; those that refer to one another can be endlessly many."""

    def __init__(self, most: int = _MOST_VISITS) -> None:
        self._most = self._num_left = most

    def count(self) -> None:
        """Count one more; raise `ChatError` if it is one too many."""
        self._num_left -= 1
        if self._num_left < 0:
            raise ChatError(
                f"the schemas of the tools refer to one another in more than {self._most:,} ways",
                hint="let anyOf, oneOf and allOf refer to fewer schemas that do so too",
            )


_Path = frozenset[int]
"""Schemas on the way to one, by their ids: one of them again would go round in circles."""


class ArgumentSchema:
    """The schema of one argument, within the ``root`` of a tool's parameters that its references look into."""

    def __init__(self, schema: Schema, root: Mapping[str, Any], visits: Visits | None = None) -> None:
        self._schema = schema
        self._root = root
        self._visits = visits or Visits()

    @property
    def types(self) -> list[str]:
        """Which types its values can have, at least one: if none can, all."""
        possible = self._types(self._schema, frozenset())
        return [type_ for type_ in TYPES if type_ in possible] or list(TYPES)

    @property
    def raw_string(self) -> str:
        """A terminal for the strings it allows, unquoted; any text if none can match."""
        raw = self._raw(self._schema, frozenset()) or ANY_TEXT
        return ANY_TEXT if raw == ANY_TEXT or refusal_of(f"TEXT\nTEXT: {raw}") else raw

    @property
    def lark(self) -> str | None:
        """The grammar that it holds strings to, in its own keyword ``x-lark``; None if there is none."""
        lark = None if isinstance(self._schema, bool) else self._schema.get("x-lark")
        return lark if isinstance(lark, str) else None

    def json_schema(self, type_: str) -> Mapping[str, Any]:
        """Give a schema, complete in itself, for the values of one type that is not string."""
        if isinstance(self._schema, bool) or not self._schema:
            return {"type": type_}
        schema = {key: value for key, value in self._schema.items() if key not in ANNOTATIONS}
        if (listed := _listed(schema)) is not None:
            schema = {key: value for key, value in schema.items() if key not in ("const", "type")}
            schema["enum"] = [value for value in listed if _type_of(value) == type_]
        narrowed = schema if schema.get("type") in (type_, "integer") else {"type": type_, "allOf": [schema]}
        return self_contained(narrowed, self._root)

    def _types(self, schema: Schema, path: _Path) -> set[str]:
        if isinstance(schema, bool):
            return set(TYPES) if schema else set()
        possible = set(TYPES)
        if (further := self._step(schema, path)) is None:
            return possible
        if (listed := _listed(schema)) is not None:
            possible &= {_type_of(value) for value in listed}
        if "type" in schema:
            names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            possible &= {"number" if name == "integer" else name for name in names}
        for part in self._parts(schema):
            possible &= self._types(part, further)
        for branches in _alternatives(schema):
            possible &= set().union(*(self._types(branch, further) for branch in branches))
        return possible

    def _raw(self, schema: Schema, path: _Path) -> str | None:
        """Give a terminal for the strings that ``schema`` allows; None if there are none."""
        if isinstance(schema, bool):
            return ANY_TEXT if schema else None
        if (further := self._step(schema, path)) is None:
            return ANY_TEXT
        if "string" not in self._types(schema, path):
            return None
        if (listed := _listed(schema)) is not None:
            return _choice(map(literal, _of_length(schema, [value for value in listed if isinstance(value, str)])))
        parts = [*_length(schema), *_pattern(schema)]
        parts += [self._raw(part, further) or ANY_TEXT for part in self._parts(schema)]
        for branches in _alternatives(schema):
            parts.append(_choice(raw for branch in branches if (raw := self._raw(branch, further))))
        raw = " & ".join(dict.fromkeys(part for part in parts if part != ANY_TEXT)) or ANY_TEXT
        return raw if len(raw) <= _MOST_CHARACTERS else ANY_TEXT

    def _step(self, schema: Mapping[str, Any], path: _Path) -> _Path | None:
        """Go one schema further; None if that leads round in circles, or too far."""
        self._visits.count()
        return None if id(schema) in path or len(path) >= _MAX_STEPS else path | {id(schema)}

    def _parts(self, schema: Mapping[str, Any]) -> Iterator[Schema]:
        """Give what must hold besides ``schema``."""
        target = resolve(schema.get("$ref"), self._root)
        if target is not None:
            yield target
        yield from schema.get("allOf", ())


def _alternatives(schema: Mapping[str, Any]) -> Iterator[Sequence[Schema]]:
    yield from (schema[keyword] for keyword in ("anyOf", "oneOf") if schema.get(keyword))


def _listed(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """Give the values that a schema lists one by one; None if it does not."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, Mapping) else "array"


def _choice(terminals: Iterable[str]) -> str:
    distinct = dict.fromkeys(terminals)
    return f"({' | '.join(distinct)})" if distinct and ANY_TEXT not in distinct else ANY_TEXT


def _length(schema: Mapping[str, Any]) -> list[str]:
    """Bound the number of characters."""
    least, most = (_whole(schema.get(keyword)) for keyword in ("minLength", "maxLength"))
    if not least and most is None:
        return []
    return _enforceable(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")


def _of_length(schema: Mapping[str, Any], texts: list[str]) -> list[str]:
    """Leave out what is too short or too long; if all are, nothing."""
    least, most = (_whole(schema.get(keyword)) for keyword in ("minLength", "maxLength"))
    fitting = [text for text in texts if (least or 0) <= len(text) <= (len(text) if most is None else most)]
    return fitting or texts


def _whole(number: Any) -> int | None:
    is_whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    return int(number) if is_whole and number >= 0 else None


def _pattern(schema: Mapping[str, Any]) -> list[str]:
    """Hold the text to a pattern, which may match anywhere in it."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str) or len(pattern) > _MOST_CHARACTERS:
        return []
    whole = "|".join(_anchored(branch) for branch in _branches(pattern))
    return _enforceable(regex(whole, ascii_classes=True))


def _anchored(branch: str) -> str:
    """Spell out what an anchor at either end forbids."""
    unescaped = branch.rstrip("$")
    at_end = branch.endswith("$") and (len(unescaped) - len(unescaped.rstrip("\\"))) % 2 == 0
    start = "" if branch.startswith("^") else "(?s:.*)"
    body = branch.removeprefix("^")
    return f"{start}(?:{body.removesuffix('$') if at_end else body}){'' if at_end else '(?s:.*)'}"


def _branches(pattern: str) -> list[str]:
    """Split a pattern at the bars that are not inside of anything."""
    branches, depth, in_class, escaped = [""], 0, False, False
    for character in pattern:
        if character == "|" and not (depth or in_class or escaped):
            branches.append("")
            continue
        branches[-1] += character
        if not escaped:
            depth += 0 if in_class else (character == "(") - (character == ")")
            in_class = character == "[" or (in_class and character != "]")
        escaped = character == "\\" and not escaped
    return branches


def _enforceable(terminal: str) -> list[str]:
    return [] if refusal_of(terminal) else [terminal]
