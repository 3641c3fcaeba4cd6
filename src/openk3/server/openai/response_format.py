"""The ``response_format`` of Chat Completions: free text, any JSON object, or JSON of a schema.

Unusual: a schema is checked against the dialect it must be written in before anything is generated.
"""

from __future__ import annotations

from openk3.chat.mfjs import check_response_schema
from openk3.errors import ChatError
from openk3.protocol.messages import ResponseFormat
from openk3.server.faults import Fault
from openk3.server.values import Fields

_TYPES = ("text", "json_object", "json_schema")


def read_response_format(wanted: Fields | None) -> ResponseFormat | None:
    """Read what the response is held to; None if that is any text.

    Raises:
        Fault: an unknown type, or a schema that is not given whole or outside the dialect (400).
    """
    if wanted is None:
        return None
    kind = wanted.require("type", "text, json_object or json_schema").choice(_TYPES)
    if kind == "json_object":
        return ResponseFormat(type="json_object")
    return _of_schema(wanted) if kind == "json_schema" else None


def _of_schema(wanted: Fields) -> ResponseFormat:
    wrapper = wanted.require("json_schema", "an object with name and schema").fields("an object with name and schema")
    name = wrapper.require("name", "a string")
    if not name.text():
        raise name.fault("a name of at least one character")
    return read_schema(wrapper)


def read_schema(wrapper: Fields) -> ResponseFormat:
    """Read ``schema`` and ``strict``; raise `Fault` (400) if there is no schema, or one outside the dialect."""
    schema = wrapper.require("schema", "a JSON schema, an object")
    schema.fields("a JSON schema, an object")
    strict = wrapper.flag("strict") is not False
    try:
        check_response_schema(schema.value, strict=strict, where=schema.path)
    except ChatError as error:
        raise Fault(error.message, param=schema.path, hint=error.hint) from None
    return ResponseFormat(type="json_schema", schema=schema.value, strict=strict)
