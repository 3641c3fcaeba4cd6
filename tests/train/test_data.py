"""Shards, mixture and packing: nothing lost, nothing twice, and the model sees documents as if they were alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from openk3.errors import TrainingError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.train.config import SourceConfig
from openk3.train.data.mixture import Mixture, WeightedShard, held_out_documents, held_out_pieces
from openk3.train.data.packing import IGNORED, batches, next_batch, pack
from openk3.train.data.shards import Document, TokenShard, write_shard
from openk3.train.data.sources import open_shard
from openk3.train.init import init_for_training
from openk3.train.loss import next_token_loss

Shards = Sequence[WeightedShard]


def mixture(shards: Shards, window: int = 32, held_out: float = 0.1) -> Mixture:
    return Mixture(shards, window=window, held_out=held_out, seed=5)


def test_an_epoch_covers_every_training_document_once_and_no_held_out_one(shards: Shards) -> None:
    source = shards[1]
    stream = mixture([source], window=30)
    held_out = set(held_out_documents(source.shard, 0.1))
    expected = sorted(token for i in range(len(source.shard)) if i not in held_out for token in source.shard[i].ids)
    seen: list[int] = []
    while stream.cursor()["long"]["epoch"] == 0:
        seen += stream.take().ids.tolist()
    left_over = len(expected) - len(seen)  # a last token alone predicts nothing and is dropped
    assert 0 <= left_over <= len(source.shard)
    assert held_out
    if left_over == 0:
        assert sorted(seen) == expected


def test_shares_follow_the_weights(shards: Shards) -> None:
    stream = mixture(shards)
    for _ in range(400):
        stream.take()
    tokens = {name: cursor["tokens"] for name, cursor in stream.cursor().items()}
    assert tokens["short"] / tokens["long"] == pytest.approx(3.0, rel=0.03)


def test_a_restored_cursor_continues_exactly(shards: Shards) -> None:
    one, other = mixture(shards), mixture(shards)
    for _ in range(150):
        one.take()
    other.restore(json.loads(json.dumps(one.cursor())))
    for _ in range(150):
        assert one.take().ids.tolist() == other.take().ids.tolist()


def test_a_cursor_of_other_sources_is_refused(shards: Shards) -> None:
    with pytest.raises(TrainingError, match=r"\['short'\].*\['long', 'short'\]"):
        mixture(shards).restore(mixture(shards[:1]).cursor())


def test_targets_are_the_next_token_within_the_document() -> None:
    first = Document(np.array([1, 2, 3]), np.array([True, True, False]))
    second = Document(np.array([4, 5]), np.array([True, True]))
    batch = pack([first, second])
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert batch.targets.tolist() == [2, IGNORED, IGNORED, 5, IGNORED]
    assert batch.lengths == (3, 2)


def test_batches_fill_up_without_cutting(shards: Shards) -> None:
    stream = mixture(shards)
    for _ in range(20):
        batch = next_batch(stream, 128)
        assert 128 - 32 < batch.num_tokens <= 128
    pieces = list(held_out_pieces(shards[0].shard, 0.1, 32, 60))
    packed = list(batches(iter(pieces), 40))
    assert sum(batch.num_tokens for batch in packed) == sum(len(piece) for piece in pieces)
    assert all(batch.num_tokens <= 40 for batch in packed)


def test_packed_documents_train_as_if_alone(tiny: K3Config, shards: Shards) -> None:
    documents = [mixture(shards).peek(), shards[1].shard[3].piece(0, 40), shards[0].shard[1]]
    together, alone = (K3ForCausalLM(tiny, dtype=torch.float32) for _ in range(2))
    for model in (together, alone):
        init_for_training(model, 2)
    for model, groups in ((together, [documents]), (alone, [[document] for document in documents])):
        for group in groups:
            batch = pack(group)
            total, _ = next_token_loss(
                model.hidden(batch.input_ids, batch.lengths), model.lm_head.weight, batch.targets
            )
            total.backward()
    for (name, one), (_, other) in zip(together.named_parameters(), alone.named_parameters(), strict=True):
        if one.grad is None:  # the first layer's query chooses between one source: the embedding
            assert "layers.0.self_attention_res" in name
            assert other.grad is None
            continue
        assert other.grad is not None
        torch.testing.assert_close(
            one.grad, other.grad, atol=2e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_shard_keeps_wide_ids_and_refuses_foreign_ones(tmp_path: Path) -> None:
    wide = Document(np.array([0, 163_839]), np.array([False, True]))
    shard = write_shard(tmp_path / "wide", [wide], vocab_size=163_840, source="x")
    assert shard[0].ids.tolist() == [0, 163_839]
    assert shard[0].trained.tolist() == [False, True]
    with pytest.raises(TrainingError, match="163839 is not below vocab_size"):
        write_shard(tmp_path / "narrow", [wide], vocab_size=100, source="x")
    assert not (tmp_path / "narrow").exists()


def test_a_cut_shard_is_noticed(tmp_path: Path) -> None:
    write_shard(tmp_path / "s", [Document(np.arange(9), np.ones(9, dtype=bool))], vocab_size=64, source="x")
    (tmp_path / "s" / "ids.bin").write_bytes(b"\0\0")
    with pytest.raises(TrainingError, match="1 ids and 9 loss marks"):
        TokenShard(tmp_path / "s")


@pytest.fixture
def byte_tokenizer() -> Tokenizer:
    return Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens.block(256))


def test_text_ends_with_eos_and_dialogues_train_the_assistant_only(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    dialogue = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho", "reasoning": "Hm"}],
        "effort": "low",
    }
    file = tmp_path / "d.jsonl"
    file.write_text(json.dumps({"text": "abc"}) + "\n" + json.dumps(dialogue) + "\n")
    reports: list[str] = []
    source = SourceConfig(name="d", path=file, format="jsonl")
    shard = open_shard(source, tmp_path / "cache", byte_tokenizer, reports.append)
    assert shard[0].ids.tolist() == [*b"abc", byte_tokenizer.special.eos]
    trained = byte_tokenizer.decode(shard[1].ids[shard[1].trained].tolist())
    assert (
        trained == "Hm<|close|>think<|sep|><|open|>response<|sep|>Ho<|close|>response<|sep|>"
        "<|close|>message<|sep|><|end_of_msg|>"
    )
    open_shard(source, tmp_path / "cache", byte_tokenizer, reports.append)
    assert len(reports) == 1, "the second time it was there already"


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", ":2: not JSON"), ('{"tekst": "x"}', ':2: neither "text" nor "messages"'), ('{"messages": []}', ":2: ")],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(TrainingError, match=message):
        open_shard(SourceConfig(name="d", path=tmp_path / "d.jsonl", format="jsonl"), tmp_path, byte_tokenizer, print)


def test_a_missing_file_is_named(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(TrainingError, match=r"none\.txt: cannot be read"):
        open_shard(SourceConfig(name="d", path=tmp_path / "none.txt", format="text"), tmp_path, byte_tokenizer, print)
