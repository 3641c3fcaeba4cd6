"""Input of the Responses API, a text or a list of items, to the messages of the protocol.

Unusual: what the model said in one turn comes as several items, reasoning before text before calls, and becomes one
message again. Whatever this server gives as output is accepted as input.
"""

from __future__ import annotations

from collections.abc import Iterable

from openk3.protocol.messages import Message, Part, TextPart, ToolCall
from openk3.server.faults import Fault
from openk3.server.openai.custom_tools import custom_arguments
from openk3.server.openai.responses_tools import Tool, full_name, read_tools
from openk3.server.values import Fields, Value, one_of

_ROLES = ("user", "assistant", "developer", "system")
_TYPES = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "web_search_call",
    "additional_tools",
)
_TEXTS = ("input_text", "output_text", "text")
_MEDIA = {"input_image": "an image", "input_file": "a file", "input_audio": "audio"}
_REASON_TEXTS = ("summary_text", "reasoning_text", "text")


class Conversation:
    """Messages from items; ``tools`` are those that items declare on the way."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: list[Tool] = []
        self._called: dict[str, str] = {}
        self._reset()

    def add(self, item: Value) -> None:
        """Add one item; raise `Fault` (400) if it is none, or not one that this server can know of."""
        fields = item.fields("an item, an object")
        match _type(fields):
            case "message":
                self._message(fields)
            case "reasoning":
                self._reason(_reasoning(fields))
            case "function_call":
                arguments = fields.require("arguments", "a string with the JSON of an object")
                self._call(fields, arguments.text("a string with the JSON of an object"))
            case "custom_tool_call":
                self._call(fields, custom_arguments(fields.require("input", "a string").text()))
            case "function_call_output" | "custom_tool_call_output":
                self._output(fields)
            case "additional_tools":
                self._declare(fields)
            # A search of the web tells what was looked for, not what was found: there is nothing to render.

    def say(self, role: str, content: str | tuple[Part, ...]) -> None:
        """Add a message that is not the model's."""
        self._other(Message(role="user" if role == "user" else "system", content=content))

    def end_turn(self) -> None:
        """End the model's turn, if it has said anything."""
        reasoning = "\n\n".join(filter(None, self._reasoning)) or None
        if self._content is not None or self._calls or reasoning is not None:
            content, calls = None if self._content is None else "".join(self._content), tuple(self._calls)
            self.messages.append(Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls))
        self._reset()

    def _reset(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] | None = None
        self._calls: list[ToolCall] = []

    def _message(self, fields: Fields) -> None:
        role = fields.require("role", one_of(_ROLES)).choice(_ROLES)
        content = _content(fields.require("content", "a string or a list of parts"))
        if role != "assistant":
            self.say(role, content)
            return
        if self._content is not None and not self._calls:
            self.end_turn()
        if self._content is None:
            self._content = []
        self._content.append(_joined(content))

    def _reason(self, text: str) -> None:
        if self._content is not None or self._calls:
            self.end_turn()
        self._reasoning.append(text)

    def _call(self, fields: Fields, arguments: str | dict[str, str]) -> None:
        call_id = _call_id(fields)
        name = fields.require("name", "the name of a tool")
        if not name.text():
            raise name.fault("the name of a tool")
        known = full_name(fields.text("namespace"), name.value)
        self._calls.append(ToolCall(call_id, known, arguments))
        self._called[call_id] = known

    def _output(self, fields: Fields) -> None:
        call_id = _call_id(fields)
        if call_id not in self._called:
            raise Fault(
                f"{fields.path_of('call_id')} is {call_id!r:.60}, expected the id of a call before it",
                param=fields.path_of("call_id"),
                hint="send the call too: nothing is stored here",
            )
        content = _content(fields.require("output", "a string or a list of parts"))
        self._other(Message(role="tool", content=content, tool_call_id=call_id, tool=self._called[call_id]))

    def _declare(self, fields: Fields) -> None:
        fields.choice("role", ("developer",))
        tools = read_tools(fields.require("tools", "a list of tools"))
        self.tools += tools
        if tools:
            self._other(Message(role="system", tools=tuple(tool.declaration for tool in tools)))

    def _other(self, message: Message) -> None:
        self.end_turn()
        self.messages.append(message)


def read_input(body: Fields) -> Conversation:
    """Read ``instructions`` and ``input``; raise `Fault` (400), with its path, for what cannot be read."""
    conversation = Conversation()
    if instructions := body.text("instructions"):
        conversation.say("system", instructions)
    given = body.require("input", "a string or a list of items")
    if isinstance(given.value, str):
        conversation.say("user", given.value)
        return conversation
    items = given.items("a string or a list of items")
    if not items:
        raise Fault("input is [], expected at least one item", param="input")
    for item in items:
        conversation.add(item)
    conversation.end_turn()
    return conversation


def _type(fields: Fields) -> str:
    if "type" not in fields and "role" in fields:
        return "message"
    kind = fields.require("type", one_of(_TYPES))
    if kind.value == "item_reference":
        raise kind.fault("the item itself: nothing is stored here", hint="set store to false in the client")
    return kind.choice(_TYPES)


def _call_id(fields: Fields) -> str:
    call_id = fields.require("call_id", "the id of a call")
    if not call_id.text():
        raise call_id.fault("the id of a call")
    return call_id.text()


def _content(content: Value) -> str | tuple[Part, ...]:
    if isinstance(content.value, str):
        return content.text()
    return tuple(_part(part) for part in content.items("a string or a list of parts"))


def _part(part: Value) -> TextPart:
    fields = part.fields('a part: {"type": "input_text", "text": …}')
    kind = fields.require("type", one_of(_TEXTS[:2]))
    if isinstance(kind.value, str) and kind.value in _MEDIA:
        raise kind.fault(f"{one_of(_TEXTS[:2])}: this model reads text only, not {_MEDIA[kind.value]}")
    if kind.value == "refusal":
        return TextPart(fields.require("refusal", "a string").text())
    kind.choice(_TEXTS)
    return TextPart(fields.require("text", "a string").text())


def _joined(content: str | tuple[Part, ...]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextPart))


def _reasoning(fields: Fields) -> str:
    """Read what the model thought: its ``content`` if that is there, or else the summary of it."""
    content = fields.items("content", "a list of parts")
    return _paragraphs(content or fields.items("summary", "a list of parts") or ())


def _paragraphs(parts: Iterable[Value]) -> str:
    texts = []
    for part in parts:
        fields = part.fields('a part: {"type": "summary_text", "text": …}')
        fields.require("type", one_of(_REASON_TEXTS[:2])).choice(_REASON_TEXTS)
        texts.append(fields.require("text", "a string").text())
    return "\n\n".join(texts)
