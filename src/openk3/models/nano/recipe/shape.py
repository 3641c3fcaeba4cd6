"""The bundled model's sizes, chosen so that everything fits in 8 MB and two cores train it within the hour."""

from __future__ import annotations

from openk3.model.config import K3Config, KDAConfig, MLAConfig, MoEConfig

NUM_BASE_TOKENS = 3840

NANO = K3Config(
    vocab_size=NUM_BASE_TOKENS + 256,
    hidden_size=192,
    intermediate_size=512,
    layer_kinds=("kda", "kda", "kda", "mla"),
    kda=KDAConfig(num_heads=4, head_dim=32),
    mla=MLAConfig(
        num_heads=4, q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32
    ),
    moe=MoEConfig(num_experts=16, num_experts_per_token=2, num_shared_experts=2, intermediate_size=96, latent_size=96),
    attn_res_block_size=2,
    max_position_embeddings=8192,
    bos_token_id=NUM_BASE_TOKENS,
    eos_token_id=NUM_BASE_TOKENS + 2,
    media_placeholder_token_id=NUM_BASE_TOKENS + 21,
    pad_token_id=NUM_BASE_TOKENS + 255,
)
