"""The flags that ``chat`` and ``generate`` share, and what they become.

Unusual: a sampling flag that is not given leaves the setting to the model's own ``generation_config.json``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from cyclopts import Parameter

from openk3.cli.errors import UsageError
from openk3.engine.sizes import parse_size
from openk3.errors import ConfigError
from openk3.protocol.sampling import SamplingParams

Effort = Literal["low", "high", "max"]
DType = Literal["bfloat16", "float32"]
Speculation = Literal["off", "ngram", "mtp", "draft"]

# Off unless given; there is no --no-… for it.
Switch = Annotated[bool, Parameter(negative="")]


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
    min_p: float | None = None
    """Keep the tokens with at least this part of the likeliest one's probability."""
    presence_penalty: float | None = None
    """Make tokens that were already written less likely, once; -2 to 2."""
    frequency_penalty: float | None = None
    """Make tokens that were already written less likely, for each time; -2 to 2."""
    repetition_penalty: float | None = None
    """Make tokens of the prompt and the answer less likely; 1 changes nothing."""
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


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """How the engine runs."""

    memory: str | None = None
    """Most memory for weights and caches, such as 8GB; half of what is free if not given."""
    speculate: Speculation | None = None
    """Who guesses tokens ahead, which changes no answer: nobody, repetitions, the model's own layers, a draft model."""
    draft_model: str | None = None
    """A smaller model that guesses tokens ahead."""
    cache_dir: Path | None = None
    """Keep what was read of conversations in this folder, for the next run."""
    deterministic: Switch = False
    """Refuse to run where results could depend on what is computed together."""

    def settings(self) -> dict[str, Any]:
        """Give the settings of an engine; raise `UsageError` for values without meaning."""
        speculate = self.speculate or ("off" if self.draft_model is None else "draft")
        if (speculate == "draft") != (self.draft_model is not None):
            what = "without" if self.draft_model is None else "with"
            raise UsageError(
                f"--speculate {speculate} is given {what} --draft-model, expected --draft-model with draft only",
                hint="leave out --speculate, or name a model with --draft-model",
            )
        return {
            "memory_bytes": None if self.memory is None else self._memory_bytes(self.memory),
            "speculate": speculate,
            "cache_folder": self.cache_dir,
            "deterministic": self.deterministic,
        }

    @staticmethod
    def _memory_bytes(text: str) -> int:
        try:
            return parse_size(text)
        except ConfigError as error:
            raise UsageError(f"--memory: {error.message}", hint=error.hint) from None


Sampling = Annotated[SamplingFlags, Parameter(name="*")]
EngineSettings = Annotated[EngineFlags, Parameter(name="*")]


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
