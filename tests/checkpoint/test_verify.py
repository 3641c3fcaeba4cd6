"""Every kind of damage gives one clear line that names file and tensor, through the command, with exit code 1."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openk3.checkpoint.contents import verify_contents
from openk3.checkpoint.index import INDEX_FILE
from openk3.checkpoint.random_init import RandomSource
from openk3.checkpoint.verify import Report, verify_headers
from openk3.checkpoint.writer import write_checkpoint
from openk3.cli.main import run
from openk3.model.config import VisionConfig
from openk3.model.presets import preset
from tests.checkpoint.conftest import edit_header, edit_index, poke, shard

LAYER1 = "language_model.model.layers.1."
NORM = LAYER1 + "input_layernorm.weight"
SCALE = LAYER1 + "block_sparse_moe.experts.3.w2.weight_scale"
SMALL_VISION = VisionConfig(
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    qkv_hidden_size=32,
    init_pos_emb_height=2,
    init_pos_emb_width=2,
)
Damage = Callable[[Path], None]


def change_entry(name: str, **values: object) -> Damage:
    return lambda folder: edit_header(shard(folder, 2), lambda header: header[name].update(values))


def move_entry(name: str, by: int) -> Damage:
    def change(header: dict[str, Any]) -> None:
        header[name]["data_offsets"] = [offset + by for offset in header[name]["data_offsets"]]

    return lambda folder: edit_header(shard(folder, 2), change)


def truncate(folder: Path) -> None:
    path = shard(folder, 2)
    path.write_bytes(path.read_bytes()[:-100])


def lie_about_the_header(folder: Path) -> None:
    content = shard(folder, 2).read_bytes()
    shard(folder, 2).write_bytes((10**7).to_bytes(8, "little") + content[8:])


def name_twice_in_index(folder: Path) -> None:
    path = folder / INDEX_FILE
    path.write_text(path.read_text().replace('"weight_map": {', f'"weight_map": {{"{NORM}": "x.safetensors",', 1))


def put_into_two_shards(folder: Path) -> None:
    extra = {"language_model.model.norm.weight": torch.ones(64).bfloat16()}
    save_file(load_file(shard(folder, 2)) | extra, shard(folder, 2))


def leave_out(folder: Path) -> None:
    tensors = load_file(shard(folder, 2))
    del tensors[NORM]
    save_file(tensors, shard(folder, 2))


def leave_out_everywhere(folder: Path) -> None:
    leave_out(folder)
    edit_index(folder, lambda index: index["weight_map"].pop(NORM))
    edit_index(folder, lambda index: index["metadata"].update(total_size=index["metadata"]["total_size"] - 128))


def poked(name: str, offset: int, content: bytes) -> Damage:
    return lambda folder: poke(shard(folder, 2), name, offset, content)


def rewritten(content: bytes, name: str = "model-00002-of-000005.safetensors") -> Damage:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


HEADER_DAMAGE: list[tuple[str, Damage, list[str]]] = [
    (
        "truncated",
        truncate,
        ["model-00002", LAYER1 + "block_sparse_moe.experts.7.w3.weight_packed: truncated", "and 1 more behind it"],
    ),
    (
        "missing shard",
        lambda f: shard(f, 2).unlink(),
        ["model-00002", "no such file", "the index places 76 tensors in it, first language_model.model.layers.1."],
    ),
    ("wrong dtype", change_entry(NORM, dtype="F16"), ["model-00002", NORM, "dtype is F16, expected BF16"]),
    ("wrong shape", change_entry(NORM, shape=[2, 32]), ["model-00002", NORM, "shape is [2, 32], expected [64]"]),
    ("overlap and hole", move_entry(NORM, -2), ["model-00002", NORM, "its bytes start at"]),
    ("lying header length", lie_about_the_header, ["model-00002", "its header claims 10000000 bytes"]),
    ("not safetensors", rewritten(b"\x80\x02}q\x00." * 50), ["model-00002", "not a safetensors file"]),
    ("empty file", rewritten(b""), ["model-00002", "0 bytes, expected at least 8"]),
    ("unreadable index", rewritten(b'{"weight_map": ', INDEX_FILE), [INDEX_FILE, "not JSON"]),
    ("unreadable config", rewritten(b"{", "config.json"), ["config.json", "JSON"]),
    ("index names it twice", name_twice_in_index, [INDEX_FILE, NORM, "twice"]),
    ("index and shard disagree", leave_out, ["model-00002", NORM, "the index places it here"]),
    ("missing tensor", leave_out_everywhere, [NORM, "missing from every shard"]),
    ("two shards", put_into_two_shards, ["language_model.model.norm.weight", "the index places it in model-00005"]),
    (
        "index places it elsewhere",
        lambda f: edit_index(f, lambda index: index["weight_map"].update({NORM: shard(f, 3).name})),
        ["model-00002", NORM],
    ),
    (
        "wrong total",
        lambda f: edit_index(f, lambda index: index["metadata"].update(total_size=7)),
        ["the index claims 7 bytes of tensors, the shards hold 381520"],
    ),
    (
        "extra file",
        lambda f: shutil.copy(shard(f, 2), f / "more.safetensors") and None,
        ["more.safetensors", "not named by the index"],
    ),
]
DEEP_DAMAGE: list[tuple[str, Damage, list[str]]] = [
    (
        "NaN in BF16",
        poked(NORM, 6, b"\xc0\x7f"),
        ["model-00002", NORM, "1 values are NaN or infinite", "nan at element 3"],
    ),
    ("negative infinity in BF16", poked(NORM, 2, b"\x80\xff"), [NORM, "-inf at element 1"]),
    ("infinity in F32", poked(LAYER1 + "self_attn.dt_bias", 0, b"\x00\x00\x80\x7f"), ["dt_bias", "inf at element 0"]),
    (
        "negative NaN in F32",
        poked(LAYER1 + "self_attn.dt_bias", 4, b"\x01\x00\x80\xff"),
        ["dt_bias", "nan at element 1"],
    ),
    (
        "padding",
        poked(LAYER1 + "self_attn.A_log", 4 * 15, b"\x00\x00\x80\x3f"),
        ["A_log", "its padding after 3 heads is not zero: 1 of 13 values"],
    ),
    ("scale 0", poked(SCALE, 3, b"\x00"), [SCALE, "1 of 32 scale bytes are 0 (2**-127)"]),
    ("scale 255", poked(SCALE, 3, b"\xff\xff"), [SCALE, "2 of 32 scale bytes are 255 (NaN)"]),
]


def printed_errors(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert run(["verify", str(folder), *flags]) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return [line for line in captured.out.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(
    ("damage", "expected"), [case[1:] for case in HEADER_DAMAGE], ids=[c[0] for c in HEADER_DAMAGE]
)
def test_damaged_headers(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], damage: Damage, expected: list[str]
) -> None:
    damage(checkpoint)
    lines = printed_errors(checkpoint, capsys)
    assert any(all(part in line for part in expected) for line in lines), lines
    assert len(lines) <= 4


@pytest.mark.parametrize(("damage", "expected"), [case[1:] for case in DEEP_DAMAGE], ids=[c[0] for c in DEEP_DAMAGE])
def test_damaged_values(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], damage: Damage, expected: list[str]
) -> None:
    damage(checkpoint)
    assert run(["verify", str(checkpoint)]) == 0  # headers say nothing about values
    capsys.readouterr()
    lines = printed_errors(checkpoint, capsys, "--deep")
    assert len(lines) == 1 and all(part in lines[0] for part in expected), lines


@pytest.mark.parametrize(
    "name", ["unreadable index", "index names it twice", "missing shard", "truncated", "not safetensors"]
)
def test_damage_that_also_stops_deep_verification(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    next(damage for case, damage, _ in HEADER_DAMAGE if case == name)(checkpoint)
    assert printed_errors(checkpoint, capsys, "--deep")


def test_a_sound_checkpoint(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(pristine), "--deep"]) == 0
    out = capsys.readouterr().out
    assert "5 files, 250 tensors, 381,520 bytes" in out and "ok: whole, well-formed, values finite" in out


def test_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(checkpoint, 4).unlink()
    assert run(["verify", str(checkpoint), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert not data["ok"] and data["files"] == 4 and len(data["problems"]) == 1


def test_a_wrong_place_in_the_index_is_told_by_both_shards_and_nothing_else(checkpoint: Path) -> None:
    for number in (1, 3):  # before and after the shard that holds it
        edit_index(checkpoint, lambda index, n=number: index["weight_map"].update({NORM: shard(checkpoint, n).name}))
        wrong, right = shard(checkpoint, number), shard(checkpoint, 2)
        assert sorted(verify_headers(checkpoint).problems) == sorted(
            [
                f"{right}: {NORM}: the index places it in {wrong.name}",
                f"{wrong}: {NORM}: the index places it here, but the shard does not hold it",
            ]
        )


def test_every_fault_is_listed(checkpoint: Path) -> None:
    truncate(checkpoint)
    shard(checkpoint, 3).unlink()
    edit_header(
        shard(checkpoint, 4), lambda h: h["language_model.model.layers.3.mlp_res_norm.weight"].update(dtype="F16")
    )
    problems = verify_headers(checkpoint).problems
    assert len(problems) == 3
    assert {"model-00002", "model-00003", "model-00004"} == {p.split("/")[-1][:11] for p in problems}


def test_values_of_unsound_files_are_left_alone_and_said_so(checkpoint: Path) -> None:
    truncate(checkpoint)
    report = verify_headers(checkpoint)
    verify_contents(report)
    assert len(report.problems) == 1 and "the values of 1 files were not read" in report.notes[-1]


def test_tensors_of_zeros_are_remarked_on(checkpoint: Path) -> None:
    poke(shard(checkpoint, 2), NORM, 0, bytes(128))
    packed = SCALE.replace("_scale", "_packed")
    poke(shard(checkpoint, 2), packed, 0, bytes(512))
    report = verify_headers(checkpoint)
    verify_contents(report)
    assert report.ok and " and 1 more: all zero" in report.notes[0] and NORM in report.notes[0]


def with_vision(folder: Path) -> Report:
    config = replace(preset("mini4"), vision=SMALL_VISION)
    write_checkpoint(folder, config, RandomSource(config, 1), vision=True)
    return verify_headers(folder)


def test_vision_part_whole_absent_and_partial(tmp_path: Path) -> None:
    assert with_vision(tmp_path / "whole").ok
    config = replace(preset("mini4"), vision=SMALL_VISION)
    write_checkpoint(tmp_path / "text", config, RandomSource(config, 1))
    text_only = verify_headers(tmp_path / "text")
    assert text_only.ok and "text only" in text_only.notes[0]
    projector = tmp_path / "whole" / "model-00006-of-000007.safetensors"
    names = list(load_file(projector))
    projector.unlink()

    def forget(index: dict[str, Any]) -> None:
        for name in names:
            del index["weight_map"][name]
        del index["metadata"]

    edit_index(tmp_path / "whole", forget)
    problems = verify_headers(tmp_path / "whole").problems
    assert [p for p in problems if "mm_projector.proj.0.weight: missing" in p]
    assert [p for p in problems if "shard 6 of 7 is not named by the index" in p]


def test_no_such_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["verify", str(tmp_path / "none")]) == 1
    assert "neither a folder nor a bundled model" in capsys.readouterr().err
    assert run(["verify", str(tmp_path)]) == 1
    assert "config.json: no such file" in capsys.readouterr().out


def test_manifest_round_trip_and_damage(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "SHA256SUMS"
    assert run(["verify", str(checkpoint), "--write-manifest", str(manifest)]) == 0
    assert len(manifest.read_text().splitlines()) == 7
    assert run(["verify", str(checkpoint), "--manifest", str(manifest)]) == 0
    capsys.readouterr()
    poke(shard(checkpoint, 2), NORM, 0, b"\x00")
    lines = printed_errors(checkpoint, capsys, "--manifest", str(manifest))
    assert len(lines) == 1 and "model-00002" in lines[0] and "SHA-256 is" in lines[0]


def test_manifest_is_what_sha256sum_checks(checkpoint: Path, tmp_path: Path) -> None:
    import subprocess

    manifest = tmp_path / "SHA256SUMS"
    run(["verify", str(checkpoint), "--write-manifest", str(manifest)])
    subprocess.run(["sha256sum", "--check", "--strict", str(manifest)], cwd=checkpoint, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "lists no file"), ("x\n", ":1: 'x' is not a SHA-256"), ("0" * 64 + "  ../../etc/passwd\n", ":1:")],
)
def test_unusable_manifests(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    manifest = tmp_path / "SHA256SUMS"
    manifest.write_text(content)
    assert run(["verify", str(checkpoint), "--manifest", str(manifest)]) == 1
    assert message in capsys.readouterr().err


def test_manifest_with_missing_and_unlisted_files(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "SHA256SUMS"
    manifest.write_text("0" * 64 + "  tokenizer.model\n")
    lines = printed_errors(checkpoint, capsys, "--manifest", str(manifest))
    assert any("tokenizer.model: listed in SHA256SUMS, but there is no such file" in line for line in lines)
    assert sum("not listed in SHA256SUMS" in line for line in lines) == 5


@pytest.mark.parametrize("name", ["mini4", "k128"])
def test_stored_checkpoints_are_sound_and_text_only(shared: Path, name: str) -> None:
    report = verify_headers(shared / "golden" / name / "checkpoint")
    verify_contents(report)
    assert report.ok, report.problems
    assert report.notes == ["text only: the configuration has a vision part, the files hold none of it"]


def test_random_damage_never_becomes_a_traceback(
    checkpoint: Path, pristine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(1)
    files = [shard(checkpoint, 1), shard(checkpoint, 4), checkpoint / INDEX_FILE, checkpoint / "config.json"]
    for _ in range(200):
        path = rng.choice(files)
        content = bytearray((pristine / path.name).read_bytes())
        start = rng.randrange(min(len(content), 4000))
        if rng.random() < 0.3:
            del content[start : start + rng.randint(1, 40)]
        else:
            content[start] = rng.randrange(256)
        path.write_bytes(content)
        code = run(["verify", str(checkpoint), "--deep"])
        captured = capsys.readouterr()
        assert (code == 0) == ("error: " not in captured.out) and not captured.err
        path.write_bytes((pristine / path.name).read_bytes())
