"""Drafts from the model's own multi-token-prediction layers.

Unusual: what the model has computed waits until a guess is wanted, and is then read in one pass, so that a text whose
drafts are not worth making costs hardly anything. Of a text that began from a checkpoint they know what came after it.

Legend: d hidden size, w width of a latent, n layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.drafter import ComputedRow
from openk3.errors import ConfigError
from openk3.model.batch import ForwardBatch
from openk3.model.model import K3ForCausalLM
from openk3.model.mtp import MTPLayer
from openk3.ops.packed import PackedSequences

# Rows by which a text's latents grow: no spare ones that grow with the text, as doubling has.
_BLOCK = 128
# Rows of a text that may wait to be read.
_MOST_UNREAD = 64


class MTPDrafter:
    """Drafts of ``model``'s MTP layers: guess k is layer k's, modulo their number; ConfigError if there are none.

    Layer k's row of token t holds the result of the layer before for token t and the embedding of token t + k + 1,
    the same as when a whole text is fed to `K3ForCausalLM.draft`.
    """

    def __init__(self, model: K3ForCausalLM, max_depth: int) -> None:
        config = model.config
        if not config.mtp_layers:
            raise ConfigError(
                "speculate is 'mtp', but this model has no MTP layer (num_nextn_predict_layers is 0)",
                hint="draft with n-grams or another model",
            )
        self.max_depth = max_depth
        num_layers, itemsize = len(config.mtp_layers), model.dtype.itemsize
        self.bytes_per_token = num_layers * config.mla.cache_width * itemsize
        row = config.hidden_size * itemsize
        waiting = (_MOST_UNREAD + (1 + max_depth) * num_layers) * row
        self.bytes_per_sequence = (_BLOCK + max_depth) * self.bytes_per_token + waiting
        self._model = model
        self._layers = [layer for layer in model.model.layers if isinstance(layer, MTPLayer)]
        self._texts: dict[EngineSequence, _Text] = {}

    @torch.inference_mode()
    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        """Return for each sequence its depth of guesses, none if its last computed token was not seen."""
        guesses: list[list[int]] = [[] for _ in sequences]
        wanted = [
            (sequence, text, min(depth, self.max_depth), guess)
            for sequence, depth, guess in zip(sequences, depths, guesses, strict=True)
            if depth > 0 and (text := self._texts.get(sequence)) and text.end == sequence.position
        ]
        self._catch_up([(sequence, text) for sequence, text, _, _ in wanted])
        drafts = [_Draft(sequence, text, depth, text.waiting[0][-1:], guess) for sequence, text, depth, guess in wanted]
        marks = [[rows.num_rows for rows in draft.text.latents] for draft in drafts]
        for step in range(self.max_depth):
            drafts_left = [draft for draft in drafts if len(draft.guesses) < draft.depth]
            if not drafts_left:
                break
            self._guess(drafts_left, step)
        for draft, mark in zip(drafts, marks, strict=True):
            draft.text.truncate(mark)
        return guesses

    @torch.inference_mode()
    def computed(self, rows: Sequence[ComputedRow]) -> None:
        """Let what was computed wait; feed the layers where that is much."""
        reading = []
        for row in rows:
            if row.mix.shape[0] and _is_known(row):
                text = self._text(row)
                is_much = text.num_unread + row.mix.shape[0] > _MOST_UNREAD
                text.unread.append(row.mix if is_much else row.mix.clone())  # without the rest of the step
                if is_much:
                    reading.append((row.sequence, text))
        self._catch_up(reading)

    def _catch_up(self, reading: Sequence[tuple[EngineSequence, _Text]]) -> None:
        """Feed the layers what waits, as far as the tokens that they need are known."""
        reading = [(sequence, text) for sequence, text in reading if text.unread]
        for number in range(len(self._layers)):
            fed = []
            for sequence, text in reading:
                inputs = text.take_unread() if number == 0 else text.waiting[number - 1]
                first = text.first + text.latents[number].num_rows + number + 1
                following = sequence.tokens[first : first + inputs.shape[0]]
                if following:
                    fed.append((text, inputs[: len(following)], following))
            self._read(number, fed)

    def release(self, sequence: EngineSequence) -> None:
        """Drop what is known of a sequence; it is read from the token on with which it comes back."""
        self._texts.pop(sequence, None)

    def _text(self, row: ComputedRow) -> _Text:
        text = self._texts.get(row.sequence)
        if text is None or text.end != row.start:
            text = self._texts[row.sequence] = self._new_text(row.start)
        return text

    def _new_text(self, first: int) -> _Text:
        config, like = self._model.config, self._model.lm_head.weight
        return _Text(
            first,
            [_Rows(like.new_empty(0, config.mla.cache_width)) for _ in self._layers],
            [like.new_empty(0, config.hidden_size) for _ in self._layers],
        )

    def _read(self, number: int, fed: Sequence[tuple[_Text, Tensor, Sequence[int]]]) -> None:
        """Feed layer ``number`` and let its results wait for the next layer."""
        if not fed:
            return
        texts, inputs, following = zip(*fed, strict=True)
        for text, result in zip(texts, self._feed(number, texts, inputs, following), strict=True):
            if number > 0:
                text.waiting[number - 1] = text.waiting[number - 1][result.shape[0] :].clone()
            waiting = torch.cat([text.waiting[number], result])
            text.waiting[number] = waiting if number + 1 < len(self._layers) else waiting[-1:].clone()

    def _guess(self, drafts: Sequence[_Draft], step: int) -> None:
        """Add each draft's guess number ``step``; the first one's hidden state is there already."""
        number = step % len(self._layers)
        if step > 0:
            inputs = [self._inputs(draft, step) for draft in drafts]
            following = [draft.guesses[-rows.shape[0] :] for draft, rows in zip(drafts, inputs, strict=True)]
            results = self._feed(number, [draft.text for draft in drafts], inputs, following)
            for draft, result in zip(drafts, results, strict=True):
                draft.hidden = result
        normed = self._layers[number].shared_head.norm(torch.cat([draft.hidden[-1:] for draft in drafts]))
        logits = self._model.logits(normed).to("cpu", torch.float32)
        for draft, row in zip(drafts, logits, strict=True):
            draft.guesses.append(draft.sequence.sampler.guess(row, step))

    def _inputs(self, draft: _Draft, step: int) -> Tensor:
        """Return [m, d] for guess ``step``; a layer's first one also reads what waited for tokens guessed by now."""
        if step >= len(self._layers):
            return draft.hidden[-1:]
        return torch.cat([draft.text.waiting[step - 1], draft.hidden])[-step:]

    def _feed(
        self, number: int, texts: Sequence[_Text], inputs: Sequence[Tensor], following: Sequence[Sequence[int]]
    ) -> Sequence[Tensor]:
        """Run layer ``number`` on each text's inputs [m, d] with as many following tokens, without the head: [m, d]."""
        layer, device = self._layers[number], self._model.lm_head.weight.device
        packed = PackedSequences([rows.shape[0] for rows in inputs], device)
        ids = torch.tensor([token for tokens in following for token in tokens], dtype=torch.int64, device=device)
        batch = ForwardBatch(packed, _Latents([text.latents[number] for text in texts]))
        results: Tensor = layer(torch.cat(list(inputs)), self._model.model.embed(ids), batch)
        return results.split(packed.lengths)


def _is_known(row: ComputedRow) -> bool:
    """Tell whether every computed token has a next one; in a step that failed the last has none."""
    return row.start + row.mix.shape[0] < len(row.sequence.tokens)


class _Rows:
    """Rows [num_rows, w] in blocks of 128; ``like`` [0, w] gives width, dtype and device."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._blocks: list[Tensor] = []
        self.num_rows = 0

    def append(self, rows: Tensor) -> None:
        """Add rows [m, w]."""
        for part in rows.tensor_split(tuple(range(-self.num_rows % _BLOCK, rows.shape[0], _BLOCK))):
            block, place = divmod(self.num_rows, _BLOCK)
            if part.shape[0] and block == len(self._blocks):
                self._blocks.append(self._like.new_zeros(_BLOCK, self._like.shape[1]))
            if part.shape[0]:
                self._blocks[block][place : place + part.shape[0]] = part
            self.num_rows += part.shape[0]

    def truncate(self, num_rows: int) -> None:
        """Forget all rows after the first ``num_rows``."""
        self.num_rows = num_rows
        del self._blocks[-(-num_rows // _BLOCK) :]

    def padded(self, num_rows: int) -> Tensor:
        """Return a copy [num_rows, w], zero after the last row."""
        missing = max(0, num_rows - len(self._blocks) * _BLOCK)
        copy = torch.cat([*self._blocks, self._like.new_zeros(missing, self._like.shape[1])])[:num_rows]
        copy[self.num_rows :] = 0
        return copy


@dataclass(eq=False)
class _Text:
    """What the layers know of a sequence from token ``first`` on.

    ``unread`` [m, d] are the model's results that wait for the first layer, ``waiting`` [m, d] each layer's results
    that the next layer has not read; the last layer's latest one stays.
    """

    first: int
    latents: list[_Rows]
    waiting: list[Tensor]
    unread: list[Tensor] = field(default_factory=list)

    @property
    def num_unread(self) -> int:
        """Rows that wait for the first layer."""
        return sum(rows.shape[0] for rows in self.unread)

    @property
    def end(self) -> int:
        """The first token of which nothing is known."""
        return self.first + self.latents[0].num_rows + self.num_unread

    def take_unread(self) -> Tensor:
        """Give the rows [m, d] that wait for the first layer, which has to read them now."""
        rows = torch.cat(self.unread)
        self.unread.clear()
        return rows

    def truncate(self, num_rows: Sequence[int]) -> None:
        """Forget what was drafted."""
        for rows, count in zip(self.latents, num_rows, strict=True):
            rows.truncate(count)


@dataclass(eq=False)
class _Draft:
    """A chain of guesses in the making; the last of ``hidden`` [m, d] gives the next one."""

    sequence: EngineSequence
    text: _Text
    depth: int
    hidden: Tensor
    guesses: list[int]


class _Latents:
    """`BatchState` of one MTP layer: latents alone, as it has no other state."""

    def __init__(self, texts: Sequence[_Rows]) -> None:
        self._texts = texts
        self.num_open = [0] * len(texts)

    def read_kda(self, layer: int) -> None:
        """Return None: there is no KDA state."""

    def write_kda(self, layer: int, recurrent: Tensor, rows: Tensor, inputs: Tensor, packed: PackedSequences) -> None:
        """Keep nothing."""

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return each text's number of rows."""
        return [rows.num_rows for rows in self._texts]

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> None:
        """Append to each text's rows."""
        for rows, part in zip(self._texts, entries.split(packed.lengths), strict=True):
            rows.append(part)

    def latents(self, layer: int, sequences: Sequence[int], num_rows: int) -> Tensor:
        """Return the rows of some texts, padded with zeros."""
        first = self._texts[sequences[0]].padded(num_rows)
        if len(sequences) == 1:
            return first[None]
        stacked = first.new_empty(len(sequences), *first.shape)
        for place, i in zip(stacked, sequences, strict=True):
            place.copy_(self._texts[i].padded(num_rows))  # one by one, so that there are never two copies of all
        return stacked
