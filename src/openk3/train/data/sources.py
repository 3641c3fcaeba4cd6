"""Text and dialogues to token shards, made once and kept beside the run.

Unusual: in a dialogue only what the assistant says is trained; in plain text everything is, and the end of the text
too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from openk3.chat.render import render_dialogue
from openk3.errors import OpenK3Error, TrainingError
from openk3.protocol.messages import Message, Role, ToolCall
from openk3.tokenizer.bpe import Tokenizer
from openk3.train.config import SourceConfig
from openk3.train.data.shards import Document, TokenShard, is_shard, write_shard

# Two vocabularies of the same size hardly ever cut this alike.
_PROBE = "The quick brown fox jumps over the lazy dog, etc. It is 12,345.67 metres; naïve café, 你好."


def open_shard(
    source: SourceConfig, cache: Path, tokenizer: Tokenizer | None, report: Callable[[str], None]
) -> TokenShard:
    """Return the token shard of ``source``, tokenising it into ``cache`` unless that was done before.

    Raises:
        TrainingError: the file is missing or malformed, or text is given without a tokenizer.
    """
    if source.format == "tokens":
        return TokenShard(source.path)
    if tokenizer is None:
        raise TrainingError(
            f"source {source.name!r} is {source.format}, but data.tokenizer is not set",
            hint="name a folder or file with a tiktoken vocabulary",
        )
    origin = _origin(source, tokenizer)
    folder = cache / source.name
    if is_shard(folder, origin):
        return TokenShard(folder)
    report(f"tokenising {source.path}")
    documents = _text_documents(source.path, tokenizer) if source.format == "text" else _lines(source.path, tokenizer)
    return write_shard(folder, documents, vocab_size=tokenizer.vocab_size, source=origin)


def _origin(source: SourceConfig, tokenizer: Tokenizer) -> str:
    """Identify file and vocabulary, so that a changed one is tokenised anew."""
    digest = hashlib.sha256()
    try:
        with source.path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise TrainingError(
            f"{source.path}: cannot be read: {error.strerror}", hint=f"source {source.name!r}"
        ) from None
    digest.update(repr(tokenizer.encode(_PROBE)).encode())
    return f"{source.path.name}, {tokenizer.vocab_size} ids, sha256 {digest.hexdigest()}"


def _text_documents(file: Path, tokenizer: Tokenizer) -> Iterator[Document]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TrainingError(f"{file}: not UTF-8 text: {error}") from None
    yield text_document(text, tokenizer)


def text_document(text: str, tokenizer: Tokenizer) -> Document:
    """Return ``text`` and the end-of-text token, all trained."""
    ids = np.array([*tokenizer.encode(text), tokenizer.special.eos])
    return Document(ids, np.ones(len(ids), dtype=np.bool_))


def _lines(file: Path, tokenizer: Tokenizer) -> Iterator[Document]:
    """Yield a document per line: ``{"text": …}``, or ``{"messages": […], "tools": […], "effort": …}``."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                yield _document(_object(line), tokenizer)
            except (ValueError, RecursionError) as error:
                raise TrainingError(f"{file}:{number}: not JSON: {error}") from None
            except OpenK3Error as error:
                raise TrainingError(f"{file}:{number}: {error.message}", hint=error.hint) from None


def _object(line: bytes) -> Mapping[str, Any]:
    raw = json.loads(line.decode("utf-8"))
    if not isinstance(raw, dict):
        raise TrainingError(f"is {raw!r:.60}, expected an object with text or messages")
    return raw


def _document(raw: Mapping[str, Any], tokenizer: Tokenizer) -> Document:
    if isinstance(raw.get("text"), str):
        return text_document(raw["text"], tokenizer)
    if isinstance(raw.get("messages"), list):
        return dialogue_document(raw, tokenizer)
    raise TrainingError(f'neither "text" nor "messages" in {str(raw)[:80]!r}')


def dialogue_document(raw: Mapping[str, Any], tokenizer: Tokenizer) -> Document:
    """Render a dialogue; ``effort`` null means without thinking channel."""
    effort, tools = raw.get("effort"), raw.get("tools") or ()
    if not isinstance(tools, (list, tuple)):
        raise TrainingError(f"tools is {tools!r:.60}, expected a list of declarations")
    messages = [message_from_dict(message) for message in raw["messages"]]
    ids, trained = render_dialogue(
        messages, tokenizer=tokenizer, tools=tools, thinking=effort is not None, effort=effort
    )
    return Document(np.array(ids), np.array(trained, dtype=np.bool_))


def message_from_dict(raw: Mapping[str, Any]) -> Message:
    """Read a message in the widespread form (``role``, ``content``, ``reasoning``, ``tool_calls`` …).

    Raises:
        TrainingError: it has another form; what its fields hold is judged when it is rendered.
    """
    if not isinstance(raw, Mapping):
        raise TrainingError(f"a message is {raw!r:.60}, expected an object with role and content")
    try:
        calls = tuple(
            ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in raw.get("tool_calls") or ()
        )
    except (KeyError, TypeError):
        raise TrainingError(
            f"tool_calls is {raw['tool_calls']!r:.120}, expected a list of objects with id, function.name and "
            "function.arguments"
        ) from None
    return Message(
        role=cast(Role, raw.get("role")),  # judged when rendered, as all else
        content=raw.get("content"),
        reasoning=raw.get("reasoning"),
        tool_calls=calls,
        tool_call_id=raw.get("tool_call_id"),
        tool=raw.get("tool"),
    )
