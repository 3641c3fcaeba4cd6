"""The flags that ``chat`` and ``generate`` share, and what they become.

Unusual: a flag that is not given leaves the setting to the model's own ``generation_config.json``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, cast, get_args

from cyclopts import Parameter

from openk3.cli.errors import UsageError
from openk3.errors import ConfigError
from openk3.protocol.sampling import SamplingParams

Effort = Literal["low", "high", "max"]
DType = Literal["bfloat16", "float32"]


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen; None means the model's own setting."""

    max_tokens: int | None = None
    """Most tokens of one answer, thinking included."""
    temperature: float | None = None
    """0 takes the most likely token each time; higher is more varied."""
    top_p: float | None = None
    """Keep the most likely tokens up to this total probability."""
    top_k: int | None = None
    """Keep this many of the most likely tokens; 0 keeps all."""
    seed: int | None = None
    """The same seed gives the same answer."""
    stop: Annotated[tuple[str, ...], Parameter(show_default=False)] = ()
    """End the answer before this text; may be given several times."""

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """Put the given flags over a model's own settings; raise `UsageError` for values without meaning."""
        given = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) not in (None, ())}
        try:
            return replace(defaults, **given)
        except ConfigError as error:
            raise UsageError(error.message, hint=error.hint) from None


Sampling = Annotated[SamplingFlags, Parameter(name="*")]

# Off unless given; there is no --no-… for it.
Switch = Annotated[bool, Parameter(negative="")]


def choose_effort(text: str | None, *, thinking: bool) -> Effort:
    """Check ``--effort`` together with ``--no-thinking``; raise `UsageError` if both are given."""
    effort = parse_effort(text)
    if text is not None and not thinking:
        raise UsageError(
            "--effort says how long to think, but --no-thinking leaves that out", hint="leave out one or the other"
        )
    return effort


def parse_effort(text: str | None) -> Effort:
    """Check a thinking effort, max if not given; raise `UsageError` with what can be had."""
    if text is None:
        return "max"
    if text in get_args(Effort):
        return cast(Effort, text)
    reason = ": the chat template has such a level, but Kimi K3 is not offered with it" if text == "medium" else ""
    raise UsageError(
        f"effort is {text!r}, expected low, high or max{reason}", hint="to switch thinking off, use --no-thinking"
    )
