"""The body of a request for a message, understood.

Unusual: ``max_tokens`` beyond what the model has room for is cut, as clients for Anthropic's models always ask for
much; and a suffix of the model's name such as ``[1m]`` is the client's own note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from openk3.chat.mfjs import check_response_schema
from openk3.errors import ChatError
from openk3.llm.question import ChatOptions
from openk3.protocol.messages import Effort, ResponseFormat
from openk3.protocol.sampling import SamplingParams
from openk3.server.anthropic.messages_content import read_messages
from openk3.server.anthropic.messages_tools import read_tools
from openk3.server.endpoint import Asked, ServedModel, require_model
from openk3.server.faults import fault_of
from openk3.server.sampling_rules import read_sampling, require_fixed
from openk3.server.values import Fields, one_of

_SUFFIX = re.compile(r"\[[^\[\]]*\]\Z")
_THINKING = ("enabled", "adaptive", "disabled")
_EFFORTS = ("low", "high", "max")
_MOST_STOPS = 64
_LONGEST_STOP = 256


def read_request(body: Mapping[str, Any], model: ServedModel) -> Asked:
    """Understand a body that asks for an answer; raise `Fault` if it cannot be."""
    asked = read_conversation(body, model)
    fields = Fields(body)
    params = _params(fields, model, thinking=asked.options["thinking"])
    options = asked.options | ChatOptions(params=params)
    return replace(asked, options=options, stream=bool(fields.flag("stream")))


def read_conversation(body: Mapping[str, Any], model: ServedModel) -> Asked:
    """Understand what of a body becomes the prompt; raise `Fault` if it cannot be."""
    fields = Fields(body)
    name = _model_name(body.get("model"), model)
    options = _thinking(fields) | read_tools(fields) | ChatOptions(response_format=_format(fields))
    return Asked(model=name, messages=read_messages(fields), options=options)


def _model_name(given: object, model: ServedModel) -> str:
    if isinstance(given, str) and given not in model.names:
        given = _SUFFIX.sub("", given)
    return require_model(given, model)


def _thinking(body: Fields) -> ChatOptions:
    """Read whether and how hard to think; without thinking, effort has no meaning."""
    thinking = body.fields("thinking")
    if thinking is not None and thinking.require("type", one_of(_THINKING)).choice(_THINKING) == "disabled":
        return ChatOptions(thinking=False)
    config = body.fields("output_config")
    effort = config.get("effort") if config is not None else None
    if effort is None:
        return ChatOptions(thinking=True)
    if effort.text() in ("medium", "xhigh"):
        raise effort.fault(one_of(_EFFORTS), hint="what is nearest to medium is high, and to xhigh max")
    return ChatOptions(thinking=True, effort=cast(Effort, effort.choice(_EFFORTS)))


def _format(body: Fields) -> ResponseFormat | None:
    """Read what the text must be; before it was part of ``output_config``, it had a field of its own."""
    config = body.fields("output_config")
    wanted = (config.fields("format") if config is not None else None) or body.fields("output_format")
    if wanted is None:
        return None
    wanted.require("type", "json_schema").choice(("json_schema",))
    given = wanted.require("schema", "a JSON schema")
    schema = given.fields("a JSON schema, an object").values
    try:
        check_response_schema(schema, strict=True, where=given.path)
    except ChatError as error:
        raise fault_of(error) from None
    return ResponseFormat(type="json_schema", schema=schema)


def _params(body: Fields, model: ServedModel, *, thinking: bool) -> SamplingParams:
    most = body.require("max_tokens", "a whole number of at least 1").whole(1)
    params = read_sampling(body, model, thinking=thinking)
    if not model.free_sampling:
        require_fixed(body, "top_k", params.top_k)
    return replace(params, max_tokens=min(most, model.max_tokens), stop=_stops(body))


def _stops(body: Fields) -> tuple[str, ...]:
    given = body.get("stop_sequences")
    if given is None:
        return ()
    items = given.items("a list of strings")
    if len(items) > _MOST_STOPS:
        raise given.fault(f"at most {_MOST_STOPS} strings")
    for item in items:
        if not 1 <= len(item.text()) <= _LONGEST_STOP:
            raise item.fault(f"a string of 1 to {_LONGEST_STOP} characters")
    return tuple(item.text() for item in items)
