"""`openk3 verify --golden`: right models pass, wrong ones fail by the tensor that shows it, odd records are handled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openk3.checkpoint.golden import compare, compare_exactly, count_comparisons, run_golden
from openk3.checkpoint.golden_limits import Limit, Limits, find_limits
from openk3.cli.main import run
from openk3.errors import CheckpointError
from tests.checkpoint.conftest import poke

# what the sets' own descriptions accept: maximum and median of logits, small traces, other traces
ACCEPTED = {"mini4": (3e-3, 5e-5, 2e-5, 3e-4), "k128": (1e-3, 3e-5, 3e-5, 3e-4)}


@pytest.mark.parametrize("name", ["mini4", "k128"])
def test_stored_sets_pass(shared: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared / "golden" / name
    assert run(["verify", str(folder / "checkpoint"), "--golden", str(folder / "golden.safetensors"), "--json"]) == 0
    golden = json.loads(capsys.readouterr().out)["golden"]
    ways = {(check["name"].split(".")[0], check["how"]) for check in golden["checks"]}
    assert {
        ("logits", "prefill"),
        ("logits", "step by step"),
        ("logits", "random split"),
        ("trace", "prefill"),
        ("greedy", "greedy"),
        ("logits_f64", "float64"),
        ("bf16_forced", "bfloat16, experts imposed"),
    } <= ways
    assert all(name.startswith("bf16.") for name in golden["not_checked"])
    assert len(golden["checks"]) > 90


@pytest.mark.parametrize("name", ["mini4", "k128"])
def test_derived_limits_are_within_the_accepted_ones(shared: Path, name: str) -> None:
    limits = find_limits(shared / "golden" / name / "golden.safetensors", None)
    logits_max, logits_median, small, trace = ACCEPTED[name]
    assert limits.of("logits").largest <= logits_max and limits.of("logits").median <= logits_median
    assert limits.of("logits_f64").largest <= 2e-6
    for quantity in ("kda_o", "kda_state_vk", "kda_beta", "router_weights"):
        assert limits.of(quantity, "17").largest <= small
    for quantity in ("router_margin", "attn_out", "ffn_out", "mla_cache", "final_norm", "conv_state_q"):
        assert limits.of(quantity, "17").largest <= trace


def test_derived_limits_have_floors(tmp_path: Path) -> None:
    noise = {"rec_vs_fp64": 1e-9, "chunk_vs_rec": 1e-9}
    measured = {
        "logits_maxabs_and_median_difference": {"17": {"chunk": [1e-9, 1e-9]}},
        "trace_maxabs": {"17": {"kda_o": noise, "attn_out": noise}},
    }
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    limits = find_limits(tmp_path / "golden.safetensors", None)
    assert limits.of("logits") == Limit(1e-3, 3e-5)
    for length in ("17", "3"):
        assert limits.of("kda_o", length) == Limit(2e-5)
        assert limits.of("attn_out", length) == limits.of("router_margin", length) == Limit(3e-4)


@pytest.fixture
def mini4(shared: Path, tmp_path: Path) -> Path:
    """A copy of the mini4 set, with its short prompts only."""
    folder = Path(shutil.copytree(shared / "golden" / "mini4", tmp_path / "mini4"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    record = load_file(folder / "golden.safetensors")
    kept = ("input_ids.len17", "input_ids.len3", "logits.len17", "logits.len3", "trace.len17.", "greedy.0.")
    save_file({name: tensor for name, tensor in record.items() if name.startswith(kept)}, folder / "golden.safetensors")
    return folder


def test_the_number_of_comparisons_is_known_beforehand(mini4: Path) -> None:
    assert count_comparisons(mini4 / "golden.safetensors") == len(checks_of(mini4))


def checks_of(folder: Path, limit: float | None = None) -> dict[tuple[str, str], Any]:
    golden = folder / "golden.safetensors"
    report = run_golden(folder / "checkpoint", golden, find_limits(golden, limit))
    return {(check.name, check.how): check for check in report.checks}


def test_a_changed_weight_is_found_where_it_acts(mini4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "language_model.model.layers.2.post_attention_layernorm.weight"
    poke(mini4 / "checkpoint" / "model-00003-of-000005.safetensors", name, 1, b"\x40")
    checks = checks_of(mini4)
    assert checks["trace.len17.layer1.prefix_sum", "prefill"].passed
    assert checks["trace.len17.layer2.mlp_mix", "prefill"].passed
    assert not checks["trace.len17.layer2.mlp_in", "prefill"].passed
    assert not checks["logits.len17", "step by step"].passed
    golden = str(mini4 / "golden.safetensors")
    assert run(["verify", str(mini4 / "checkpoint"), "--golden", golden]) == 1
    out = capsys.readouterr().out
    assert "BEYOND" in out and "comparisons are beyond their limits" in out


def edit_record(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "golden.safetensors")
    change(tensors)
    save_file(tensors, folder / "golden.safetensors")


def test_wrong_experts_tokens_and_shapes_are_told_apart(mini4: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        experts = tensors["trace.len17.layer1.router_experts"]
        experts[4] = (experts[4] + 1) % 8
        tensors["greedy.0.tokens"][3] += 1
        tensors["trace.len17.layer0.attn_out"] = tensors["trace.len17.layer0.attn_out"][:5].clone()

    edit_record(mini4, change)
    checks = checks_of(mini4)
    experts = checks["trace.len17.layer1.router_experts", "prefill"]
    assert not experts.passed and "first at [4, 0]" in experts.detail
    assert checks["greedy.0.tokens", "greedy"].detail == "1 of 16 differ, first at [3]"
    assert checks["trace.len17.layer0.attn_out", "prefill"].detail == "shape is [17, 64], recorded is [5, 64]"


def test_order_of_chosen_experts_does_not_matter(mini4: Path) -> None:
    edit_record(
        mini4,
        lambda t: t.update(
            {"trace.len17.layer1.router_experts": t["trace.len17.layer1.router_experts"].flip(-1).contiguous()}
        ),
    )
    assert checks_of(mini4)["trace.len17.layer1.router_experts", "prefill"].passed


def test_unknown_and_missing_entries(mini4: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in set(tensors) - {
            "input_ids.len17",
            "logits.len17",
            "greedy.0.prompt",
            "greedy.0.tokens",
            "logits.len3",
        }:
            del tensors[name]
        tensors |= {
            "novel.thing": torch.zeros(3),
            "trace.len17.layer0.novel": torch.zeros(3),
            "input_ids.lenx": torch.zeros(3),
            "bf16_forced.logits.len17": torch.zeros(17, 256),
        }

    edit_record(mini4, change)
    golden = mini4 / "golden.safetensors"
    report = run_golden(mini4 / "checkpoint", golden, find_limits(golden, None))
    assert report.ok and {check.name for check in report.checks} == {"logits.len17", "greedy.0.tokens"}
    assert report.not_checked == [
        "bf16_forced.logits.len17",
        "input_ids.lenx",
        "logits.len3",
        "novel.thing",
        "trace.len17.layer0.novel",
    ]


def test_a_record_of_nothing_known_fails(mini4: Path) -> None:
    save_file({"novel": torch.zeros(3)}, mini4 / "golden.safetensors")
    with pytest.raises(CheckpointError, match="none of its 1 tensors could be compared"):
        checks_of(mini4)


def test_limits_from_the_flag_and_from_the_file(mini4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", str(mini4 / "checkpoint"), "--golden", str(mini4 / "golden.safetensors")]
    assert run([*command, "--limit", "1e-9"]) == 1
    assert run([*command, "--limit", "0.01"]) == 0
    (mini4 / "limits.json").write_text('{"logits": {"max": 1e-9}, "trace": {"max": 1}}')
    checks = checks_of(mini4)
    assert not checks["logits.len17", "prefill"].passed and checks["trace.len17.layer0.attn_out", "prefill"].passed
    for path in (mini4 / "limits.json", mini4 / "measured.json"):
        path.unlink()
    capsys.readouterr()
    assert run(command) == 1
    assert "no limits.json or measured.json lies beside it" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "{", '{"logits": 3}', '{"logits": {"mx": 3}}', '{"logits": {"median": 3}}'])
def test_unusable_limits(tmp_path: Path, content: str) -> None:
    (tmp_path / "limits.json").write_text(content)
    with pytest.raises(CheckpointError, match="not limits in a known form"):
        find_limits(tmp_path / "golden.safetensors", None)


def test_a_quantity_without_limit_is_said(tmp_path: Path) -> None:
    (tmp_path / "limits.json").write_text('{"logits": {"max": 3}}')
    limits = find_limits(tmp_path / "golden.safetensors", None)
    assert limits.of("logits_f64") == Limit(3.0)
    with pytest.raises(CheckpointError, match="no limit for kda_o"):
        limits.of("kda_o", "17")
    assert Limits("", {}, Limit(1.0)).of("anything") == Limit(1.0)


def test_comparisons_fail_on_nan_and_count_integers() -> None:
    good, bad = torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")])
    assert compare("x", "", good, good, Limit(0.0)).passed
    assert not compare("x", "", bad, good, Limit(1e9)).passed
    inf = torch.tensor([float("inf")])
    assert compare("x", "", inf, inf, Limit(0.0)).passed
    assert not compare("x", "", inf, torch.zeros(1), Limit(1e9)).passed
    assert not compare("x", "", good, good + 0.5, Limit(1.0, 0.1)).passed
    assert compare_exactly("x", "", torch.tensor([1, 2]), torch.tensor([1, 3])).largest == 1.0


def test_files_that_are_not_a_record(pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "golden.safetensors").write_bytes(b"nonsense")
    command = ["verify", str(pristine), "--golden", str(tmp_path / "golden.safetensors"), "--limit", "1"]
    assert run(command) == 1
    assert "not a safetensors file" in capsys.readouterr().err
