"""What a ``config.json`` may say, and that everything else is refused by field and value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from openk3.errors import ConfigError
from openk3.model.presets import preset
from openk3.model.published import config_from_dict, config_to_dict
from openk3.model.quantization_config import quantization_dict

QUANT = "text_config.quantization_config."
WEIGHTS = QUANT + "config_groups.group_0.weights."


def changed(path: str, value: Any) -> dict[str, Any]:
    """The configuration of mini4 with another value at ``path``."""
    raw = config_to_dict(preset("mini4"))
    *parents, last = path.split(".")
    part = raw
    for name in parents:
        part = part[name]
    part[last] = value
    return raw


def test_what_is_written_is_read() -> None:
    for name in ("mini4", "k3"):
        assert config_from_dict(config_to_dict(preset(name))) == preset(name)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (WEIGHTS + "symmetric", False),
        (WEIGHTS + "symmetric", 1),
        (WEIGHTS + "strategy", "channel"),
        (WEIGHTS + "dynamic", True),
        (WEIGHTS + "actorder", "group"),
        (WEIGHTS + "block_structure", [128, 128]),
        (WEIGHTS + "zp_dtype", "torch.int8"),
        (WEIGHTS + "scale_dtype", "torch.float8_e4m3fn"),
        (WEIGHTS + "num_bits", 8),
        (WEIGHTS + "type", "int"),
        (WEIGHTS + "group_size", 16),
        (QUANT + "config_groups.group_0.format", "nvfp4-pack-quantized"),
        (QUANT + "config_groups.group_0.input_activations", {"num_bits": 8}),
        (QUANT + "format", "nvfp4-pack-quantized"),
        (QUANT + "quantization_status", "frozen"),
        (QUANT + "quant_method", "gptq"),
        ("dtype", "float16"),
        ("torch_dtype", "float32"),
        ("text_config.dtype", "float32"),
        ("text_config.torch_dtype", "float16"),
        ("architectures", ["KimiLinearForCausalLM"]),
        ("text_config.architectures", ["DeepseekV3ForCausalLM"]),
    ],
)
def test_other_values_are_refused(path: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{path} is {value!r}, but only")):
        config_from_dict(changed(path, value))


@pytest.mark.parametrize(
    "path", [QUANT + "sparsity", QUANT + "config_groups.group_0.target", WEIGHTS + "zero_point", "text_config.arch"]
)
def test_unknown_keys_are_refused_at_every_level(path: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{path}: unknown key (value 'x')")):
        config_from_dict(changed(path, "x"))


@pytest.mark.parametrize("count", [0, 2])
def test_there_is_exactly_one_group(count: int) -> None:
    group = quantization_dict()["config_groups"]["group_0"]
    groups = {f"group_{number}": group for number in range(count)}
    with pytest.raises(ConfigError, match=re.escape(f"{QUANT}config_groups has the groups {sorted(groups)!r}")):
        config_from_dict(changed(QUANT + "config_groups", groups))


def test_what_would_have_another_default_has_to_be_said() -> None:
    for path in (QUANT + "config_groups", WEIGHTS + "num_bits", QUANT + "config_groups.group_0.weights"):
        raw = changed(path, None)
        *parents, last = path.split(".")
        part = raw
        for name in parents:
            part = part[name]
        del part[last]
        with pytest.raises(ConfigError, match=re.escape(f"{path} is missing")):
            config_from_dict(raw)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (QUANT + "ignore", []),
        (QUANT + "config_groups.group_0.targets", ["re:.*experts.*"]),
        (WEIGHTS + "observer", "mse"),
        (WEIGHTS + "observer_kwargs", {"averaging_constant": 0.01}),
    ],
)
def test_what_does_not_change_the_stored_values_is_free(path: str, value: Any) -> None:
    assert config_from_dict(changed(path, value)) == preset("mini4")


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_token_ids_stand_in_two_places_that_may_not_differ(key: str) -> None:
    expected = getattr(preset("mini4"), key)
    with pytest.raises(ConfigError, match=f"^{key} is {expected}, but text_config.{key} is 7"):
        config_from_dict(changed(f"text_config.{key}", 7))
    for path in (key, f"text_config.{key}"):
        assert getattr(config_from_dict(changed(path, None)), key) == expected
