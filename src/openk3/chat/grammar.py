"""The grammar of one answer, from the prompt's end to the end of the message.

Unusual: reasoning and free text are any text without control tokens, so that only the channel of the response, and
calls, are held to anything. The channels must be closed one by one, though the parser asks for less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from openk3.chat.grammar_arguments import ArgumentsWriter
from openk3.chat.grammar_text import (
    ANY_TEXT,
    GrammarWriter,
    attribute,
    encodable,
    json_value,
    literal,
    nested,
    refusal_of,
    regex,
)
from openk3.chat.json_schema_check import check_schema
from openk3.chat.json_schema_refs import self_contained
from openk3.errors import ChatError
from openk3.protocol.checks import shown
from openk3.protocol.deep_stack import with_deep_stack
from openk3.protocol.messages import Channel, Message, ResponseFormat, ToolChoice, ToolDeclaration
from openk3.protocol.request import Grammar

if TYPE_CHECKING:
    from openk3.tokenizer.bpe import Tokenizer
    from openk3.tokenizer.special import SpecialTokens

# Calls are numbered exactly up to this; later ones have any number, as each exact one makes the grammar larger.
_MOST_NUMBERED = 32
MOST_TOOLS = 1024
"""Of one conversation, strict or not."""

# As many as the engine compiles; it could not say what to do about it.
_MOST_RULES = 8192
# Time to read alternatives grows with the square of their number: a second for this many characters.
_MOST_CHARACTERS = 1 << 17


def answer_grammar(
    *,
    channel: Channel,
    special: SpecialTokens,
    tools: Sequence[ToolDeclaration] = (),
    tool_choice: ToolChoice = "auto",
    only_tool: str | None = None,
    response_format: ResponseFormat | None = None,
    strict_tools: bool = True,
) -> Grammar | None:
    """Write the grammar of an answer that begins in ``channel``; None if nothing restricts it.

    ``tools`` are all that the conversation declares (`declared_tools`); those with ``strict`` are held to their schema,
    and ``strict_tools`` says what a tool without the word is. With ``tool_choice`` required at least one is called,
    ``only_tool`` if that is given. A constrained response may be left empty before a call.

    Raises:
        ChatError: a tool, a schema or the response format makes no sense.
        TokenizerError: the vocabulary lacks the control tokens of the chat format.
    """
    _check_choice(tools, tool_choice, only_tool)
    wanted = response_format or ResponseFormat()
    _check_fields(wanted)
    if wanted.type == "text" and not tools:
        return None

    def write() -> Grammar:
        writer = GrammarWriter(special)
        response = _response(wanted)
        may_call = tools and tool_choice != "none"
        calls = _calls(ArgumentsWriter(writer, strict_tools), writer, tools, only_tool) if may_call else None
        _write_answer(writer, channel, response, calls, required=tool_choice == "required")
        if writer.num_rules > _MOST_RULES:
            raise ChatError(
                f"the tools make a grammar of {writer.num_rules:,} rules, expected at most {_MOST_RULES:,}",
                hint="declare fewer tools, or some with strict false",
            )
        return Grammar(encodable(writer.text))

    return with_deep_stack(write)


def declared_tools(tools: Sequence[ToolDeclaration], messages: Iterable[Message]) -> list[ToolDeclaration]:
    """List all tools of a conversation: the global ones and those that its system messages add."""
    return [*tools, *(tool for message in messages for tool in message.tools)]


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None]:
    """List the text of each id for a grammar compiler; None for special tokens."""
    num_text = tokenizer.num_base_tokens
    return [*map(tokenizer.token_bytes, range(num_text)), *[None] * (tokenizer.vocab_size - num_text)]


def _write_answer(
    writer: GrammarWriter, channel: Channel, response: str | None, calls: str | None, *, required: bool
) -> None:
    reasoning = f"{ANY_TEXT} {writer.close('think')} {writer.open(literal('response'))} "
    content = writer.define("content", ANY_TEXT if response is None else response)
    close = writer.close("response")
    if calls is None:
        channels = f"{content} {close}"
    else:
        channels = f"{content} {close} {calls}{'' if required else '?'}"
        if response is not None:
            channels += f" | {close} {calls}"
    writer.define("channels", channels)
    writer.define("start", f"{reasoning if channel == 'think' else ''}channels {writer.close('message')} {writer.end}")


def _calls(
    arguments: ArgumentsWriter, writer: GrammarWriter, tools: Sequence[ToolDeclaration], only_tool: str | None
) -> str:
    """Add the rules of the tools channel; a parameter counts the calls."""
    calls = []
    for position, tool in enumerate(tools):
        name, function = _function(tool, position)
        if only_tool in (None, name):
            opening = literal(f'call{attribute("tool", name)} index="')
            body = arguments.arguments(function, f"the parameters of tool {name!r}")
            element = writer.element(f'{opening} index::_ "\\""', "call", body)
            calls.append(writer.define(f"call_{position}::_", element))
    _write_index(writer)
    writer.define("call::_", " | ".join(calls))
    writer.define("calls::_", "call::_ | call::_ calls::incr(_)")
    return writer.define("tools", writer.element(literal("tools"), "tools", "calls::1"))


def _write_index(writer: GrammarWriter) -> None:
    numbers = [f'"{number}" %if eq(_, {number})' for number in range(1, _MOST_NUMBERED + 1)]
    writer.define("index::_", " | ".join([*numbers, f"/[1-9][0-9]{{1,3}}/ %if gt(_, {_MOST_NUMBERED})"]))


def _function(tool: object, position: int) -> tuple[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ChatError(f"tools[{position}] has no function with a name, expected one to call it by")
    return name, function


def _check_choice(tools: Sequence[ToolDeclaration], choice: ToolChoice, only_tool: str | None) -> None:
    if choice not in get_args(ToolChoice):
        raise ChatError(f"tool_choice is {shown(choice)}, expected auto, none or required")
    if len(tools) > MOST_TOOLS:
        raise ChatError(
            f"{len(tools):,} tools are declared, expected at most {MOST_TOOLS:,}", hint="declare fewer tools"
        )
    if choice == "required" and not tools:
        raise ChatError("tool_choice is 'required', but no tool is declared")
    names = [_function(tool, position)[0] for position, tool in enumerate(tools)]
    if only_tool is not None and (choice != "required" or only_tool not in names):
        raise ChatError(
            f"only_tool is {only_tool!r} with tool_choice {choice!r}, expected a declared tool, with 'required'",
            hint=f"the declared tools are {', '.join(names) or 'none'}",
        )


def _response(wanted: ResponseFormat) -> str | None:
    """Give what matches the response; None if that is any text.

    Raises:
        ChatError: llguidance refuses it; its reason is said.
    """
    if wanted.type == "text":
        return None
    if wanted.type == "lark":
        return nested(_readable(wanted.lark, "lark"), "the lark of the response format")
    if wanted.type == "regex":
        matched = regex(_readable(wanted.regex, "regex"))
    elif wanted.type == "json_object":
        matched = json_value({"type": "object"}, on_one_line=True)
    elif not wanted.strict:
        matched = json_value({}, on_one_line=True)
    else:
        if not isinstance(wanted.schema, Mapping):
            raise ChatError(f"the response schema is {shown(wanted.schema)}, expected a JSON schema")
        check_schema(wanted.schema, "the response schema")
        matched = json_value(self_contained(wanted.schema, wanted.schema), on_one_line=True)
    if fault := refusal_of(matched):
        raise ChatError(f"the {wanted.type} of the response format cannot be enforced: {fault}")
    return matched


def _check_fields(wanted: object) -> None:
    if not isinstance(wanted, ResponseFormat):
        raise ChatError(f"the response format is {shown(wanted)}, expected ResponseFormat")
    owners = {"schema": "json_schema", "regex": "regex", "lark": "lark"}
    if wanted.type not in ("text", "json_object", *owners.values()):
        raise ChatError(
            f"response format is {shown(wanted.type)}, expected text, json_object, json_schema, regex or lark"
        )
    for field, owner in owners.items():
        if (getattr(wanted, field) is not None) != (wanted.type == owner):
            fault = "without" if wanted.type == owner else "with"
            raise ChatError(f"response format is {wanted.type!r} {fault} {field}, expected {field} with {owner} only")


def _readable(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise ChatError(f"the {what} of the response format is {shown(text)}, expected text")
    if len(text) > _MOST_CHARACTERS:
        raise ChatError(
            f"the {what} of the response format has {len(text)} characters, expected at most {_MOST_CHARACTERS}"
        )
    return encodable(text)
