"""The grammar of one tool's arguments: elements in the order of the schema, strings raw, all else JSON.

Unusual: only a strict tool is held to its schema. Of any other, and where the schema is one that elements in order
cannot express, arguments need only be well-formed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from openk3.chat.grammar_text import ANY_TEXT, GrammarWriter, attribute, json_value, literal, nested, refusal_of
from openk3.chat.json_schema import ANNOTATIONS, ArgumentSchema, Visits
from openk3.chat.json_schema_check import MOST_PROPERTIES, Schema, check_schema, resolve
from openk3.chat.tags import escape
from openk3.errors import ChatError
from openk3.protocol.checks import shown

MOST_LARK = 1 << 13
"""Characters of a grammar for one argument."""

# Of all of them together, as each is read and compiled anew.
_MOST_LARKS = 1 << 17
# An attribute's value, escaped.
_ANY_KEY = '/([^&"]|&amp;|&quot;)*/'
# A schema with one of these at its top says something of several arguments at once.
_COMBINED = ("$ref", "anyOf", "oneOf", "allOf", "not", "if")
_NO_CONSTRAINTS = {*ANNOTATIONS, "$defs", "definitions", "$id", "$schema"}


class ArgumentsWriter:
    """Write the rules of arguments for the tools of one grammar; ``strict`` is what a tool without the word is."""

    def __init__(self, writer: GrammarWriter, strict: bool = True) -> None:
        self._writer, self._strict = writer, strict
        self._any: str | None = None
        self._visits = Visits()
        self._num_properties = self._num_lark = 0
        self._enforced: dict[str, str] = {}

    def arguments(self, function: Mapping[str, Any], what: str) -> str:
        """Give what matches the arguments of a tool, called ``what`` in errors.

        Raises:
            ChatError: a strict tool's parameters are no JSON schema of an object.
        """
        said = function.get("strict")
        if not (self._strict if said is None else said):
            return self._any_arguments()
        parameters = function.get("parameters")
        if parameters is None:
            return literal("")
        self._count(check_schema(parameters, what))
        if isinstance(parameters, bool) or not _is_of_object(parameters):
            raise ChatError(f"{what} are {shown(parameters)}, expected a schema of an object")
        either = [self._declared(schema, parameters) for schema in _objects(parameters)]
        return self._writer.new("either", " | ".join(either)) if either else self._any_arguments()

    def _any_arguments(self) -> str:
        if self._any is None:
            self._any = self._others((), ArgumentSchema(True, {}))
        return self._any

    def _declared(self, parameters: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        properties: Mapping[str, Schema] = parameters.get("properties", {})
        others: Schema = parameters.get("additionalProperties", True)
        required = parameters.get("required", ())
        if not properties and not required and others is True and not parameters.get("patternProperties"):
            return self._any_arguments()
        schemas = {**properties, **{key: others for key in required if key not in properties}}
        parts = []
        for key, schema in schemas.items():
            if schema is False and key not in required:
                continue
            argument = self._argument(key, ArgumentSchema(schema, root, self._visits))
            parts.append(argument if key in required else f"{argument}?")
        if parameters.get("patternProperties"):
            parts.append(self._others(schemas, ArgumentSchema(True, {})))
        elif others is not False:
            parts.append(self._others(schemas, ArgumentSchema(others, root, self._visits)))
        return self._writer.new("arguments", " ".join(parts) or literal(""))

    def _count(self, more: int) -> None:
        self._num_properties += more
        if self._num_properties > MOST_PROPERTIES:
            raise ChatError(
                f"the strict tools have more than {MOST_PROPERTIES:,} arguments and properties together",
                hint="declare fewer tools, or some with strict false",
            )

    def _count_lark(self, length: int) -> None:
        if length > MOST_LARK:
            raise ChatError(f"the x-lark of an argument has {length:,} characters, expected at most {MOST_LARK:,}")
        self._num_lark += length
        if self._num_lark > _MOST_LARKS:
            raise ChatError(
                f"the grammars of the strict tools have more than {_MOST_LARKS:,} characters together",
                hint="declare fewer tools, or some with strict false",
            )

    def _argument(self, key: str, schema: ArgumentSchema) -> str:
        """Give what matches an argument of a known name."""
        elements = (
            self._element(literal(f"argument{attribute('key', key)}{attribute('type', type_)}"), type_, schema)
            for type_ in schema.types
        )
        return f"({' | '.join(elements)})"

    def _others(self, known: Iterable[str], schema: ArgumentSchema) -> str:
        """Add a rule for any number of arguments of other than the ``known`` names."""
        excluded = " | ".join(literal(escape(key)) for key in known)
        key = self._writer.new("KEY", _ANY_KEY + (f" & ~({excluded})" if excluded else ""))
        elements = []
        for type_ in schema.types:
            opening, closing = literal('argument key="'), literal(f'"{attribute("type", type_)}')
            tag = self._writer.new("ARGUMENT", f"{opening} {key} {closing}")
            elements.append(self._element(tag, type_, schema))
        return self._writer.new("others", f"({' | '.join(elements)})*")

    def _element(self, tag: str, type_: str, schema: ArgumentSchema) -> str:
        value = (
            self._raw_string(schema) if type_ == "string" else self._writer.shared("json", self._json(schema, type_))
        )
        return self._writer.element(tag, "argument", value)

    def _json(self, schema: ArgumentSchema, type_: str) -> str:
        """Match the JSON of one type; what llguidance cannot enforce at all is left at that."""
        precise = json_value(schema.json_schema(type_))
        if precise not in self._enforced:  # many arguments can be alike
            self._enforced[precise] = json_value({"type": type_}) if refusal_of(precise) else precise
        return self._enforced[precise]

    def _raw_string(self, schema: ArgumentSchema) -> str:
        """Give one terminal, as several may begin alike, or the rule of a grammar, which the others cannot."""
        if (lark := schema.lark) is not None:
            self._count_lark(len(lark))
            return self._writer.shared("lark", nested(lark, "the x-lark of an argument"))
        raw = schema.raw_string
        return ANY_TEXT if raw == ANY_TEXT else self._writer.shared("VALUE", raw)


def _objects(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the schemas of objects of which arguments must meet one; none if more than that is wanted of them."""
    found: list[Mapping[str, Any]] = []
    waiting: list[Schema | None] = [parameters]
    met: set[int] = set()
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, bool):
            schema = {} if schema else {"type": "null"}
        if schema is None:
            return []
        if id(schema) in met:
            continue
        met.add(id(schema))
        combined = [keyword for keyword in _COMBINED if keyword in schema]
        if not combined:
            found += [schema] if _is_of_object(schema) else []
        elif combined not in (["$ref"], ["anyOf"]) or schema.keys() - {*combined, *_NO_CONSTRAINTS}:
            return []
        else:
            branches = schema["anyOf"] if combined == ["anyOf"] else [resolve(schema["$ref"], parameters)]
            waiting += reversed(branches)
    return found


def _is_of_object(schema: Mapping[str, Any]) -> bool:
    types = schema.get("type", "object")
    return "object" in ([types] if isinstance(types, str) else types)
