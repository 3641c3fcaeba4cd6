"""Texts that are continued as they stand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.completions import Completions
from tests.server.openai.conftest import Dialect

END = "[EOS]"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "kimi-k3", "prompt": "Once", "max_tokens": 100, **fields}


def test_a_text_is_continued(completions: Dialect) -> None:
    answer = completions.whole(body(), f" upon{END}")
    assert re.fullmatch(r"cmpl-[0-9a-f]{24}", answer.pop("id"))
    assert type(answer.pop("created")) is int
    assert answer == {
        "object": "text_completion",
        "model": "kimi-k3",
        "choices": [{"index": 0, "text": " upon", "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 6,
            "total_tokens": 10,
            "cached_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


@pytest.mark.parametrize("prompt", ["Once", ["Once"], [79, 110, 99, 101], [[79, 110, 99, 101]]])
def test_a_prompt_is_a_text_or_ids_or_a_list_of_one(completions: Dialect, model: ServedModel, prompt: Any) -> None:
    asked = completions.endpoint.read(body(prompt=prompt), model)
    ids = model.tokenizer.encode(asked.prompt) if isinstance(asked.prompt, str) else asked.prompt
    assert list(ids or ()) == [79, 110, 99, 101]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": None},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""]},
        {"prompt": [[]]},
        {"prompt": 5},
        {"prompt": {}},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": [-1]},
        {"prompt": [1 << 40]},
        {"prompt": [1.5]},
        {"prompt": [1, "a"]},
        {"prompt": [True]},
        {"echo": True},
        {"best_of": 2},
        {"n": 2},
        {"suffix": "x"},
        {"logprobs": True},
        {"logprobs": 21},
        {"max_tokens": 0},
        {"max_tokens": (1 << 20) + 1},
        {"temperature": 1.1},
        {"top_p": 0.8},
        {"stop": "x" * 33},
    ],
)
def test_other_bodies_are_refused_by_name(completions: Dialect, model: ServedModel, fields: dict[str, Any]) -> None:
    with pytest.raises(Fault) as caught:
        completions.endpoint.read(body(**fields), model)
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(next(iter(fields)))


def test_harmless_variants_are_accepted(completions: Dialect, model: ServedModel) -> None:
    plain = completions.endpoint.read(body(), model)
    assert completions.endpoint.read(body(echo=False, best_of=1, n=1, suffix=None, user="me"), model) == plain


def test_without_a_limit_a_text_is_short(completions: Dialect, model: ServedModel) -> None:
    asked = completions.endpoint.read(body(max_tokens=None), model)
    assert asked.params is not None
    assert (asked.params.max_tokens, asked.explicit_max_tokens) == (16, None)


def test_frames_add_up_to_the_text(completions: Dialect) -> None:
    frames = completions.frames(body(stop="end", stream_options={"include_usage": True}), "é中 the end")
    *texts, end, summary = frames
    assert len({(frame["id"], frame["object"], frame["created"]) for frame in frames}) == 1
    assert "".join(frame["choices"][0]["text"] for frame in texts) == "é中 the "
    assert not any(frame["choices"][0]["finish_reason"] for frame in texts)
    (last,) = end["choices"]
    assert (last["text"], last["finish_reason"]) == ("", "stop")
    assert summary["choices"] == []
    assert summary["usage"] == last["usage"]
    assert not any("usage" in frame for frame in (*texts, end))


def test_continuous_usage_is_on_every_frame(completions: Dialect) -> None:
    frames = completions.frames(body(max_tokens=3, stream_options={"continuous_usage_stats": True}), "abcd")
    assert [frame["usage"]["completion_tokens"] for frame in frames] == [1, 2, 3, 3]


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_stand_in_lists_side_by_side(completions: Dialect, stream: bool) -> None:
    asked, said = body(logprobs=2, stop="end"), "aéb end"
    if stream:
        choices = [choice for frame in completions.frames(asked, said) for choice in frame["choices"][:1]]
        parts = [choice["logprobs"] for choice in choices if "logprobs" in choice]
        logprobs = {name: [one for part in parts for one in part[name]] for name in parts[0]}
    else:
        logprobs = completions.whole(asked, said)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "b", " "]
    assert logprobs["token_logprobs"] == [-0.25] * 5
    assert logprobs["top_logprobs"][0] == {"a": -0.25, "b": -0.5}
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3]


def test_the_end_of_a_text_is_no_token_of_it(completions: Dialect) -> None:
    (choice,) = completions.whole(body(logprobs=0), "ab<|end_of_msg|>")["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert choice["logprobs"]["top_logprobs"] == [{}, {}]


def test_paths() -> None:
    assert Completions.paths == ("/v1/completions",)
