"""JSON schemas of arguments, as far as a grammar has to look into them: which types, and which raw strings.

Unusual: a constraint that raw text cannot be held to while it is written is passed over. A schema that contradicts the
standard is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openk3.chat.grammar_text import ANY_TEXT, fault_of, literal, regex
from openk3.errors import ChatError

TYPES = ("string", "number", "boolean", "null", "object", "array")
"""The types that the chat format tells apart; integers are numbers."""

Schema = Mapping[str, Any] | bool
_SUBSCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# llguidance reads JSON of 128 levels, and a level of a schema can be two of JSON.
_MAX_DEPTH = 48
_MAX_REFERENCES = 16


def check_schema(schema: Any, what: str) -> None:
    """Raise `ChatError`, calling the schema ``what``, if it contradicts the standard or refers to what it lacks."""
    _check(schema, schema, what, 0)


def _check(schema: Any, root: Any, what: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ChatError(f"{what} is {schema!r:.60}, expected a JSON schema")
    if depth > _MAX_DEPTH:
        raise ChatError(f"{what} is nested more than {_MAX_DEPTH} deep")
    _check_keywords(schema, root, what)
    for place, child in _children(schema, what):
        _check(child, root, f"{what}: {place}", depth + 1)


def _check_keywords(schema: Mapping[str, Any], root: Any, what: str) -> None:
    types = schema.get("type", [])
    for type_ in types if isinstance(types, list | tuple) else [types]:
        if type_ not in (*TYPES, "integer"):
            raise ChatError(f"{what}: type is {type_!r:.60}, expected integer, {', '.join(TYPES[:-1])} or {TYPES[-1]}")
    required = schema.get("required", [])
    if not (isinstance(required, list | tuple) and all(isinstance(key, str) for key in required)):
        raise ChatError(f"{what}: required is {required!r:.60}, expected a list of names")
    if "enum" in schema and not (isinstance(schema["enum"], list | tuple) and schema["enum"]):
        raise ChatError(f"{what}: enum is {schema['enum']!r:.60}, expected a list of at least one value")
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and _resolve(reference, root) is None:
        raise ChatError(f"{what}: $ref is {reference!r:.60}, which is not in the schema")


def _children(schema: Mapping[str, Any], what: str) -> Iterator[tuple[str, Any]]:
    for keyword in _SUBSCHEMAS:
        if keyword in schema and not (keyword == "items" and isinstance(schema[keyword], list | tuple)):
            yield keyword, schema[keyword]
    for keyword in _LISTS:
        children = schema.get(keyword, [])
        if not isinstance(children, list | tuple):
            raise ChatError(f"{what}: {keyword} is {children!r:.60}, expected a list of schemas")
        yield from ((f"{keyword}[{number}]", child) for number, child in enumerate(children))
    for keyword in _MAPS:
        children = schema.get(keyword, {})
        if not isinstance(children, Mapping):
            raise ChatError(f"{what}: {keyword} is {children!r:.60}, expected an object of schemas")
        yield from ((f"{keyword}.{key}", child) for key, child in children.items())


def _resolve(reference: str, root: Any) -> Schema | None:
    """Find a part of ``root``; None if it is not there."""
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list | tuple) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found if isinstance(found, Mapping | bool) else None


class ArgumentSchema:
    """The schema of one argument, within the ``root`` of a tool's parameters that its references look into."""

    def __init__(self, schema: Schema, root: Mapping[str, Any]) -> None:
        self._schema = schema
        self._root = root

    @property
    def types(self) -> list[str]:
        """Which types its values can have, at least one: if none can, all."""
        possible = self._types(self._schema, _MAX_REFERENCES)
        return [type_ for type_ in TYPES if type_ in possible] or list(TYPES)

    @property
    def raw_string(self) -> str:
        """A terminal for the strings it allows, unquoted."""
        return self._raw(self._schema, _MAX_REFERENCES) or ANY_TEXT

    def json_schema(self, type_: str) -> Mapping[str, Any]:
        """Give a schema, complete in itself, for the values of one type that is not string."""
        schema = self._schema
        if isinstance(schema, bool) or not schema:
            return {"type": type_}
        if "const" in schema or "enum" in schema:
            return {"enum": [value for value in _listed(schema) or () if _type_of(value) == type_]}
        narrowed = schema if schema.get("type") in (type_, "integer") else {"type": type_, "allOf": [schema]}
        return {**narrowed, **self._definitions(schema)}

    def _definitions(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Give what references look into, if there may be any."""
        if '"$ref"' not in json.dumps(schema):
            return {}
        return {place: self._root[place] for place in ("$defs", "definitions") if place in self._root}

    def _types(self, schema: Schema, references: int) -> set[str]:
        if isinstance(schema, bool):
            return set(TYPES) if schema else set()
        possible = set(TYPES)
        if (listed := _listed(schema)) is not None:
            possible &= {_type_of(value) for value in listed}
        if "type" in schema:
            names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            possible &= {"number" if name == "integer" else name for name in names}
        if (target := self._target(schema, references)) is not None:
            possible &= self._types(target, references - 1)
        for branches in _alternatives(schema):
            possible &= set().union(*(self._types(branch, references - 1) for branch in branches)) if references else possible
        for part in schema.get("allOf", ()):
            possible &= self._types(part, references - 1) if references else possible
        return possible

    def _raw(self, schema: Schema, references: int) -> str | None:
        """Give a terminal for the strings that ``schema`` allows; None if there are none."""
        if isinstance(schema, bool):
            return ANY_TEXT if schema else None
        if "string" not in self._types(schema, references):
            return None
        if (listed := _listed(schema)) is not None:
            return _choice([literal(value) for value in listed if isinstance(value, str)])
        parts = [*_length(schema), *_pattern(schema)]
        if (target := self._target(schema, references)) is not None:
            parts.append(self._raw(target, references - 1) or ANY_TEXT)
        if references:
            parts += [self._raw(part, references - 1) or ANY_TEXT for part in schema.get("allOf", ())]
            for branches in _alternatives(schema):
                parts.append(_choice([raw for branch in branches if (raw := self._raw(branch, references - 1))]))
        return " & ".join(dict.fromkeys(part for part in parts if part != ANY_TEXT)) or ANY_TEXT

    def _target(self, schema: Mapping[str, Any], references: int) -> Schema | None:
        """Follow a reference, unless it goes round in circles."""
        reference = schema.get("$ref")
        return _resolve(reference, self._root) if references and isinstance(reference, str) else None


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


def _choice(terminals: Sequence[str]) -> str:
    return f"({' | '.join(dict.fromkeys(terminals))})" if terminals else ANY_TEXT


def _length(schema: Mapping[str, Any]) -> list[str]:
    """Bound the number of characters."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if not least and most == "":
        return []
    return _enforceable(f"/(?s:.{{{least},{most}}})/")


def _pattern(schema: Mapping[str, Any]) -> list[str]:
    """Hold the text to a pattern, which may match anywhere in it."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
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
    return [] if fault_of(terminal) else [terminal]
