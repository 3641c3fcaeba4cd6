"""A language model in this process: chat, stream, continue a text; many requests at once, from any thread.

Unusual: answers do not depend on what else is computed, or was: neither on other requests nor on cached prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Unpack, cast, overload

from openk3.checkpoint.progress import Progress
from openk3.engine.config import EngineConfig
from openk3.engine.memory import MemoryPlan
from openk3.engine.metrics import EngineMetrics
from openk3.errors import ConfigError, QueueFullError
from openk3.llm.answer import Answer, TextAnswer
from openk3.llm.loading import DType, LoadedModel, load
from openk3.llm.question import (
    ChatOptions,
    Messages,
    Prompt,
    Question,
    TextOptions,
    ask_chat,
    ask_text,
    check_params,
    is_ids,
    vary_seed,
)
from openk3.protocol.checks import shown
from openk3.protocol.sampling import SamplingParams
from openk3.tokenizer.bpe import Tokenizer


class LLM:
    """A loaded model with its engine; a context manager.

    ``model`` is a folder in the published layout or a bundled name, as is ``draft_model``, which a configuration with
    ``speculate="draft"`` needs. ``progress`` hears what was loaded and how many bytes of it.

    Raises:
        CheckpointError: the model's files are not there or not whole.
        CapacityError: weights and caches do not fit in the memory; the message has the table.
        ConfigError: settings that this model or machine cannot honour.
    """

    def __init__(
        self,
        model: str = "nano",
        *,
        dtype: DType = "bfloat16",
        engine: EngineConfig | None = None,
        draft_model: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._model = load(model, dtype, engine, draft_model, progress)

    @classmethod
    def of(cls, model: LoadedModel) -> LLM:
        """Make one of a model that is loaded already."""
        llm = cls.__new__(cls)
        llm._model = model
        return llm

    @property
    def about(self) -> str:
        """One line that says what was loaded."""
        return self._model.about

    @property
    def sampling(self) -> SamplingParams:
        """The model's own settings, which hold where no ``params`` are given."""
        return self._model.generation.sampling

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own, between text and the ids of tokens."""
        return self._model.tokenizer

    @property
    def max_tokens(self) -> int:
        """Most tokens of one request, prompt and answer."""
        return self._model.engine.max_tokens

    @property
    def memory(self) -> MemoryPlan:
        """How the memory is divided between weights and caches; `MemoryPlan.table` shows it."""
        return self._model.engine.memory

    @property
    def is_running(self) -> bool:
        """Whether requests are answered: until it is closed, or the engine has failed."""
        return self._model.engine.is_running

    @property
    def metrics(self) -> EngineMetrics:
        """What the engine has done and holds."""
        return self._model.engine.metrics

    @overload
    def chat(self, messages: Messages, *, n: Literal[1] = 1, **options: Unpack[ChatOptions]) -> Answer: ...

    @overload
    def chat(self, messages: Messages, *, n: int, **options: Unpack[ChatOptions]) -> Answer | list[Answer]: ...

    def chat(self, messages: Messages, *, n: int = 1, **options: Unpack[ChatOptions]) -> Answer | list[Answer]:
        """Answer a conversation and return when the answer is complete; a list of ``n`` of them if that is more than 1.

        Of several answers each has its own seed, counted from the one that is given. `ChatOptions` has the options.

        Raises:
            ChatError: the conversation is something that the chat format cannot express.
            ConfigError: an option without meaning.
            CapacityError: the conversation leaves no room for an answer, or too many requests wait (`QueueFullError`).
            DeadlineError: the time was over before the answer was.
            EngineError: the engine was closed.
        """
        answers = _finish(self.stream_many(messages, n=n, **options))
        return answers[0] if n == 1 else answers

    def stream(self, messages: Messages, **options: Unpack[ChatOptions]) -> Answer:
        """Answer a conversation, options and errors as for `chat`; iterate over the answer, also with ``async for``."""
        return self._submit(ask_chat(self._model, messages, options))

    def stream_many(self, messages: Messages, *, n: int, **options: Unpack[ChatOptions]) -> list[Answer]:
        """Answer a conversation ``n`` times at once, each with its own seed; options and errors as for `chat`."""
        _check_count(n)
        params = check_params(options.get("params"), self.sampling)
        varied = [vary_seed(params, number) for number in range(n)]
        return self._submit_all([ask_chat(self._model, messages, {**options, "params": one}) for one in varied])

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts to Python, but not here
        self, prompts: Prompt, params: SamplingParams | None = None
    ) -> TextAnswer: ...

    @overload
    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> list[TextAnswer]: ...

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> TextAnswer | list[TextAnswer]:
        """Continue a text (or token ids), or several at once, without the chat format, each up to its end.

        Raises:
            ConfigError: a prompt that is empty or neither text nor ids, or ``params`` that are none.
            CapacityError: a prompt leaves no room for more.
            EngineError: the engine was closed.
        """
        if isinstance(prompts, str) or (prompts and is_ids(prompts)):
            return TextAnswer.of(self.stream_text(prompts, params).finish())
        if not isinstance(prompts, Sequence):
            raise ConfigError(f"prompts are {shown(prompts)}, expected a text or a list of texts")
        several = cast(Sequence[Prompt], prompts)
        answers = self._submit_all([ask_text(self._model, prompt, params) for prompt in several])
        return [TextAnswer.of(answer) for answer in _finish(answers)]

    def stream_text(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[TextOptions]
    ) -> Answer:
        """Continue a text, errors as for `generate`; iterate over the answer, all of which is content."""
        return self._submit(ask_text(self._model, prompt, params, **options))

    def stream_text_many(self, prompt: Prompt, params: SamplingParams | None = None, *, n: int) -> list[Answer]:
        """Continue a text ``n`` times at once, each with its own seed; errors as for `generate`."""
        _check_count(n)
        params = check_params(params, self.sampling)
        return self._submit_all([ask_text(self._model, prompt, vary_seed(params, number)) for number in range(n)])

    def close(self) -> None:
        """Stop; answers that are not finished end with EngineError. May be called twice."""
        self._model.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(self, question: Question) -> Answer:
        stream = self._model.engine.submit(question.request)
        return Answer(stream, question.decoder, question.num_prompt_tokens, len(question.request.prompt_ids))

    def _submit_all(self, questions: Sequence[Question]) -> list[Answer]:
        """Submit as many as may wait, and the others as soon as earlier ones have finished."""
        answers: list[Answer] = []
        num_finished = 0
        try:
            for question in questions:
                while True:
                    try:
                        answers.append(self._submit(question))
                        break
                    except QueueFullError:
                        if num_finished == len(answers):
                            raise
                        answers[num_finished].finish()
                        num_finished += 1
        except BaseException:
            _cancel(answers)
            raise
        return answers


def _check_count(n: object) -> None:
    if type(n) is not int or n < 1:
        raise ConfigError(f"n is {n!r}, expected a whole number of answers, at least 1")


def _finish(answers: list[Answer]) -> list[Answer]:
    try:
        return [answer.finish() for answer in answers]
    except BaseException:
        _cancel(answers)
        raise


def _cancel(answers: Sequence[Answer]) -> None:
    for answer in answers:
        answer.cancel()
