"""The rules of the Moonshot-flavoured JSON schema for one schema, without what lies inside it or what it refers to.

Unusual: a rule gives the keyword that is wrong ("" for the schema as a whole) and the reason in the words that
Moonshot's own validator uses, as clients look for them. Keywords outside the dialect are only known to `foreign`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from openk3.protocol.checks import as_number, shown

Found = tuple[str, str]
"""A keyword, and why it is wrong."""

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
MOST_BRANCHES = 500
MOST_VALUES = 1000

_ANNOTATIONS = {"title", "description"}
_ROOT_ONLY = {"$defs", "$id"}
_BOUNDS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems"), "number": ("minimum", "maximum")}
_OF_TYPE: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", *_BOUNDS["array"]},
    "string": {"enum", "pattern", *_BOUNDS["string"]},
    "number": {"enum", *_BOUNDS["number"]},
    "integer": {"enum", *_BOUNDS["number"]},
    "boolean": {"enum"},
    "null": {"enum"},
}
# Not enforced by Moonshot but let through by it, so no rule counts it as a constraint.
_CONSTRAINTS = set().union(*_OF_TYPE.values()) - {"pattern"}
_KEYWORDS = {"type", "anyOf", "$ref", "default", "pattern", *_CONSTRAINTS, *_ANNOTATIONS, *_ROOT_ONLY}
_RESERVED = ("$defs", "$ref", "anyOf", "required", "additionalProperties")


def malformed(schema: Mapping[str, Any], *, tolerant: bool) -> Iterator[Found]:
    """Give the keywords whose values are of the wrong kind; ``tolerant`` allows what the JSON schema standard does."""
    if not all(isinstance(keyword, str) for keyword in schema):
        yield "", "keywords must be strings"
        return
    yield from _malformed_type(schema)
    yield from _malformed_children(schema, tolerant)
    yield from _malformed_lists(schema)
    for keyword in ("$ref", "pattern") if tolerant else ("$ref", "pattern", "$id", "description", "title"):
        if not isinstance(schema.get(keyword, ""), str):
            yield keyword, f"{keyword} must be a string"


def contradictory(schema: Mapping[str, Any], *, is_root: bool) -> Iterator[Found]:
    """Give what the dialect does not allow together; each value is well-formed."""
    types = types_of(schema)
    for keyword, place in (("anyOf", "anyOf items"), ("$ref", "the referenced schema")):
        if keyword in schema and types:
            yield "", f"when using {keyword}, type should be defined in {place} instead of the parent schema"
    yield from _beside(schema, _CONSTRAINTS)
    constraints = [keyword for keyword in schema if keyword in _CONSTRAINTS]
    if constraints and not types and "anyOf" not in schema and "$ref" not in schema:
        yield "", "type is not defined"
    for keyword in constraints if len(types) > 1 else ():
        if keyword != "enum":
            yield "", f"keyword {keyword} is not allowed in combination with multiple types"
    for keyword in () if is_root else sorted(_ROOT_ONLY & schema.keys()):
        yield "", f"keyword {keyword} must be at root level"
    yield from _enum(schema, types)
    for key in schema.get("required", ()):
        if key not in schema.get("properties", {}):
            yield "required", f"required property '{key}' is not defined in properties"
    yield from _bounds(schema, types)


def foreign(schema: Mapping[str, Any]) -> Iterator[Found]:
    """Give what is outside the dialect though it contradicts nothing."""
    if unknown := sorted(schema.keys() - _KEYWORDS):
        yield "", f"unsupported keywords: {', '.join(unknown)}"
    types = types_of(schema)
    yield from _beside(schema, {"default", "pattern"})
    allowed = {"type", "default", *_ANNOTATIONS, *_ROOT_ONLY}.union(*(_OF_TYPE[type_] for type_ in types))
    if types and (misplaced := sorted(schema.keys() - allowed)):
        yield "", f"invalid keywords: {', '.join(misplaced)}"
    if len(set(types)) < len(types):
        yield "type", "duplicate types in type array"
    if repeated := [key for key, count in Counter(schema.get("required", ())).items() if count > 1]:
        yield "required", f"duplicate items in required array: {', '.join(repeated)}"
    for key in schema.get("properties", {}):
        if key in _RESERVED:
            yield "properties", f"property name '{key}' is reserved for JSON Schema keywords"


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """List the types that a well-formed schema names; none if it names none."""
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _malformed_type(schema: Mapping[str, Any]) -> Iterator[Found]:
    types = schema.get("type", TYPES)
    if isinstance(types, str):
        if types not in TYPES:
            yield "", "invalid type"
    elif not isinstance(types, list | tuple):
        yield "", "type must be string or array of strings"
    elif not types:
        yield "", "type array cannot be empty"
    elif not all(isinstance(type_, str) and type_ in TYPES for type_ in types):
        yield "", "invalid type in type array"


def _malformed_children(schema: Mapping[str, Any], tolerant: bool) -> Iterator[Found]:
    kinds: tuple[type, ...] = (Mapping, bool) if tolerant else (Mapping,)
    for keyword, name in (("properties", "property schema for '{}'"), ("$defs", "$defs schema for '{}'")):
        children = schema.get(keyword, {})
        if not isinstance(children, Mapping):
            yield keyword, f"{keyword} must be an object"
            continue
        for key, child in children.items():
            if not isinstance(key, str):
                yield keyword, "property names must be strings"
            elif not isinstance(child, kinds):
                yield keyword, f"{name.format(key)} must be an object"
            elif keyword == "$defs" and not tolerant and (not key or "/" in key):
                wrong = f"'{key}' cannot contain '/' character" if key else "cannot be empty"
                yield keyword, f"$defs property name {wrong}"
    if not isinstance(schema.get("items", {}), (*kinds, list, tuple) if tolerant else kinds):
        yield "items", "items must be an object"
    if not isinstance(schema.get("additionalProperties", True), (Mapping, bool)):
        yield "additionalProperties", "additionalProperties must be a boolean or an object"
    branches = schema.get("anyOf", [{}])
    if not isinstance(branches, list | tuple):
        yield "anyOf", "anyOf must be an array"
    elif not 1 <= len(branches) <= MOST_BRANCHES:
        yield "anyOf", f"anyOf must have 1-{MOST_BRANCHES} items"
    elif not all(isinstance(branch, kinds) for branch in branches):
        yield "anyOf", "schema in anyOf must be an object"


def _malformed_lists(schema: Mapping[str, Any]) -> Iterator[Found]:
    required, values = schema.get("required", []), schema.get("enum", [None])
    if not isinstance(required, list | tuple):
        yield "required", "required must be an array"
    elif not all(isinstance(key, str) for key in required):
        yield "required", "items in required array must be strings"
    if not isinstance(values, list | tuple):
        yield "enum", "enum must be an array"
    elif not values:
        yield "enum", "enum array cannot be empty"
    elif len(values) > MOST_VALUES:
        yield "enum", f"enum array cannot have more than {MOST_VALUES} items"


def _beside(schema: Mapping[str, Any], keywords: set[str]) -> Iterator[Found]:
    """Say which of ``keywords`` stand next to one that leaves them no place."""
    for owner in ("$ref", "anyOf"):
        if owner in schema:
            for keyword in schema:
                if keyword in keywords or (keyword == "anyOf" and owner == "$ref"):
                    yield "", f"keyword '{keyword}' is not allowed at the same level as {owner}"


def _enum(schema: Mapping[str, Any], types: list[str]) -> Iterator[Found]:
    if "enum" not in schema or not types:
        return
    for type_ in types:
        if type_ in ("object", "array"):
            yield "", f"type {type_} is not allowed in combination with enum"
    if len(types) > 2 or (len(types) == 2 and "null" not in types):
        yield (
            "",
            (
                "when type is array and enum is specified, currently only 2 types are supported, "
                "one must be null, and the other can be string/integer/number/boolean"
            ),
        )
    for value in schema["enum"]:
        if not any(_is_of(value, type_) for type_ in types):
            yield "enum", f"enum value ({shown(value)}) does not match any type in [{', '.join(types)}]"


def _bounds(schema: Mapping[str, Any], types: list[str]) -> Iterator[Found]:
    for kind, (least, most) in _BOUNDS.items():
        is_whole = kind != "number" or "integer" in types
        known: list[int | float] = []
        for keyword in (least, most):
            if keyword in schema:
                number = as_number(schema[keyword])
                if reason := _wrong_bound(keyword, number, is_whole, kind):
                    yield "", reason
                elif number is not None:
                    known.append(number)
        if len(known) == 2 and known[0] > known[1]:
            yield least, f"{least} ({known[0]}) cannot be greater than {most} ({known[1]})"


def _wrong_bound(keyword: str, number: int | float | None, is_whole: bool, kind: str) -> str | None:
    if number is None:
        return f"{keyword} must be {'an integer' if is_whole else 'a number'}"
    if not math.isfinite(number):
        return "invalid number: NaN or Infinity not allowed"
    if kind != "number" and number < 0:
        return f"{keyword} must be non-negative"
    return f"{keyword} is not a valid integer" if is_whole and number != math.floor(number) else None


def _is_of(value: object, type_: str) -> bool:
    number = as_number(value)
    if type_ in ("number", "integer"):
        return number is not None and math.isfinite(number) and (type_ == "number" or number == math.floor(number))
    kinds: dict[str, type | tuple[type, ...]] = {"string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, kinds.get(type_, ()))
