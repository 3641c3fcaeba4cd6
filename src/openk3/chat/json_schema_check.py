"""Whether a JSON schema is one, before anything looks into it: what breaks the standard is said by its place.

Unusual: what references lead to is checked too, wherever in the schema it lies. Keywords that this package does not
know are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from openk3.chat.grammar_text import encodable
from openk3.chat.json_text import spaced_json
from openk3.errors import ChatError
from openk3.protocol.checks import as_number, shown

TYPES = ("string", "number", "boolean", "null", "object", "array")
"""The types that the chat format tells apart; integers are numbers."""

Schema = Mapping[str, Any] | bool
MOST_PROPERTIES = 1024
"""Of one schema, or of all strict tools together: time to enforce one grows with the square of their number."""

# Keywords by what they hold: one schema, a list of them, schemas by name.
SUBSCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# llguidance reads JSON of 128 levels, and a level of a schema can be two of JSON.
_MAX_DEPTH = 48
# Of a whole schema: time to enforce one grows with the square of its length, a second for this many.
_MOST_CHARACTERS = 1 << 17
_MOST_DIGITS = 9
# llguidance makes a state of every remainder, for each number apart and for all that one value must be a multiple of:
# a second for this many.
_MOST_REMAINDERS = 200_000


def check_schema(schema: Any, what: str) -> int:
    """Check a schema, called ``what`` in errors, and return how many properties it names, at any depth.

    Raises:
        ChatError: it is no JSON, breaks the standard, lacks what a reference wants, or is too large.
    """
    num_characters = len(encodable(spaced_json(schema, what)))
    if num_characters > _MOST_CHARACTERS:
        raise ChatError(f"{what} has {num_characters} characters as JSON, expected at most {_MOST_CHARACTERS}")
    num_properties = 0
    for place, part in _parts(schema, what):
        _check_keywords(part, place)
        _check_containers(part, place)
        num_properties += len({*part.get("properties", ()), *part.get("required", ())})
    _check_multiples(_multiples(schema), what)
    if num_properties > MOST_PROPERTIES:
        raise ChatError(
            f"{what} has {num_properties:,} properties, expected at most {MOST_PROPERTIES:,}",
            hint="leave out the properties of objects that may be any object",
        )
    return num_properties


def resolve(reference: object, root: Any) -> Any:
    """Return the part of ``root`` that a reference points to; None if it points elsewhere or to nothing."""
    if not is_pointer(reference):
        return None
    found = root
    for step in str(reference).split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list | tuple) and _is_position(step, len(found)):
            found = found[int(step)]
        else:
            return None
    return found


def is_pointer(reference: object) -> bool:
    """Say whether a reference says a path within its own schema; others say a name, or an address."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def _is_position(step: str, length: int) -> bool:
    return step.isascii() and step.isdecimal() and len(step) <= _MOST_DIGITS and int(step) < length


def _parts(schema: Any, what: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give all schemas within one and where they are, each before what is within it or what it refers to."""
    waiting, met = [(what, schema, 0)], {id(schema)}
    while waiting:
        place, part, depth = waiting.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise ChatError(f"{place} is {shown(part)}, expected a JSON schema")
        if depth > _MAX_DEPTH:
            raise ChatError(f"{place:.200} is nested more than {_MAX_DEPTH} deep")
        yield place, part
        children = [(f"{place}: {step}", child, depth + 1) for step, child in _children(part)]
        target = _target(part, schema, place)
        if target is not None and id(target) not in met:
            children.append((f"{what}: {part['$ref']:.80}", target, 0))
        waiting += children
        met.update(id(child) for _, child, _ in children)


def _target(schema: Mapping[str, Any], root: Any, place: str) -> Any:
    """Give what the schema's reference points to; None without one."""
    reference = schema.get("$ref")
    target = resolve(reference, root)
    if is_pointer(reference) and target is None:
        raise ChatError(f"{place}: $ref is {shown(reference)}, which is not in the schema")
    return target


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((keyword, schema[keyword]) for keyword in _single(schema))
    for keyword in _listed(schema):
        yield from ((f"{keyword}[{number}]", child) for number, child in enumerate(schema.get(keyword, ())))
    for keyword in MAPS:
        yield from ((f"{keyword}.{key:.40}", child) for key, child in schema.get(keyword, {}).items())


def _single(schema: Mapping[str, Any]) -> list[str]:
    listed = _listed(schema)
    return [keyword for keyword in SUBSCHEMAS if keyword in schema and keyword not in listed]


def _listed(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the keywords with lists of schemas; ``items`` is one in the standard's older drafts."""
    return (*LISTS, "items") if isinstance(schema.get("items"), list | tuple) else LISTS


def _check_containers(schema: Mapping[str, Any], place: str) -> None:
    for keyword in LISTS:
        if not isinstance(schema.get(keyword, []), list | tuple):
            raise ChatError(f"{place}: {keyword} is {shown(schema[keyword])}, expected a list of schemas")
    for keyword in MAPS:
        children = schema.get(keyword, {})
        if not (isinstance(children, Mapping) and all(isinstance(key, str) for key in children)):
            raise ChatError(f"{place}: {keyword} is {shown(children)}, expected an object of schemas")


def _multiples(schema: Any) -> list[Fraction]:
    """List what is said to be a multiple of something, even where only a whole address would lead to it."""
    found, waiting = [], [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            number = as_number(value.get("multipleOf"))
            if number is not None and math.isfinite(number) and number > 0:
                found.append(Fraction(str(number)))
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return found


def _check_multiples(multiples: list[Fraction], what: str) -> None:
    common = 1
    scale = math.lcm(*(multiple.denominator for multiple in multiples))
    for multiple in multiples:
        common = math.lcm(common, int(multiple * scale))
        if common * len(multiples) > _MOST_REMAINDERS:
            raise ChatError(
                f"{what} has multipleOf with numbers that leave too many remainders together: "
                f"more than {_MOST_REMAINDERS:,}",
                hint="use multiples of one another, or fewer of them",
            )


def _check_keywords(schema: Mapping[str, Any], place: str) -> None:
    if not all(isinstance(keyword, str) for keyword in schema):
        raise ChatError(f"{place} is {shown(schema)}, expected keywords that are text")
    types = schema.get("type", TYPES)
    for type_ in types if isinstance(types, list | tuple) and types else [types]:
        if type_ not in (*TYPES, "integer"):
            names = f"integer, {', '.join(TYPES[:-1])} or {TYPES[-1]}"
            raise ChatError(f"{place}: type is {shown(type_)}, expected {names}")
    required = schema.get("required", [])
    if not (isinstance(required, list | tuple) and all(isinstance(key, str) for key in required)):
        raise ChatError(f"{place}: required is {shown(required)}, expected a list of names")
    if "enum" in schema and not (isinstance(schema["enum"], list | tuple) and schema["enum"]):
        raise ChatError(f"{place}: enum is {shown(schema['enum'])}, expected a list of at least one value")
    if not isinstance(schema.get("$ref", ""), str):
        raise ChatError(f"{place}: $ref is {shown(schema['$ref'])}, expected text")
