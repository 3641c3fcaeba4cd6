"""A part of a JSON schema made whole: what it refers to comes with it, under names that every compiler can read.

Unusual: "#" means the schema that the part was taken from, so even it becomes a definition. Addresses other than paths
within the schema stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openk3.chat.json_schema_check import LISTS, MAPS, SUBSCHEMAS, Schema, resolve

# References to one another in a row, the last of which is looked at.
_MOST_STEPS = 64
# A base address changes what "#" means to a compiler, and one with a fragment is refused.
_LEFT_OUT = ("$defs", "definitions", "$id")


def self_contained(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a checked ``schema``, whose references look into ``root``, with just the definitions that it needs."""
    parts = _Parts(root)
    whole = parts.copied(schema)
    definitions: dict[str, Any] = {}
    for target in parts.targets:  # grows meanwhile
        definitions[str(len(definitions))] = parts.copied(target)
    return {**whole, "$defs": definitions} if definitions else whole


class _Parts:
    """Copies of schemas, and the list of what they refer to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[int, int] = {}
        self.targets: list[Any] = []

    def copied(self, schema: Schema) -> Any:
        """Copy a schema, its references being to positions in ``targets``."""
        if not isinstance(schema, Mapping):
            return schema
        kept = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
        if "anyOf" in kept:
            # A compiler cannot follow one that is the whole again, which adds nothing.
            others = [branch for branch in kept["anyOf"] if self._aim(branch) is not schema]
            kept["anyOf"] = others or kept["anyOf"]
        return {key: self._value(key, value) for key, value in kept.items()}

    def _value(self, keyword: str, value: Any) -> Any:
        if keyword == "$ref":
            return self._reference(value)
        if keyword in MAPS:
            return {key: self.copied(child) for key, child in value.items()}
        if keyword in LISTS or (keyword == "items" and isinstance(value, list | tuple)):
            return [self.copied(child) for child in value]
        return self.copied(value) if keyword in SUBSCHEMAS else value

    def _aim(self, schema: Schema) -> Any:
        """Follow references to what ``schema`` means; None if they go round in circles."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                return schema
            schema = resolve(schema["$ref"], self._root)
        return None

    def _reference(self, reference: str) -> str:
        target = resolve(reference, self._root)
        if not isinstance(target, Mapping | bool):
            return reference
        if id(target) not in self._names:
            self._names[id(target)] = len(self.targets)
            self.targets.append(target)
        return f"#/$defs/{self._names[id(target)]}"
