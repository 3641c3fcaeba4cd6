"""The parameters of an answer as OpenAI's clients name them: sampling, seed, stop strings, limits of length.

Unusual: one answer per request; parameters that K3's rules do not know are ignored, unless free sampling is allowed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openk3.errors import OpenK3Error
from openk3.protocol.sampling import SamplingParams
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault, fault_of
from openk3.server.sampling_rules import read_sampling
from openk3.server.values import Fields, Value, json_shown

DEFAULT_MAX_TOKENS = 131_072
"""Most tokens of an answer, if the client does not say; fewer if the model has room for fewer."""

_MOST_STOPS = 5
_MOST_STOP_BYTES = 32
_MOST_ID_DIGITS = 9
# Characters of an identifier: answers of the Responses API repeat it, in several events.
_MOST_HINT = 1024


def read_parameters(body: Fields, model: ServedModel, *, thinking: bool = True) -> SamplingParams:
    """Read how tokens are chosen and what stops the answer, except for its greatest length.

    Raises:
        Fault: a value that the rules do not allow, or more than one answer (400).
    """
    if (n := body.get("n")) and n.whole() != 1:
        raise n.fault("1: this server gives one answer per request", hint="send the request several times")
    given: dict[str, Any] = {"stop": read_stop(body.get("stop"))}
    if (seed := body.whole("seed", -(2**63), 2**64 - 1)) is not None:
        given["seed"] = seed % 2**64
    if model.free_sampling:
        given.update(_more(body))
    try:
        return replace(read_sampling(body, model, thinking=thinking), **given)
    except OpenK3Error as error:
        raise fault_of(error) from None


def read_stop(stop: Value | None) -> tuple[str, ...]:
    """Read stop strings: one, or a list of at most 5, each of 1 to 32 bytes; raise `Fault` (400) for anything else."""
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop.value, str) else stop.items("a string or a list of strings")
    if len(texts) > _MOST_STOPS:
        raise Fault(f"{stop.path} has {len(texts)} strings, expected at most {_MOST_STOPS}", param=stop.path)
    for text in texts:
        size = len(text.text().encode("utf-8", "surrogatepass"))
        if not 1 <= size <= _MOST_STOP_BYTES:
            raise Fault(
                f"{text.path} is {json_shown(text.value)}, {size} bytes, expected 1 to {_MOST_STOP_BYTES} bytes",
                param=text.path,
            )
    return tuple(text.value for text in texts)


def read_max_tokens(body: Fields, names: tuple[str, ...], model: ServedModel) -> int | None:
    """Read the client's own limit of the answer from the first of the fields that has one; None if none has.

    Raises:
        Fault: it is no number of tokens that the model has room for (400).
    """
    for name in names:
        if (limit := body.whole(name, 1, model.max_tokens)) is not None:
            return limit
    return None


def check_hints(body: Fields) -> None:
    """Refuse hints of a wrong type; they are not used, but the hosted service would refuse them too."""
    for name in ("prompt_cache_key", "safety_identifier"):
        if len(body.text(name) or "") > _MOST_HINT:
            raise Fault(f"{name} is longer than {_MOST_HINT} characters, expected a short text", param=name)
    body.flag("parallel_tool_calls")


def with_max_tokens(params: SamplingParams, limit: int | None) -> SamplingParams:
    """Return ``params`` with a limit; raise `Fault` (400) if that contradicts them."""
    try:
        return replace(params, max_tokens=limit)
    except OpenK3Error as error:
        raise fault_of(error) from None


def _more(body: Fields) -> dict[str, Any]:
    """Read what only open servers know."""
    given: dict[str, Any] = {}
    if (penalty := body.number("repetition_penalty")) is not None:
        given["repetition_penalty"] = penalty
    if (least := body.whole("min_tokens", 0)) is not None:
        given["min_tokens"] = least
    if (ids := body.items("stop_token_ids")) is not None:
        given["stop_token_ids"] = tuple(token.whole(0) for token in ids)
    if bias := body.fields("logit_bias"):
        given["logit_bias"] = {_token(name, bias): bias.number(name, -100, 100) or 0.0 for name in bias.values}
    return given


def _token(name: str, bias: Fields) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) <= _MOST_ID_DIGITS):
        raise Fault(f"{bias.path} names {json_shown(name)}, expected ids of tokens", param=bias.path)
    return int(name)
