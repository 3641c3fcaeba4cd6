"""The items of an answer in the Responses API, and the events in which each of them comes.

Unusual: a whole response is collected from the same items, so that it cannot differ from a streamed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from openk3.protocol.messages import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from openk3.server.openai.custom_tools import CustomInput
from openk3.server.openai.logprobs import ContentLogprobs
from openk3.server.openai.objects import new_id
from openk3.server.openai.responses_tools import Tool

Data = dict[str, Any]
"""An event without its number, or an item."""


class Output:
    """Turn deltas into events; ``items`` are those that have ended, in order. At most one is open.

    Without ``thinking``, what a model thinks all the same is left out.
    """

    def __init__(
        self, tools: Mapping[str, Tool], logprobs: ContentLogprobs | None = None, *, thinking: bool = True
    ) -> None:
        self.items: list[Data] = []
        self._thinking = thinking
        self._tools, self._logprobs = tools, logprobs
        self._open: _Item | None = None

    def push(self, delta: Delta) -> Iterator[Data]:
        """Give the events of one delta; another kind of text ends the item that is open."""
        match delta:
            case ReasoningDelta(text) if self._thinking:
                if not isinstance(self._open, _Reasoning):
                    yield from self._begin(_Reasoning())
                yield from self._more(text)
            case ContentDelta(text):
                if not isinstance(self._open, _Message):
                    yield from self._begin(_Message(self._logprobs))
                yield from self._more(text)
            case ToolCallStart(_, call_id, name):
                yield from self._begin(self._call(call_id, name))
            case ToolArgumentsDelta(_, text):
                yield from self._more(text)
            case ToolCallEnd():
                yield from self.end()

    def end(self, *, is_cut: bool = False) -> Iterator[Data]:
        """End the item that is open, if one is; it is incomplete if a limit has cut it."""
        if self._open is None:
            return
        item, self._open = self._open, None
        status = "incomplete" if is_cut else "completed"
        yield from item.ending()
        self.items.append(item.item(status))
        yield {"type": "response.output_item.done", "output_index": item.index, "item": self.items[-1]}

    def _call(self, call_id: str, full_name: str) -> _Item:
        tool = self._tools.get(full_name)
        names = {"name": full_name} if tool is None else {"name": tool.name}
        if tool and tool.namespace:
            names["namespace"] = tool.namespace
        kind = _CustomCall if tool and tool.kind == "custom" else _FunctionCall
        return kind(call_id, names)

    def _begin(self, item: _Item) -> Iterator[Data]:
        yield from self.end()
        self._open, item.index = item, len(self.items)
        yield {"type": "response.output_item.added", "output_index": item.index, "item": item.item("in_progress")}
        yield from item.beginning()

    def _more(self, text: str) -> Iterator[Data]:
        if self._open:
            yield from self._open.more(text)


class _Item:
    """One item while it is written; ``index`` is its place in the output."""

    prefix = ""

    def __init__(self) -> None:
        self.index = 0
        self._id = new_id(self.prefix)
        self._pieces: list[str] = []

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    def item(self, status: str) -> Data:
        """Give the item as far as it has come; without its text while it is in progress."""
        raise NotImplementedError

    def beginning(self) -> Iterator[Data]:
        """Give what comes before the first text."""
        return iter(())

    def more(self, text: str) -> Iterator[Data]:
        """Take more text."""
        raise NotImplementedError

    def ending(self) -> Iterator[Data]:
        """Give what comes after the last text."""
        raise NotImplementedError

    def _event(self, kind: str, **more: Any) -> Data:
        return {"type": f"response.{kind}", "item_id": self._id, "output_index": self.index, **more}


class _Reasoning(_Item):
    prefix = "rs_"

    def item(self, status: str) -> Data:
        summary = [] if status == "in_progress" else [self._part()]
        return {"id": self._id, "type": "reasoning", "summary": summary, "encrypted_content": None, "status": status}

    def beginning(self) -> Iterator[Data]:
        part = {"type": "summary_text", "text": ""}
        yield self._event("reasoning_summary_part.added", summary_index=0, part=part)

    def more(self, text: str) -> Iterator[Data]:
        self._pieces.append(text)
        yield self._event("reasoning_summary_text.delta", summary_index=0, delta=text)

    def ending(self) -> Iterator[Data]:
        yield self._event("reasoning_summary_text.done", summary_index=0, text=self._text)
        yield self._event("reasoning_summary_part.done", summary_index=0, part=self._part())

    def _part(self) -> Data:
        return {"type": "summary_text", "text": self._text}


class _Message(_Item):
    prefix = "msg_"

    def __init__(self, logprobs: ContentLogprobs | None) -> None:
        super().__init__()
        self._source = logprobs
        self._logprobs: list[Data] = []

    def item(self, status: str) -> Data:
        content = [] if status == "in_progress" else [self._part()]
        return {"id": self._id, "type": "message", "role": "assistant", "content": content, "status": status}

    def beginning(self) -> Iterator[Data]:
        yield self._event("content_part.added", content_index=0, part=self._part())

    def more(self, text: str) -> Iterator[Data]:
        self._pieces.append(text)
        logprobs = self._source.of(text)["content"] if self._source else []
        self._logprobs += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def ending(self) -> Iterator[Data]:
        logprobs = list(self._logprobs)
        yield self._event("output_text.done", content_index=0, text=self._text, logprobs=logprobs)
        yield self._event("content_part.done", content_index=0, part=self._part())

    def _part(self) -> Data:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": list(self._logprobs)}


class _FunctionCall(_Item):
    prefix = "fc_"

    def __init__(self, call_id: str, names: Data) -> None:
        super().__init__()
        self._call_id, self._names = call_id, names

    def item(self, status: str) -> Data:
        call = {"id": self._id, "type": "function_call", "call_id": self._call_id, **self._names}
        return {**call, "arguments": self._text, "status": status}

    def more(self, text: str) -> Iterator[Data]:
        self._pieces.append(text)
        yield self._event("function_call_arguments.delta", delta=text)

    def ending(self) -> Iterator[Data]:
        yield self._event("function_call_arguments.done", name=self._names["name"], arguments=self._text)


class _CustomCall(_Item):
    prefix = "ctc_"

    def __init__(self, call_id: str, names: Data) -> None:
        super().__init__()
        self._call_id, self._names = call_id, names
        self._input = CustomInput()

    def item(self, status: str) -> Data:
        call = {"id": self._id, "type": "custom_tool_call", "call_id": self._call_id, **self._names}
        return {**call, "input": self._text, "status": status}

    def more(self, text: str) -> Iterator[Data]:
        yield from self._delta(self._input.push(text))

    def ending(self) -> Iterator[Data]:
        yield from self._delta(self._input.finish())
        yield self._event("custom_tool_call_input.done", input=self._text)

    def _delta(self, text: str) -> Iterator[Data]:
        if text:
            self._pieces.append(text)
            yield self._event("custom_tool_call_input.delta", delta=text)
