"""Reading generation_config.json: absent, complete, and each way to be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openk3.errors import ConfigError
from openk3.model.generation_config import RECOMMENDED, GenerationConfig, load_generation_config
from openk3.protocol.sampling import SamplingParams


def write(folder: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    return folder


def test_absent_means_the_published_recommendation(tmp_path: Path) -> None:
    assert load_generation_config(tmp_path) == GenerationConfig(sampling=RECOMMENDED)


def test_all_settings(tmp_path: Path) -> None:
    raw = {"temperature": 1, "top_p": 0.5, "top_k": 7, "max_new_tokens": 9, "eos_token_id": [3, 4], "do_sample": True}
    config = load_generation_config(write(tmp_path, raw | {"transformers_version": "5.0.0", "bos_token_id": 1}))
    expected = SamplingParams(temperature=1.0, top_p=0.5, top_k=7, max_tokens=9)
    assert config == GenerationConfig(sampling=expected, eos_token_ids=(3, 4))


def test_without_sampling_it_is_greedy(tmp_path: Path) -> None:
    config = load_generation_config(write(tmp_path, {"do_sample": False, "temperature": 0.7, "eos_token_id": 5}))
    assert config.sampling.temperature == 0.0
    assert config.eos_token_ids == (5,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ([], "expected an object"),
        ({"temperature": -1}, "temperature is -1.0"),
        ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
        ({"top_k": 1.5}, r"top_k is 1\.5, expected a whole number"),
        ({"top_k": True}, "top_k is True, expected a whole number"),
        ({"do_sample": 1}, "do_sample is 1, expected true or false"),
        ({"eos_token_id": ["a"]}, "eos_token_id is"),
        ({"top_q": 1}, "top_q is not a known setting\nhint: did you mean top_p"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)generation_config.json: .*{message}"):
        load_generation_config(write(tmp_path, content))
