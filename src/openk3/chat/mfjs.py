"""The Moonshot-flavoured JSON schema, in which tools' parameters and the schemas of responses are written.

Unusual: four levels, named as Moonshot names them. What is asked to be enforced is checked as its service does, which
passes over keywords that it does not know; only "ultra" refuses everything outside the published dialect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from openk3.chat.json_schema import ArgumentSchema, Visits
from openk3.chat.json_schema_check import check_schema, resolve
from openk3.chat.mfjs_keywords import contradictory, foreign, malformed, types_of
from openk3.errors import ChatError
from openk3.protocol.checks import as_number, shown

Level = Literal["ultra", "strict", "lite", "loose"]
"""How much is refused: ``loose`` what is no object, ``lite`` values of the wrong kind, ``strict`` also what the dialect
forbids among its own keywords, references that lead nowhere and recursion without end, ``ultra`` all outside it."""

_MOST_NESTED: dict[Level, int] = {"ultra": 48, "strict": 48, "lite": 256}
_MOST_SHOWN = 300
# To find the types of arguments; a request can declare a thousand tools.
_MOST_VISITS = 1000
_Fault = tuple[str, str]
_Path = tuple[str, ...]


def check_parameters(schema: object, *, strict: bool, where: str) -> None:
    """Check the parameters of a tool, called ``where`` in errors; they must be an object's.

    None stands for a tool without arguments.

    Raises:
        ChatError: they are not in the dialect (`Level` "strict"), or, without ``strict``, malformed ("lite").
    """
    if schema is None:
        return
    check(schema, "lite", where)
    assert isinstance(schema, Mapping)
    is_of_object = _is_of_object(schema, strict)
    if is_of_object and strict:
        check(schema, "strict", where)
        is_of_object = _may_be_object(schema, where)
    if not is_of_object:
        raise ChatError(
            f'{where}.type is required and must be "object", got {shown(schema)}',
            hint='wrap the schema as a property of {"type": "object"}',
        )


def check_response_schema(schema: object, *, strict: bool, where: str) -> None:
    """Check the schema of a response, called ``where`` in errors; a strict one is an object's or says nothing.

    Raises:
        ChatError: it is not in the dialect (`Level` "strict"), or, without ``strict``, malformed ("lite").
    """
    check(schema, "strict" if strict else "lite", where)
    if strict and isinstance(schema, Mapping) and not _may_be_object(schema, where):
        raise ChatError(
            f'{where}.type is required and must be "object", got {shown(schema)}',
            hint='wrap the schema as a property of {"type": "object"}; with strict false it is not enforced',
        )


def check(schema: object, level: Level, where: str) -> None:
    """Raise `ChatError` with the first fault of a schema, by its path, that ``level`` does not allow."""
    for path, reason in _faults(schema, level):
        text = f"{where} is not a valid moonshot flavored json schema, details: <At path '{path}': {reason}>"
        hint = None if level in ("lite", "loose") else "with strict false it is not enforced, and need not be"
        raise ChatError(text.encode(errors="backslashreplace").decode(), hint=hint)


def _faults(schema: object, level: Level) -> Iterator[_Fault]:
    if not isinstance(schema, Mapping):
        yield "root", f"schema must be an object, got {shown(schema)}"
    elif level != "loose":
        yield from _faults_within(schema, level)


def _faults_within(root: Mapping[str, Any], level: Level) -> Iterator[_Fault]:
    schemas, references = set(), []
    for path, part in _parts(root, level):
        if part is None:
            yield _spelled(path), f"schema depth exceeds maximum limit of {_MOST_NESTED[level]}"
            return
        yield from _faults_of(part, path, part is root, level)
        schemas.add(id(part))
        if "$ref" in part:
            references.append((path, part["$ref"]))
    if level == "lite":
        return
    for path, reference in references:
        if reason := _lost(reference, root, schemas):
            yield _spelled((*path, "$ref")), reason
    if not _is_finite(root):
        yield "root", "detected infinite recursion without termination condition"


def _faults_of(part: Mapping[str, Any], path: _Path, is_root: bool, level: Level) -> Iterator[_Fault]:
    found = list(malformed(part, tolerant=level == "lite"))
    if not found and level != "lite":
        found += contradictory(part, is_root=is_root)
    if not found and level == "ultra":
        found += foreign(part)
    for keyword, reason in found:
        yield _spelled((*path, keyword) if keyword else path), reason


def _parts(root: Mapping[str, Any], level: Level) -> Iterator[tuple[_Path, Mapping[str, Any] | None]]:
    """Give every schema within one, each before what is within it; None for one nested too deep.

    Goes on only while what was given is well-formed.
    """
    waiting: list[tuple[_Path, Any, int]] = [((), root, 0)]
    while waiting:
        path, part, depth = waiting.pop()
        if isinstance(part, bool) or not isinstance(part, Mapping):
            continue
        yield path, None if depth > _MOST_NESTED[level] else part
        inside = [((*path, *steps), child, depth + 1) for steps, child in _children(part)]
        waiting += reversed(inside)


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[_Path, Any]]:
    for keyword in ("$defs", "properties"):
        yield from (((keyword, key), child) for key, child in schema.get(keyword, {}).items())
    yield from (((keyword,), schema[keyword]) for keyword in ("items", "additionalProperties") if keyword in schema)
    yield from (((f"anyOf[{number}]",), branch) for number, branch in enumerate(schema.get("anyOf", ())))


def _spelled(path: _Path) -> str:
    text = ".".join(path) or "root"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _lost(reference: str, root: Mapping[str, Any], schemas: set[int]) -> str | None:
    """Say why a reference leads to none of the ``schemas`` of a document, by their ids; None if it does."""
    if reference == "#":
        return None
    if not reference.startswith("#/$defs/"):
        return "references must start with #/$defs/"
    if reference == "#/$defs/":
        return "definition name cannot be empty"
    if "$defs" not in root:
        return f"$defs not found for reference: {reference}"
    return None if id(resolve(reference, root)) in schemas else f"invalid $ref path: {reference}"


def _is_finite(root: Mapping[str, Any]) -> bool:
    """Say whether any value of finite size meets a schema whose references all lead somewhere.

    Grows the set of schemas that have one from those that need no other, in time proportional to their number.
    """
    missing: dict[int, int] = {}
    dependents: dict[int, list[int]] = {}
    finite: list[int] = []
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        if id(schema) in missing:
            continue
        needed, num_needed = _needed(schema, root)
        missing[id(schema)] = num_needed
        for part in needed:
            dependents.setdefault(id(part), []).append(id(schema))
        waiting += needed
        finite += [] if num_needed else [id(schema)]
    while finite:
        for dependent in dependents.get(finite.pop(), ()):
            missing[dependent] -= 1
            finite += [dependent] if missing[dependent] == 0 else []
    return missing[id(root)] <= 0


def _needed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
    """List the schemas that values of one must meet parts of, and how many of them at least."""
    if "$ref" in schema:
        return [resolve(schema["$ref"], root)], 1
    if "anyOf" in schema:
        return list(schema["anyOf"]), 1
    types = set(types_of(schema))
    if types == {"object"}:
        needed = [schema.get("properties", {})[key] for key in dict.fromkeys(schema.get("required", ()))]
        return needed, len(needed)
    if types == {"array"} and "items" in schema and (as_number(schema.get("minItems")) or 0) > 0:
        return [schema["items"]], 1
    return [], 0


def _may_be_object(schema: Mapping[str, Any], where: str) -> bool:
    """Say whether any object meets a strict schema, as far as its types and references tell."""
    if not _is_of_object(schema, strict=True):
        return False
    check_schema(schema, where)  # keywords outside the dialect too, which the next line looks into
    return "object" in ArgumentSchema(schema, schema, Visits(_MOST_VISITS)).types


def _is_of_object(schema: Mapping[str, Any], strict: bool) -> bool:
    """Say whether arguments can meet a well-formed schema; one that says nothing of types only has to without strict.

    What it refers to need not be there yet.
    """
    if "object" not in (types_of(schema) or ["object"]):
        return False
    says = schema.keys() - {"$defs", "$id", "title", "description"}
    return not strict or not says or bool(says & {"type", "anyOf", "$ref"})
