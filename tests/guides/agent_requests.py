"""Requests of the form that coding agents send, as their public documentation and captured traffic show it.

Unusual: what they say is short, as the bundled model has room for 8 thousand tokens and an agent's own prompt does not
fit; which fields there are, and which kinds of blocks, tools and schemas, is theirs.
"""

from __future__ import annotations

from typing import Any

CLAUDE_CODE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate, br, zstd",
    "user-agent": "claude-cli/2.1.304 (external, cli)",
    "x-app": "cli",
    "x-stainless-helper-method": "stream",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
CODEX_HEADERS = {
    "accept": "text/event-stream",
    "originator": "codex_cli_rs",
    "session_id": "019b2f4e-ad1c-7aa2-8a63-7a0f3f3c6a01",
    "user-agent": "codex_cli_rs/0.162.1 (Debian 13; x86_64)",
    "x-codex-turn-metadata": '{"turn_id":"1"}',
}
_EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
_TEXT = {"type": "string"}
_WHOLE = {"type": "integer", "minimum": 0}


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_TODO = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "minLength": 1},
        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
        "activeForm": {"type": "string", "minLength": 1},
    },
    "required": ["content", "status", "activeForm"],
    "additionalProperties": False,
}
_OPTION = {
    "type": "object",
    "properties": {"label": {**_TEXT, "description": "1 to 5 words"}, "description": _TEXT},
    "required": ["label", "description"],
    "additionalProperties": False,
}
_QUESTION = {
    "type": "object",
    "properties": {
        "question": _TEXT,
        "options": {"type": "array", "items": _OPTION, "minItems": 2, "maxItems": 4},
        "multiSelect": {"type": "boolean", "default": False},
    },
    "required": ["question", "options", "multiSelect"],
    "additionalProperties": False,
}
# Names and shapes as they are: properties that begin with a dash, defaults, formats, open objects, unions.
_SCHEMAS = {
    "Bash": _schema(
        ["command"],
        command=_TEXT,
        timeout={"type": "number", "description": "At most 600000 milliseconds"},
        run_in_background={"type": "boolean"},
    ),
    "Read": _schema(
        ["file_path"], file_path=_TEXT, offset={"type": "integer", "minimum": 0}, limit={"type": "integer"}
    ),
    "Edit": _schema(
        ["file_path", "old_string", "new_string"],
        file_path=_TEXT,
        old_string=_TEXT,
        new_string=_TEXT,
        replace_all={"type": "boolean", "default": False},
    ),
    "Grep": _schema(
        ["pattern"],
        **{"-A": {"type": "number"}, "-i": {"type": "boolean"}},
        pattern=_TEXT,
        output_mode={"type": "string", "enum": ["content", "files_with_matches", "count"]},
    ),
    "TodoWrite": _schema(["todos"], todos={"type": "array", "items": _TODO}),
    "WebFetch": _schema(["url", "prompt"], url={"type": "string", "format": "uri"}, prompt=_TEXT),
    "AskUserQuestion": _schema(
        ["questions"],
        questions={"type": "array", "items": _QUESTION, "minItems": 1, "maxItems": 4},
        answers={"type": "object", "additionalProperties": _TEXT},
    ),
    "ExitPlanMode": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": {},
    },
    "mcp__tracker__search": {
        "type": "object",
        "properties": {
            "query": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Query"},
            "limit": {"type": ["integer", "null"]},
        },
    },
}


def claude_code(model: str, count: int = 0, **more: Any) -> dict[str, Any]:
    """A turn of Claude Code's main loop, its ``count``-th request."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.304.{count:03x}; cc_entrypoint=cli; cch={count:05x};"
    system = [
        {"type": "text", "text": billing},
        {"type": "text", "text": "You are Claude Code, Anthropic's official CLI.", "cache_control": _EPHEMERAL},
        {"type": "text", "text": "Help with software.\n\n# Tone\n - Be short.\n" * 8, "cache_control": _EPHEMERAL},
    ]
    reminder = "<system-reminder>\nAs you answer, you can use this context:\n# currentDate\ntoday\n</system-reminder>"
    question = [
        {"type": "text", "text": reminder},
        {"type": "text", "text": "What is in README.md?", "cache_control": _EPHEMERAL},
    ]
    tools = [
        {"name": name, "description": f"Does what {name} does.", "input_schema": schema}
        for name, schema in _SCHEMAS.items()
    ]
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "system": system,
        "tools": tools,
        "metadata": {"user_id": '{"device_id":"19f2","account_uuid":"","session_id":"34832e57"}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
        **more,
    }


CLAUDE_CODE_STEP: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I read the file.", "signature": "EqQBCkYIBxgCKkD+/w=="},
            {"type": "text", "text": "I look at it."},
            {"type": "tool_use", "id": "toolu_01A", "name": "Read", "input": {"file_path": "README.md"}, "caller": {}},
            {"type": "tool_use", "id": "toolu_01B", "name": "Bash", "input": {"command": "ls"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_01A", "content": [{"type": "text", "text": "1\t# Title"}]},
            {"type": "tool_result", "tool_use_id": "toolu_01B", "content": "no such file", "is_error": True},
            {"type": "text", "text": "<system-reminder>Be careful.</system-reminder>", "cache_control": _EPHEMERAL},
        ],
    },
]

_PATCH_GRAMMAR = """start: begin section+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
section: added | changed
added: "*** Add File: " name LF ("+" /(.*)/ LF)+
changed: "*** Update File: " name LF (("@@" | "@@ " /(.+)/) LF | ("+" | "-" | " ") /(.*)/ LF)+
name: /(.+)/
%import common.LF
"""


def codex(model: str, **more: Any) -> dict[str, Any]:
    """A turn of Codex."""

    def message(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    def function(name: str, required: list[str], **properties: Any) -> dict[str, Any]:
        schema = {key: value for key, value in _schema(required, **properties).items() if key != "$schema"}
        return {"type": "function", "name": name, "description": "…", "strict": False, "parameters": schema}

    step = {"type": "object", "properties": {"step": _TEXT, "status": _TEXT}, "required": ["step", "status"]}
    patch = {"type": "grammar", "syntax": "lark", "definition": _PATCH_GRAMMAR}
    tracker = [function("search", ["query"], query=_TEXT)]
    return {
        "model": model,
        "instructions": "You are a coding agent.\n\n# Rules\n- Be short.\n" * 8,
        "input": [
            message("developer", "<permissions instructions>Ask first.</permissions instructions>"),
            message("user", "<environment_context>\n  <cwd>/src</cwd>\n</environment_context>"),
            message("user", "What is in README.md?"),
        ],
        "tools": [
            function("exec_command", ["cmd"], cmd=_TEXT, yield_time_ms={"type": "number"}, login={"type": "boolean"}),
            function("update_plan", ["plan"], explanation=_TEXT, plan={"type": "array", "items": step}),
            {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": patch},
            {"type": "namespace", "name": "mcp__tracker__", "description": "Issues.", "tools": tracker},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "high", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019b2f4e-ad1c-7aa2-8a63-7a0f3f3c6a01",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "0b1c"},
        **more,
    }


CODEX_STEP: list[dict[str, Any]] = [
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I read the file."}],
        "content": None,
        "encrypted_content": None,
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look at it."}],
        "phase": "commentary",
    },
    {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"cat README.md"}', "call_id": "call_1"},
    {"type": "function_call_output", "call_id": "call_1", "output": "Process exited with code 0\n# Title"},
    {
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_2",
        "name": "apply_patch",
        "input": "*** Begin Patch\n*** Add File: a\n+b\n*** End Patch",
    },
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Success."},
    {
        "type": "function_call",
        "name": "search",
        "namespace": "mcp__tracker__",
        "arguments": '{"query":"x"}',
        "call_id": "call_3",
    },
    {"type": "function_call_output", "call_id": "call_3", "output": [{"type": "input_text", "text": "nothing"}]},
]


def opencode(model: str, **more: Any) -> dict[str, Any]:
    """A turn of OpenCode, after a first step; what it sends goes through the AI SDK."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"filePath":"README.md"}'}}
    schema = _schema(["filePath"], filePath={**_TEXT, "description": "The path"}, limit={"type": "number"})
    return {
        "model": model,
        "max_tokens": 4000,
        "messages": [
            {"role": "system", "content": "You are OpenCode.\n\n# Rules\n- Be short.\n" * 8},
            {"role": "user", "content": [{"type": "text", "text": "What is in README.md?"}]},
            {"role": "assistant", "content": "", "reasoning_content": "I read it.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "<file>\n00001| # Title\n</file>"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "read", "description": "Read a file.", "parameters": schema}},
            {"type": "function", "function": {"name": "list", "description": "List.", "parameters": _schema([])}},
        ],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
