"""K3's rules for the parameters that a request may send along: most are fixed, and a wrong one is refused.

Unusual: what is left out takes the model's own value, never a framework's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openk3.errors import OpenK3Error
from openk3.protocol.sampling import SamplingParams
from openk3.server.endpoint import ServedModel
from openk3.server.faults import fault_of
from openk3.server.values import Fields, one_of

# What a model that does not think is sampled with at most.
_PLAIN_TEMPERATURE = 0.6
_TOP_P = 0.95
_PENALTIES = ("presence_penalty", "frequency_penalty")


def read_sampling(body: Fields, model: ServedModel, *, thinking: bool) -> SamplingParams:
    """Return the model's own settings with what a body changes of them: temperature, top_p and penalties.

    ``free_sampling`` of the model lifts the rules, and lets a body give top_k and min_p too.

    Raises:
        Fault: one is no number, or is one that is not allowed (400).
    """
    own = model.sampling
    if not thinking:
        own = replace(own, temperature=min(own.temperature, _PLAIN_TEMPERATURE))
    given = _read_free(body) if model.free_sampling else _read_fixed(body, own)
    try:
        return replace(own, **{name: value for name, value in given.items() if value is not None})
    except OpenK3Error as error:
        raise fault_of(error) from None


def _read_free(body: Fields) -> dict[str, Any]:
    """Read numbers; what they may be is checked with the others."""
    names = ("temperature", "top_p", "min_p", *_PENALTIES)
    return {name: body.number(name) for name in names} | {"top_k": body.whole("top_k")}


def _read_fixed(body: Fields, own: SamplingParams) -> dict[str, Any]:
    for name in _PENALTIES:
        require_fixed(body, name, 0)
    require_fixed(body, "top_p", _TOP_P, own.top_p)
    return {"temperature": body.number("temperature", 0, 1), "top_p": body.number("top_p")}


def require_fixed(body: Fields, name: str, *allowed: float) -> None:
    """Raise `Fault` (400) if a body has another value for ``name`` than those that are allowed."""
    value = body.get(name)
    if value is not None and value.number() not in allowed:
        only = one_of(list(dict.fromkeys(f"{number:g}" for number in allowed)))
        raise value.fault(f"{only}: it is fixed for this model", hint="leave it out")
