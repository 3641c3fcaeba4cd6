"""Every error that OpenK3 raises on purpose; catch as widely as meant.

::

    OpenK3Error
    ├── ConfigError          a model, run or generation setting that cannot be honoured
    ├── CheckpointError      files that are not a whole, well-formed checkpoint
    │   └── TensorError      one tensor of a checkpoint is wrong, missing or not expected
    ├── TokenizerError       a vocabulary file or a token id that makes no sense
    ├── ChatError            a conversation that the chat format cannot express
    ├── CapacityError        it does not fit in the memory, disk or context there is
    │   └── QueueFullError   more requests are waiting than may wait; try again later
    ├── DeadlineError        a request's time was over before its answer was
    ├── EngineError          the engine stopped, or was closed, with a request unfinished
    ├── TrainingError        a training run that cannot start or go on
    └── NumericsError        NaN or infinity where a number was expected

A message says what happened, the value, what was expected, and (as ``hint``) what to do.
"""

from __future__ import annotations


class OpenK3Error(Exception):
    """Root of all errors of this package; ``hint`` says what the user can do."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(OpenK3Error):
    """A setting that cannot be honoured."""


class CheckpointError(OpenK3Error):
    """Files that are not a whole, well-formed checkpoint."""


class TensorError(CheckpointError):
    """One tensor of a checkpoint is wrong, missing or not expected."""


class TokenizerError(OpenK3Error):
    """A vocabulary file or a token id that makes no sense."""


class ChatError(OpenK3Error):
    """A conversation that the chat format cannot express."""


class CapacityError(OpenK3Error):
    """It does not fit in the memory, disk or context there is."""


class QueueFullError(CapacityError):
    """More requests are waiting than may wait; the same request may succeed later."""


class DeadlineError(OpenK3Error):
    """A request's time was over before its answer was."""


class EngineError(OpenK3Error):
    """The engine stopped, or was closed, with a request unfinished."""


class TrainingError(OpenK3Error):
    """A training run that cannot start or go on."""


class NumericsError(OpenK3Error):
    """NaN or infinity where a number was expected."""
