"""The Kimi K3 text model.

Unusual: most layers are linear attention with a fixed-size state (KDA), every fourth and the last are full attention
over a latent cache (MLA); nothing knows positions; residuals are mixed by attention over blocks of layers; experts
work in a latent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from openk3.errors import ConfigError
from openk3.model.attn_res import ResidualStream, TwoPhaseStream
from openk3.model.batch import ForwardBatch, Observer, check_ids, check_imposed, ignore
from openk3.model.config import K3Config
from openk3.model.layer import DecoderLayer
from openk3.model.mtp import MTPLayer
from openk3.model.options import ModelOptions
from openk3.model.parts import Linear, RMSNorm, Weight
from openk3.model.state import BatchState, SequenceState, SequenceStates, Stateless
from openk3.ops.attn_res.reference import pseudo_query
from openk3.ops.packed import PackedSequences
from openk3.ops.precision import wide_dtype
from openk3.quant.experts import ExpertFormat

__all__ = ["K3ForCausalLM", "K3Model", "ModelOptions"]


class K3Model(nn.Module):
    """Embedding, decoder layers (MTP layers last, unused here) and final norm."""

    def __init__(self, config: K3Config, dtype: torch.dtype, options: ModelOptions, experts: ExpertFormat) -> None:
        super().__init__()
        d = config.hidden_size
        self.config, self.options = config, options
        self.embed_tokens = Weight(config.vocab_size, d, dtype=dtype)
        backbone = [DecoderLayer(config, i, dtype, options, experts) for i in range(config.num_hidden_layers)]
        drafts = [MTPLayer(config, i, dtype, options, experts) for i in config.mtp_layers]
        self.layers = nn.ModuleList([*backbone, *drafts])
        self.output_attn_res_proj = Weight(1, d, dtype=dtype)
        self.output_attn_res_norm = Weight(d, dtype=dtype)
        self.norm = RMSNorm(d, config.rms_norm_eps, dtype)

    def embed(self, input_ids: Tensor) -> Tensor:
        """Look up embeddings [N, d] of ids [N]."""
        return self.embed_tokens.weight[input_ids]

    def forward(self, input_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Map token ids [N] to the final mix [N, d], before the final norm (what drafts continue from)."""
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        queries = [layer.pseudo_queries() for layer in layers]
        output_query = pseudo_query(self.output_attn_res_proj.weight, self.output_attn_res_norm.weight)
        stream = self._stream(self.embed(input_ids), queries, output_query)
        for layer, layer_queries in zip(layers, queries, strict=True):
            layer(stream, layer_queries, batch)
        mix = stream.mix(output_query)
        batch.observe("final_mix", mix)
        return mix

    def _stream(
        self, embedding: Tensor, queries: Sequence[tuple[Tensor, Tensor]], output_query: Tensor
    ) -> ResidualStream:
        if self.options.attn_res == "plain":
            return ResidualStream(embedding, self.config.rms_norm_eps)
        blocks: list[list[Tensor]] = []
        for layer, (attention_query, mlp_query) in enumerate(queries):
            if self.config.starts_block(layer):
                blocks.append([])
                blocks[-1].append(mlp_query)  # this layer's attention query was used just before the block closed
            else:
                blocks[-1] += [attention_query, mlp_query]
            if layer + 1 == len(queries):
                blocks[-1].append(output_query)
            elif self.config.starts_block(layer + 1):
                blocks[-1].append(queries[layer + 1][0])
        return TwoPhaseStream(embedding, self.config.rms_norm_eps, blocks)


class K3ForCausalLM(nn.Module):
    """The text model with its head.

    Parameters are created unfilled, in ``dtype``, or in float32 where the checkpoint has them so.
    """

    def __init__(
        self,
        config: K3Config,
        *,
        dtype: torch.dtype = torch.bfloat16,
        options: ModelOptions | None = None,
        experts: ExpertFormat = "plain",
    ) -> None:
        super().__init__()
        self.config = config
        self.options = options or ModelOptions()
        self.model = K3Model(config, dtype, self.options, experts)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations."""
        return self.lm_head.weight.dtype

    def new_state(self) -> SequenceState:
        """Return the state of a sequence that has no tokens yet."""
        return SequenceState(self.config, self.dtype, self.lm_head.weight.device, self.options.kda)

    def forward(
        self,
        input_ids: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None = None,
        *,
        last_only: bool = False,
        observe: Observer = ignore,
        imposed_experts: Mapping[int, Tensor] | None = None,
    ) -> Tensor:
        """Return logits [N, vocab] float32 of a packed batch, or [B, vocab] of each sequence's last token.

        ``input_ids`` [N] int64, the sequences one after another, ``lengths`` tokens each; ``states`` are continued
        and advanced in place (None: fresh sequences, nothing kept); a pass that is interrupted leaves them unusable.
        Raises `ConfigError` on lengths, ids or states that do not fit, before anything is computed.
        """
        mix = self.mixed(input_ids, lengths, states, observe=observe, imposed_experts=imposed_experts)
        if last_only:
            mix = mix.index_select(0, torch.tensor(lengths, device=mix.device).cumsum(0) - 1)
        return self.logits(self._normed(mix, observe))

    def hidden(
        self,
        input_ids: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None = None,
        *,
        observe: Observer = ignore,
    ) -> Tensor:
        """Return the normed final hidden states [N, d], to which `logits` applies; arguments as `mixed`."""
        return self._normed(self.mixed(input_ids, lengths, states, observe=observe), observe)

    def mixed(
        self,
        input_ids: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None = None,
        *,
        observe: Observer = ignore,
        imposed_experts: Mapping[int, Tensor] | None = None,
    ) -> Tensor:
        """Return the final mix [N, d] before the norm, which `draft` continues from; arguments as in `forward`."""
        mix = self.run(input_ids, self._batch(input_ids, lengths, states, observe, imposed_experts))
        _advance(states, lengths)
        return mix

    def run(self, input_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Return the final mix [N, d] before the norm, over states that the caller keeps and has checked."""
        mix: Tensor = self.model(input_ids, batch)
        return mix

    def head(self, mix: Tensor) -> Tensor:
        """Norm final mixes [..., d] and apply the head: logits [..., vocab], at least float32."""
        return self.logits(self.model.norm(mix))

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head to normed hidden states [..., d]: logits [..., vocab], at least float32."""
        logits: Tensor = self.lm_head(hidden)
        return logits.to(wide_dtype(logits.dtype))

    def draft(
        self,
        hidden: Tensor,
        next_ids: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None = None,
        *,
        step: int = 0,
        observe: Observer = ignore,
    ) -> tuple[Tensor, Tensor]:
        """Predict one token further than the backbone with MTP layer ``step`` modulo their number.

        ``hidden`` [N, d] is `mixed` of token t (or the first result of the step before), ``next_ids`` [N] are tokens
        t + 1. ``states`` grow by the draft layer's latents, and their number of tokens stays. Returns the new hidden
        [N, d] and logits [N, vocab] of token t + 2. Raises `ConfigError` if the model has no MTP layer.
        """
        drafts = self.config.mtp_layers
        if not drafts:
            raise ConfigError(
                "this model has no MTP layer (num_nextn_predict_layers is 0)",
                hint="draft with n-grams or another model",
            )
        layer = self.model.layers[drafts[step % len(drafts)]]
        assert isinstance(layer, MTPLayer)
        batch = self._batch(next_ids, lengths, states, observe, None)
        new_hidden: Tensor = layer(hidden, self.model.embed(next_ids), batch)
        return new_hidden, self.logits(layer.shared_head.norm(new_hidden))

    def _normed(self, mix: Tensor, observe: Observer) -> Tensor:
        hidden: Tensor = self.model.norm(mix)
        observe("final_norm", hidden)
        return hidden

    def _batch(
        self,
        input_ids: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None,
        observe: Observer,
        imposed_experts: Mapping[int, Tensor] | None,
    ) -> ForwardBatch:
        packed = PackedSequences(lengths, input_ids.device)
        check_ids(input_ids, packed.num_tokens, self.config.vocab_size)
        check_imposed(imposed_experts or {}, packed.num_tokens, self.config.moe)
        return ForwardBatch(packed, self._batch_state(states, packed), observe, imposed_experts or {})

    def _batch_state(self, states: Sequence[SequenceState] | None, packed: PackedSequences) -> BatchState:
        if states is None:
            return Stateless(packed)
        for state in states:
            if state.kda_form != self.options.kda:
                raise ConfigError(
                    f"a state's kda form is {state.kda_form}, expected the model's ({self.options.kda})",
                    hint="make states with the new_state() of the model that uses them",
                )
        return SequenceStates(states, packed)


def _advance(states: Sequence[SequenceState] | None, lengths: Sequence[int]) -> None:
    for state, length in zip(states or (), lengths, strict=states is not None):
        state.num_tokens += length
