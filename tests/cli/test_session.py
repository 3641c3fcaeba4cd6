"""From a conversation to deltas and back into the conversation, with a model that says what the test wants."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openk3.cli.session import Answer, Conversation, continue_text, load
from openk3.errors import CapacityError, OpenK3Error
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
    reply = Conversation(script.loaded, GREEDY).ask("Hi")
    assert texts(reply) == ("Hm, é.", "Hello!")
    assert reply.turn == AssistantTurn("Hm, é.", "Hello!", (), "stop")
    # Not counted of the prompt: the tag that opens the channel. Generated: 13 bytes of text, 36 of tags, the end.
    assert reply.usage == Usage(len(script.model.prompts[0]) - 3, 50)


def test_without_thinking_all_is_answer(scripted: Callable[..., Script]) -> None:
    script = scripted("Hello!<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>")
    assert texts(Conversation(script.loaded, GREEDY, thinking=False).ask("Hi")) == ("", "Hello!")
    assert script.prompts[0].endswith("<|open|>response<|sep|>")


def test_a_conversation_remembers_what_it_keeps(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("One thought", "One answer"), answer("", "Two"), answer("", "Three"))
    talk = Conversation(script.loaded, GREEDY, system="Be brief.", effort="low")
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
    talk = Conversation(script.loaded, GREEDY, effort="low")
    list(talk.ask("x"))
    talk.effort = "high"
    list(talk.ask("x"))
    assert ["thinking_effort=low" in prompt for prompt in script.prompts] == [True, False]
    assert ["thinking_effort=high" in prompt for prompt in script.prompts] == [False, True]


def test_a_cancelled_answer_is_what_was_shown(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("Thinking", "A long answer"))
    talk = Conversation(script.loaded, GREEDY)
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
    talk = Conversation(script.loaded, GREEDY)
    reply = talk.ask("Hi")
    for _ in reply:
        reply.cancel()
    assert reply.turn == AssistantTurn("T", None, (), None)
    talk.keep("Hi", reply.turn)
    list(talk.ask("Go on"))
    assert "Hi" in script.prompts[1]


def test_an_answer_that_never_began_is_not_kept(scripted: Callable[..., Script]) -> None:
    talk = Conversation(scripted("").loaded, GREEDY)
    reply = talk.ask("Hi")
    talk.keep("Hi", reply.turn)
    assert talk.messages == ()


def test_stop_strings_end_the_answer_but_not_the_thinking(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("a STOP b", "one ST two STOP three"))
    reply = Conversation(script.loaded, replace(GREEDY, stop=("STOP",))).ask("Hi")
    assert texts(reply) == ("a STOP b", "one ST two ")
    assert reply.turn.finish_reason == "stop"


def test_what_might_have_been_a_stop_string_is_shown_in_the_end(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("", "one ST"))
    assert texts(Conversation(script.loaded, replace(GREEDY, stop=("STOP",))).ask("Hi")) == ("", "one ST")


def test_the_token_limit_ends_an_answer_wherever_it_is(scripted: Callable[..., Script]) -> None:
    script = scripted(answer("Thinking", "Hello"))
    reply = Conversation(script.loaded, replace(GREEDY, max_tokens=5)).ask("Hi")
    assert texts(reply) == ("Think", "")
    assert reply.turn == AssistantTurn("Think", None, (), "length")
    assert reply.usage.completion_tokens == 5


def test_plain_text_is_continued_as_it_stands(scripted: Callable[..., Script]) -> None:
    script = scripted(" upon a timé<|end_of_msg|>")
    reply = continue_text(script.loaded, "Once", GREEDY)
    assert texts(reply) == ("", " upon a timé")
    assert script.prompts == ["Once"]
    assert reply.turn.finish_reason == "stop"


def test_plain_text_ends_with_the_training_text(scripted: Callable[..., Script]) -> None:
    reply = continue_text(scripted(" upon a time[EOS]Another text").loaded, "Once", GREEDY)
    assert texts(reply) == ("", " upon a time")
    assert reply.turn.finish_reason == "stop"
    assert reply.usage.completion_tokens == len(" upon a time") + 1


def test_plain_text_does_not_show_a_stop_token(scripted: Callable[..., Script]) -> None:
    script = scripted(" upon a time<|sep|>")
    sep = script.loaded.tokenizer.special.sep
    reply = continue_text(script.loaded, "Once", replace(GREEDY, stop_token_ids=(sep,)))
    assert texts(reply) == ("", " upon a time")


def test_plain_text_cut_inside_a_character_says_so(scripted: Callable[..., Script]) -> None:
    reply = continue_text(scripted("aé").loaded, "Once", replace(GREEDY, max_tokens=2))
    assert texts(reply) == ("", "a\N{REPLACEMENT CHARACTER}")


def test_a_conversation_longer_than_the_context_is_refused(scripted: Callable[..., Script]) -> None:
    script = scripted("")
    object.__setattr__(script.model.config, "max_position_embeddings", 30)
    with pytest.raises(CapacityError, match="expected fewer than the model's context of 30"):
        Conversation(script.loaded, GREEDY).ask("A question that is a little long")


def test_loading_says_what_was_loaded(tiny_model: Path) -> None:
    loaded = load(str(tiny_model), "float32")
    assert loaded.about.startswith(f"{tiny_model}: ")
    assert loaded.about.endswith("parameters, float32 on cpu, 1 thread")
    assert loaded.generator.stop_token_ids == {loaded.tokenizer.special.end_of_msg}


def test_the_end_that_the_configuration_names_ends_an_answer(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "tokenizer_config.json").unlink()
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del raw["eos_token_id"]
    raw["text_config"]["eos_token_id"] = 400
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    assert load(str(folder), "float32").generator.stop_token_ids == {400}


def test_a_model_without_a_vocabulary_is_an_error_that_says_so(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    with pytest.raises(OpenK3Error, match=r"tiktoken\.model: no such file") as raised:
        load(str(tmp_path), "float32")
    assert "copy the tiktoken.model" in str(raised.value.hint)
