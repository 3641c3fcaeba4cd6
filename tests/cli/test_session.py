"""From a conversation to deltas and back into the conversation, with a model that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from openk3.cli.flags import EngineFlags
from openk3.cli.session import Conversation, engine_config, load
from openk3.engine.config import EngineConfig
from openk3.llm.answer import Answer
from openk3.protocol.messages import AssistantTurn, ContentDelta, ReasoningDelta
from openk3.protocol.sampling import SamplingParams, Usage
from tests.cli.scripted import Script, answer

GREEDY = SamplingParams(temperature=0.0)


def texts(reply: Answer) -> tuple[str, str]:
    deltas = list(reply)
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    return thought, "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def test_thinking_and_answer_come_apart(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("Hm, é.", "Hello!"))
    reply = Conversation(script.llm, GREEDY).ask("Hi")
    assert texts(reply) == ("Hm, é.", "Hello!")
    assert reply.turn == AssistantTurn("Hm, é.", "Hello!", (), "stop")
    # Not counted of the prompt: the tag that opens the channel. Generated: 13 bytes of text, 36 of tags, the end.
    assert reply.usage == Usage(script.num_prompt_tokens, 50, 16, 7)


def test_without_thinking_all_is_answer(scripted: Callable[..., Script]) -> None:
    script = scripted("Hello!<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>")
    assert texts(Conversation(script.llm, GREEDY, thinking=False).ask("Hi")) == ("", "Hello!")
    assert script.prompts[0].endswith("<|open|>response<|sep|>")


def test_a_conversation_remembers_what_it_keeps(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("One thought", "One answer"), answer("", "Two"), answer("", "Three"))
    talk = Conversation(script.llm, GREEDY, system="Be brief.", effort="low")
    for question in ("First?", "Second?"):
        reply = talk.ask(question)
        list(reply)
        talk.keep(question, reply.turn)
    assert [message.role for message in talk.messages] == ["system", "user", "assistant", "user", "assistant"]
    for part in ("Be brief.", "First?", "One thought", "One answer", "Second?"):
        assert part in script.prompts[1]
    talk.reset()
    list(talk.ask("Third?"))
    assert "Be brief." in script.prompts[2]
    assert "First?" not in script.prompts[2]


def test_effort_may_change_between_turns(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("", "a"), answer("", "b"))
    talk = Conversation(script.llm, GREEDY, effort="low")
    list(talk.ask("x"))
    talk.effort = "high"
    list(talk.ask("x"))
    assert ["thinking_effort=low" in prompt for prompt in script.prompts] == [True, False]
    assert ["thinking_effort=high" in prompt for prompt in script.prompts] == [False, True]


def test_a_cancelled_answer_is_what_was_shown(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("Thinking", "A long answer"))
    talk = Conversation(script.llm, GREEDY)
    reply = talk.ask("Hi")
    shown = ""
    for delta in reply:
        if isinstance(delta, ContentDelta):
            shown += delta.text
        if shown.endswith("A long"):
            reply.cancel()
    assert reply.turn == AssistantTurn("Thinking", "A long", (), None)
    talk.keep("Hi", reply.turn)
    assert talk.messages[-1].content == "A long"


def test_an_answer_cancelled_while_thinking_keeps_the_thoughts(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("Thinking", "never"), answer("", "b"))
    talk = Conversation(script.llm, GREEDY)
    reply = talk.ask("Hi")
    for _ in reply:
        reply.cancel()
    assert reply.turn == AssistantTurn("T", None, (), None)
    talk.keep("Hi", reply.turn)
    list(talk.ask("Go on"))
    assert "Hi" in script.prompts[1]


def test_an_answer_that_never_began_is_not_kept(scripted: Callable[..., Script]) -> None:
    talk = Conversation(scripted("").llm, GREEDY)
    reply = talk.ask("Hi")
    talk.keep("Hi", reply.turn)
    assert talk.messages == ()


def test_stop_strings_end_the_answer_but_not_the_thinking(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("a STOP b", "one ST two STOP three"))
    reply = Conversation(script.llm, replace(GREEDY, stop=("STOP",))).ask("Hi")
    assert texts(reply) == ("a STOP b", "one ST two ")
    assert reply.turn.finish_reason == "stop"


def test_what_might_have_been_a_stop_string_is_shown_in_the_end(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("", "one ST"))
    assert texts(Conversation(script.llm, replace(GREEDY, stop=("STOP",))).ask("Hi")) == ("", "one ST")


def test_the_token_limit_ends_an_answer_wherever_it_is(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("Thinking", "Hello"))
    reply = Conversation(script.llm, replace(GREEDY, max_tokens=5)).ask("Hi")
    assert texts(reply) == ("Think", "")
    assert reply.turn == AssistantTurn("Think", None, (), "length")
    assert reply.usage.completion_tokens == 5


def test_plain_text_is_continued_as_it_stands(scripted: Callable[..., Script]) -> None:
    script = scripted(" upon a timé<|end_of_msg|>")
    reply = script.llm.stream_text("Once", GREEDY)
    assert texts(reply) == ("", " upon a timé")
    assert script.prompts == ["Once"]
    assert reply.turn.finish_reason == "stop"


def test_plain_text_ends_with_the_training_text(scripted: Callable[..., Script]) -> None:
    reply = scripted(" upon a time[EOS]Another text").llm.stream_text("Once", GREEDY)
    assert texts(reply) == ("", " upon a time")
    assert reply.turn.finish_reason == "stop"
    assert reply.usage.completion_tokens == len(" upon a time") + 1


def test_plain_text_does_not_show_a_stop_token(scripted: Callable[..., Script]) -> None:
    script = scripted(" upon a time<|sep|>")
    sep = script.tokenizer.special.sep
    reply = script.llm.stream_text("Once", replace(GREEDY, stop_token_ids=(sep,)))
    assert texts(reply) == ("", " upon a time")


def test_plain_text_cut_inside_a_character_ends_before_it(scripted: Callable[..., Script]) -> None:
    reply = scripted("aé").llm.stream_text("Once", replace(GREEDY, max_tokens=2))
    assert texts(reply) == ("", "a")


def test_loading_says_what_was_loaded(tiny_model: Path) -> None:
    with load(str(tiny_model), "float32", EngineFlags(memory="1GB")) as llm:
        assert llm.about.startswith(f"{tiny_model}: ")
        assert llm.about.endswith("parameters, float32 on cpu, 1 thread")


def test_engine_flags_become_its_settings(tmp_path: Path) -> None:
    given = EngineFlags(memory="2GB", speculate="ngram", cache_dir=tmp_path, deterministic=True)
    config = EngineConfig(memory_bytes=2 * 10**9, speculate="ngram", cache_folder=tmp_path, deterministic=True)
    assert engine_config(given) == config
    assert engine_config(EngineFlags()) == EngineConfig()
    assert engine_config(EngineFlags(draft_model="nano")).speculate == "draft"
