"""A conversation with its options, to a request in token ids and the decoder of its answer.

Unusual: everything is rendered and checked here, so that wrong input fails before anything is computed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypedDict, TypeGuard, Unpack, cast

from openk3.chat.grammar import answer_grammar, declared_tools
from openk3.chat.parse import StreamParser, collect, count_calls
from openk3.chat.render import RenderedPrompt, render, render_dialogue
from openk3.errors import ChatError, ConfigError
from openk3.llm.decoding import AnswerDecoder, PlainText
from openk3.llm.inputs import to_messages, to_tools
from openk3.llm.loading import LoadedModel
from openk3.protocol.checks import shown
from openk3.protocol.messages import Effort, Message, ResponseFormat, ToolChoice, ToolDeclaration
from openk3.protocol.request import Priority, Request
from openk3.protocol.sampling import SamplingParams
from openk3.tokenizer.bpe import Tokenizer

Messages = Sequence[Message | Mapping[str, Any]]
"""A conversation: `Message` objects, or objects as OpenAI's clients send them."""
Prompt = str | Sequence[int]
"""What is continued as it stands: a text, or its token ids."""


class ChatOptions(TypedDict, total=False):
    """How a conversation is answered; everything may be left out.

    ``params``: how tokens are chosen (the model's own settings). ``tools``: what may be called; ``tool_choice`` says
    whether it must (auto), ``only_tool`` which; ``strict_tools`` (True) whether arguments are held to the schema of a
    tool that does not say. ``response_format``: what the response is held to. ``thinking`` (True) and ``effort`` (max):
    whether and how long to think. ``timeout_s``: after so many seconds it is an error. ``priority`` (interactive):
    batch lets others go first. ``cache_salt``: only equal ones share cached prefixes.
    """

    params: SamplingParams | None
    tools: Sequence[ToolDeclaration]
    tool_choice: ToolChoice
    only_tool: str | None
    response_format: ResponseFormat | None
    strict_tools: bool
    thinking: bool
    effort: Effort
    timeout_s: float | None
    priority: Priority
    cache_salt: str


class TextOptions(TypedDict, total=False):
    """How a text is continued: those of the `ChatOptions` that need no chat."""

    timeout_s: float | None
    priority: Priority
    cache_salt: str


@dataclass(frozen=True)
class Question:
    """A request for the engine, and what it takes to read the answer."""

    request: Request
    decoder: AnswerDecoder
    num_prompt_tokens: int


@dataclass(frozen=True, kw_only=True)
class _Chat:
    """`ChatOptions` with defaults."""

    messages: list[Message]
    params: SamplingParams
    tools: tuple[ToolDeclaration, ...] = ()
    tool_choice: ToolChoice = "auto"
    only_tool: str | None = None
    response_format: ResponseFormat | None = None
    strict_tools: bool = True
    thinking: bool = True
    effort: Effort = "max"
    timeout_s: float | None = None
    priority: Priority = "interactive"
    cache_salt: str = ""

    def prompt(self, tokenizer: Tokenizer) -> RenderedPrompt:
        """Render the conversation."""
        return render(
            self.messages,
            tokenizer=tokenizer,
            tools=self.tools,
            tool_choice=self.tool_choice,
            response_format=self.stated_format,
            thinking=self.thinking,
            effort=self.effort,
        )

    @property
    def stated_format(self) -> ResponseFormat | None:
        """The response format if the chat format has words for it; others are enforced without a word."""
        wanted = self.response_format
        return None if wanted is not None and wanted.type in ("regex", "lark") else wanted

    @property
    def leaves_a_trace(self) -> bool:
        """Whether the prompt holds something that the conversation's next prompt will not."""
        is_formatted = self.stated_format is not None and self.stated_format.type != "text"
        return is_formatted or self.tool_choice != "auto" or self.messages[-1].partial


def ask_chat(model: LoadedModel, messages: Messages, options: ChatOptions) -> Question:
    """Prepare an answer to a conversation; raise `OpenK3Error` for whatever is wrong with it or its options."""
    chat = _chat(model, messages, options)
    prompt = chat.prompt(model.tokenizer)
    declared = declared_tools(chat.tools, chat.messages)
    grammar = answer_grammar(
        channel=prompt.channel,
        special=model.tokenizer.special,
        tools=declared,
        tool_choice=chat.tool_choice,
        only_tool=chat.only_tool,
        response_format=chat.response_format,
        strict_tools=chat.strict_tools,
    )
    parser = StreamParser(
        model.tokenizer,
        channel=prompt.channel,
        tools_declared=bool(declared),
        call_id_offset=count_calls(chat.messages),
    )
    request = Request(
        prompt_ids=prompt.ids,
        params=chat.params,
        priority=chat.priority,
        timeout_s=chat.timeout_s,
        grammar=grammar,
        cache_salt=chat.cache_salt,
        replayed=None if chat.leaves_a_trace else partial(_replayed, model.tokenizer, prompt, bool(declared)),
    )
    return Question(request, AnswerDecoder(parser, chat.params.stop), prompt.num_prompt_tokens)


def ask_text(
    model: LoadedModel, prompt: Prompt, params: SamplingParams | None, **options: Unpack[TextOptions]
) -> Question:
    """Prepare to continue ``prompt`` as it stands, up to the end of a training text or a message.

    Raises:
        ConfigError: the prompt is neither text nor ids, or empty.
    """
    ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    if not is_ids(ids):
        raise ConfigError(f"the prompt is {shown(prompt)}, expected text or a list of token ids")
    params = check_params(params, model.generation.sampling)
    params = replace(params, stop_token_ids=(*params.stop_token_ids, model.tokenizer.special.eos))
    ends = model.engine.stop_token_ids.union(params.stop_token_ids)
    request = Request(prompt_ids=tuple(ids), params=params, **options)
    decoder = AnswerDecoder(PlainText(model.tokenizer, ends), params.stop)
    return Question(request, decoder, len(request.prompt_ids))


def is_ids(prompt: object) -> TypeGuard[Sequence[int]]:
    """Tell whether ``prompt`` is a list of token ids, as far as that can be seen: an empty one is."""
    return isinstance(prompt, list | tuple | range) and all(type(token) is int for token in prompt)


def check_params(params: SamplingParams | None, own: SamplingParams) -> SamplingParams:
    """Return ``params``, or a model's ``own`` if there are none; raise `ConfigError` for anything else."""
    if params is None:
        return own
    if not isinstance(params, SamplingParams):
        raise ConfigError(
            f"params is {shown(params)}, expected SamplingParams", hint="write SamplingParams(max_tokens=100)"
        )
    return params


def vary_seed(params: SamplingParams, number: int) -> SamplingParams:
    """Return the params of answer ``number`` of several: its own seed, that counts from the first one's."""
    return params if params.seed is None else replace(params, seed=(params.seed + number) % 2**64)


def _chat(model: LoadedModel, messages: Messages, options: ChatOptions) -> _Chat:
    given = cast("dict[str, Any]", dict(options))
    _check_options(given)
    given["params"] = check_params(given.get("params"), model.generation.sampling)
    given["tools"] = to_tools(given.get("tools") or ())
    wanted = given.get("response_format")
    if wanted is not None and not isinstance(wanted, ResponseFormat):
        raise ChatError(f"response_format is {shown(wanted)}, expected ResponseFormat")
    return _Chat(messages=to_messages(messages), **given)


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse what only an unchecked caller can give."""
    known = ChatOptions.__annotations__
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"{name} is not an option of a chat, expected {', '.join(known)}",
                hint=f"did you mean {near[0]}?" if near else None,
            )
    for name in ("thinking", "strict_tools"):
        if not isinstance(given.get(name, True), bool):
            raise ConfigError(f"{name} is {shown(given[name])}, expected true or false")


def _replayed(tokenizer: Tokenizer, prompt: RenderedPrompt, tools_declared: bool, generated: tuple[int, ...]) -> int:
    """Count the leading tokens of prompt and answer that the conversation's next prompt will begin with.

    As a message of the past, an answer is encoded anew, and not always as the model spelled it.
    """
    parser = StreamParser(tokenizer, channel=prompt.channel, tools_declared=tools_declared)
    turn = collect([*parser.push(generated), *parser.finish("stop")], "stop")
    message = Message(role="assistant", content=turn.content, reasoning=turn.reasoning, tool_calls=turn.tool_calls)
    past = render_dialogue([message], tokenizer=tokenizer, thinking=prompt.channel == "think", effort=None)
    again = [token for token, written in zip(past.ids, past.trained, strict=True) if written]
    same = next((n for n, pair in enumerate(zip(again, generated, strict=False)) if pair[0] != pair[1]), None)
    return len(prompt.ids) + (min(len(again), len(generated)) if same is None else same)
