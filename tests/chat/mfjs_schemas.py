"""Schemas of the Moonshot-flavoured dialect, for tests: every kind of it, each with a value that meets it.

Unusual: a reference that may lead back to where it stands is only put where a value can do without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

NAMES = [
    "a",
    "b",
    "value",
    "type",
    "first name",
    "naïve",
    "鬒",
    "abc😊",
    'say "x"',
    "a&b",
    "&quot;",
    "",
    " ",
    " H",
    "a.b/c",
]
NAMES += ["\\n", "111", "3.5", "enum", "items", "properties", "<|close|>", "a=b", "~0~1", "%41", "\x7f"]
TEXTS = ["", " ", "a", "true", "null", "3.1", "\n", "\\n", 'a "b"', "c:\\d", "é&<", "鬒😊", "beijing", "[1]"]
_WHOLE = st.integers(-30, 30)
_DECIMAL = st.sampled_from([-10.5, -2.25, -1.0, -0.5, 0.0, 0.001, 1.5, 2.71828, 20.333333333, 1e16])


@dataclass(frozen=True)
class _Refs:
    """Which references may stand at a place: ``safe`` ones end by themselves, ``here`` are those for an alternative."""

    safe: list[str]
    here: list[str]
    everywhere: list[str]

    def within(self, is_required: bool) -> _Refs:
        """Give those for the place of a child."""
        return replace(self, safe=self.safe if is_required else self.everywhere, here=self.everywhere)


@st.composite
def documents(draw: st.DrawFn) -> Schema:
    """Draw a whole schema, with definitions and references to them and to itself."""
    names = draw(st.lists(st.sampled_from(["A", "b_c", "Ünï", "x y"]), unique=True, max_size=3))
    everywhere = [*(f"#/$defs/{name}" for name in names), "#"]
    schema: Schema = draw(_schema(3, _Refs(everywhere[:-1], everywhere[:-1], everywhere)))
    defs = {
        name: draw(_schema(2, _Refs(everywhere[:at], everywhere[:at], everywhere))) for at, name in enumerate(names)
    }
    if names:
        schema["$defs"] = defs
    if draw(st.integers(0, 4)) == 0:
        schema["$id"] = draw(
            st.sampled_from(["", "my-schema", "#user", "http://example.com/s.json", "http://x/s#/$defs/A"])
        )
    return schema


def as_parameters(schema: Schema) -> Schema:
    """Make a whole schema the required argument ``value`` of a tool, as conformance suites do."""
    own = {key: part for key, part in schema.items() if key not in ("$defs", "$id")}
    defs = {**schema.get("$defs", {}), "own": own}
    outer = {"$id": schema["$id"]} if "$id" in schema else {}
    inner: Schema = own if "#" not in references(schema) else {"$ref": "#/$defs/own"}
    wrapped = {"properties": {"value": inner}, "$defs": defs}
    return {"type": "object", "required": ["value"], "additionalProperties": False, **_redirected(wrapped), **outer}


def references(value: Any) -> set[str]:
    """Collect what ``value`` refers to."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def _redirected(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "#/$defs/own" if (key, part) == ("$ref", "#") else _redirected(part) for key, part in value.items()
        }
    return [_redirected(part) for part in value] if isinstance(value, list) else value


@st.composite
def _schema(draw: st.DrawFn, depth: int, refs: _Refs) -> Schema:
    kinds = [*_LEAVES, "empty", "types", *(["object", "object", "array", "any_of", "any_of"] if depth else [])]
    kind = draw(st.sampled_from([*kinds, *(["reference"] if refs.safe else [])]))
    if kind == "reference":
        schema: Schema = {"$ref": draw(st.sampled_from(refs.safe))}
    elif kind == "any_of":
        branches = [draw(_schema(depth - 1, refs))]
        branches += draw(st.lists(_schema(depth - 1, replace(refs, safe=refs.here)), max_size=2))
        schema = {"anyOf": draw(st.permutations(branches))}
    elif kind == "object":
        schema = draw(_object(depth, refs))
    elif kind == "array":
        schema = draw(_array(depth, refs))
    else:
        schema = {} if kind == "empty" else draw(_LEAVES[kind]) if kind in _LEAVES else draw(_types())
    notes = draw(st.sampled_from([{}, {}, {}, {"description": "what\nit is"}, {"title": "T", "description": ""}]))
    schema = {**schema, **({} if kind == "empty" else notes)}
    if kind == "object" and draw(st.booleans()):
        schema["type"] = ["object"]
    return schema


@st.composite
def _object(draw: st.DrawFn, depth: int, refs: _Refs) -> Schema:
    schema: Schema = {"type": "object"}
    required: list[str] = []
    if draw(st.integers(0, 5)):
        schema["properties"] = {}
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
            is_required = draw(st.booleans())
            schema["properties"][name] = draw(_schema(depth - 1, refs.within(is_required)))
            required += [name] if is_required else []
        if required or draw(st.booleans()):
            schema["required"] = draw(st.permutations(required))
    others = draw(st.sampled_from([None, False, False, True, "schema"]))
    if others is not None:
        schema["additionalProperties"] = draw(_schema(depth - 1, refs.within(False))) if others == "schema" else others
    return schema


@st.composite
def _array(draw: st.DrawFn, depth: int, refs: _Refs) -> Schema:
    bounds = draw(_bounds(st.integers(0, 3), "Items"))
    schema: Schema = {"type": draw(st.sampled_from(["array", ["array"]])), **bounds}
    if draw(st.integers(0, 4)):
        schema["items"] = draw(_schema(depth - 1, refs.within(bool(bounds.get("minItems")))))
    return schema


@st.composite
def _bounds(draw: st.DrawFn, numbers: st.SearchStrategy[Any], name: str) -> Schema:
    least, most = sorted([draw(numbers), draw(numbers)])
    both = {f"min{name}": least, f"max{name}": most}
    return {key: both[key] for key in draw(st.sampled_from([(), (f"min{name}",), (f"max{name}",), tuple(both)]))}


@st.composite
def _types(draw: st.DrawFn) -> Schema:
    everything = ["null", "boolean", "object", "array", "number", "integer", "string"]
    values = {"string": TEXTS, "integer": [0, 7, -2], "number": [0, 2.5], "boolean": [True]}
    if draw(st.booleans()):
        return {"type": draw(st.lists(st.sampled_from(everything), unique=True, min_size=1))}
    kind = draw(st.sampled_from(sorted(values)))
    chosen = draw(st.lists(st.sampled_from(values[kind]), unique=True, min_size=1, max_size=3))
    return {"type": draw(st.permutations([kind, "null"])), "enum": draw(st.permutations([*chosen, None]))}


def _enum(type_: str, values: st.SearchStrategy[Any], **bounds: float) -> st.SearchStrategy[Schema]:
    listed = st.lists(values, min_size=1, max_size=4, unique_by=lambda value: (type(value), value))
    return listed.map(lambda chosen: {"type": type_, "enum": chosen, **bounds})


_LEAVES: dict[str, st.SearchStrategy[Schema]] = {
    "string": _bounds(st.integers(0, 6), "Length").map(lambda bounds: {"type": "string", **bounds}),
    "long": st.sampled_from([{"type": "string", "maxLength": 5_000_000}, {"type": "string", "minLength": 0}]),
    "texts": _enum("string", st.sampled_from(TEXTS)),
    "bounded_texts": st.sampled_from([{"type": ["string"], "enum": ["", "ab", "abc"], "minLength": 1, "maxLength": 2}]),
    "integer": _bounds(_WHOLE, "imum").map(lambda bounds: {"type": "integer", **bounds}),
    "wholes": _enum("integer", _WHOLE),
    "bounded_wholes": st.just({"type": "integer", "enum": [1, 2, 30], "minimum": -10, "maximum": 10}),
    "large": st.just({"type": "integer", "maximum": 10**16, "minimum": 10**16 - 2}),
    "number": _bounds(_DECIMAL | _WHOLE, "imum").map(lambda bounds: {"type": "number", **bounds}),
    "decimals": _enum("number", _DECIMAL | _WHOLE),
    "boolean": st.sampled_from([{"type": "boolean"}, {"type": "boolean", "enum": [True]}, {"type": ["boolean"]}]),
    "null": st.sampled_from([{"type": "null"}, {"type": "null", "enum": [None]}]),
}  # fmt: skip
