"""An OpenAPI document of what may be sent to the server, for tests that generate requests from it.

Unusual: it describes shapes, and names more fields than it constrains; what K3's rules refuse beyond that is a 400.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "maxLength": 40}
_FLAG: Schema = {"type": "boolean"}
_NAME: Schema = {"type": "string", "pattern": "^[a-z]{1,8}$"}
_MODEL: Schema = {"enum": ["nano"]}
_MOST: Schema = {"type": "integer", "minimum": 1, "maximum": 4}


def _object(required: str = "", /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


def _list(items: Schema, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _kind(*names: str) -> Schema:
    return {"enum": list(names)}


_SCHEMA: Schema = _object(
    "type properties",
    type=_kind("object"),
    properties={
        "type": "object",
        "additionalProperties": _object("type", type=_kind("string", "number", "boolean", "null", "array", "object")),
        "maxProperties": 3,
    },
    required=_list(_TEXT),
)
_TOOL = _object(
    "type function",
    type=_kind("function"),
    function=_object("name", name=_NAME, description=_TEXT, parameters=_SCHEMA, strict=_FLAG),
)
_PART = _object("type text", type=_kind("text"), text=_TEXT)
_CALL = _object(
    "id type function",
    id=_TEXT,
    type=_kind("function"),
    function=_object("name arguments", name=_NAME, arguments=_kind("{}", '{"a": 1}', "{", "")),
)
_MESSAGE: Schema = {
    "anyOf": [
        _object("role content", role=_kind("user", "system", "developer"), content={"anyOf": [_TEXT, _list(_PART)]}),
        _object("role content", role=_kind("assistant"), content=_TEXT, reasoning_content=_TEXT, partial=_FLAG),
        _object("role tool_calls", role=_kind("assistant"), tool_calls=_list(_CALL, 1)),
        _object("role content tool_call_id", role=_kind("tool"), content=_TEXT, tool_call_id=_TEXT),
        _object("role tools", role=_kind("system"), tools=_list(_TOOL, 1)),
    ]
}
_SAMPLING: dict[str, Schema] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 1},
    "top_p": _kind(0.95),
    "seed": {"type": "integer"},
    "stop": {"anyOf": [_TEXT, _list(_TEXT)]},
    "stream": _FLAG,
}
_CHOICE: Schema = {
    "anyOf": [
        _kind("auto", "none", "required"),
        _object("type function", type=_kind("function"), function=_object("name", name=_NAME)),
    ]
}
_FORMAT = _object(
    "type",
    type=_kind("text", "json_object", "json_schema"),
    json_schema=_object("name schema", name=_NAME, schema=_SCHEMA, strict=_FLAG),
)
_CHAT = _object(
    "model messages max_tokens",
    model=_MODEL,
    messages=_list(_MESSAGE, 1),
    max_tokens=_MOST,
    max_completion_tokens=_MOST,
    tools=_list(_TOOL),
    tool_choice=_CHOICE,
    response_format=_FORMAT,
    thinking=_object("type", type=_kind("enabled", "disabled"), effort=_kind("low", "high", "max"), keep=_kind("all")),
    reasoning_effort=_kind("low", "high", "max", "none"),
    stream_options=_object(include_usage=_FLAG, continuous_usage_stats=_FLAG, include_internal_content=_FLAG),
    logprobs=_FLAG,
    top_logprobs={"type": "integer", "minimum": 0, "maximum": 20},
    **_SAMPLING,
)
_IDS = _list({"type": "integer", "minimum": 0, "maximum": 4095}, 1)
_COMPLETIONS = _object(
    "model prompt max_tokens",
    model=_MODEL,
    prompt={"anyOf": [_TEXT, _IDS, _list(_TEXT, 1, 1), _list(_IDS, 1, 1)]},
    max_tokens=_MOST,
    logprobs={"type": "integer", "minimum": 0, "maximum": 20},
    **_SAMPLING,
)
_ITEM: Schema = {
    "anyOf": [
        _object("role content", type=_kind("message"), role=_kind("user", "assistant", "system"), content=_TEXT),
        _object("type summary", type=_kind("reasoning"), summary=_list(_object("type text", text=_TEXT))),
        _object("type call_id name arguments", type=_kind("function_call"), call_id=_TEXT, name=_NAME, arguments=_TEXT),
        _object("type call_id output", type=_kind("function_call_output"), call_id=_TEXT, output=_TEXT),
    ]
}
_RESPONSES = _object(
    "model input max_output_tokens",
    model=_MODEL,
    input={"anyOf": [_TEXT, _list(_ITEM, 1)]},
    instructions=_TEXT,
    max_output_tokens=_MOST,
    tools=_list(_object("type name", type=_kind("function", "custom"), name=_NAME, parameters=_SCHEMA)),
    tool_choice=_kind("auto", "none", "required"),
    reasoning=_object(effort=_kind("low", "high", "max", "none"), summary=_kind("auto")),
    text=_object(format=_object("type", type=_kind("text", "json_object", "json_schema"), name=_NAME, schema=_SCHEMA)),
    **_SAMPLING,
)
_BLOCK: Schema = {
    "anyOf": [
        _PART,
        _object("type thinking signature", type=_kind("thinking"), thinking=_TEXT, signature=_TEXT),
        _object("type id name input", type=_kind("tool_use"), id=_NAME, name=_NAME, input={"type": "object"}),
        _object("type tool_use_id", type=_kind("tool_result"), tool_use_id=_NAME, content=_TEXT, is_error=_FLAG),
    ]
}
_CONVERSATION: dict[str, Schema] = {
    "model": _MODEL,
    "messages": _list(
        _object("role content", role=_kind("user", "assistant"), content={"anyOf": [_TEXT, _list(_BLOCK, 1)]}), 1
    ),
    "system": {"anyOf": [_TEXT, _list(_PART)]},
    "tools": _list(_object("name input_schema", name=_NAME, description=_TEXT, input_schema=_SCHEMA)),
    "tool_choice": _object("type", type=_kind("auto", "any", "tool", "none"), name=_NAME),
    "thinking": _object("type", type=_kind("enabled", "adaptive", "disabled")),
    "output_config": _object(effort=_kind("low", "high", "max")),
}
_MESSAGES = _object(
    "model messages max_tokens",
    max_tokens=_MOST,
    stop_sequences=_list(_TEXT),
    **_CONVERSATION,
    **{name: schema for name, schema in _SAMPLING.items() if name not in ("stop", "seed")},
)
BODIES: dict[str, Schema] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": _COMPLETIONS,
    "/v1/responses": _RESPONSES,
    "/anthropic/v1/messages": _MESSAGES,
    "/v1/tokenizers/estimate-token-count": _object("model messages", model=_MODEL, messages=_list(_MESSAGE, 1)),
    "/anthropic/v1/messages/count_tokens": _object("model messages", **_CONVERSATION),
}
"""The body that each endpoint understands, by path."""

GETS = ("/v1/models", "/v1/models/nano", "/v1/usage", "/health", "/metrics", "/")
"""Paths without a body."""


def _operation(body: Schema) -> Schema:
    return {
        "post": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": {"description": "an answer"}},
        }
    }


DOCUMENT: Schema = {
    "openapi": "3.1.0",
    "info": {"title": "OpenK3", "version": "1"},
    "paths": {path: _operation(body) for path, body in BODIES.items()},
}
