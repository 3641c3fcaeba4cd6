"""MXFP4 in plain PyTorch: unpack, pack, and quantise with a given scale.

Unusual: the low nibble of a byte is the even column, and code 8 is negative zero, kept through a round trip.
"""

from __future__ import annotations

from functools import cache

import torch

from openk3.ops import e8m0
from openk3.ops.e8m0 import BLOCK, ScaleRule

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXACT = (torch.float32, torch.bfloat16, torch.float64)
_SIGN = 8


def unpack(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Dequantise ``packed`` (uint8 [..., C/2]) with ``scale`` (uint8 [..., C/32]) to ``dtype`` [..., C].

    Exact in float32, bfloat16 and float64, whose exponents hold ``2**-128``; only where the true value exceeds the
    range of the dtype (scale bytes 253 and 254) does it become infinite. Scale byte 255 gives NaN. OCP MX section
    5.3.3.

    Raises:
        ValueError: shapes that do not belong together, or a dtype that cannot hold the values exactly.
    """
    _check(packed, scale, dtype)
    values = _pairs(dtype, packed.device).index_select(0, packed.reshape(-1).int())
    blocks = values.view(*scale.shape, BLOCK)
    return blocks.mul_(e8m0.decode(scale, dtype).unsqueeze(-1)).view(*packed.shape[:-1], 2 * packed.shape[-1])


def pack(values: torch.Tensor, rule: ScaleRule = "ceil") -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise ``values`` (float [..., C]) to ``packed`` uint8 [..., C/2] and ``scale`` uint8 [..., C/32].

    Values on the grid of some scale come back unchanged from `unpack`; others are rounded to nearest, ties to even.
    A block that holds NaN or infinity gets the NaN scale.

    Raises:
        ValueError: the last dimension is not a multiple of 32.
    """
    if values.shape[-1] % BLOCK:
        raise ValueError(f"last dimension is {values.shape[-1]}, expected a multiple of {BLOCK}")
    blocks = values.float().unflatten(-1, (-1, BLOCK))
    scale = e8m0.choose(blocks.abs().amax(-1), MAGNITUDES[-1], rule)
    return pack_with_scale(values, scale), scale


def pack_with_scale(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Quantise ``values`` (float [..., C]) with given ``scale`` (uint8 [..., C/32]) to packed bytes [..., C/2].

    Rounds to nearest, ties to even, and saturates at ±6 times the scale.
    """
    scaled = values.float().unflatten(-1, (-1, BLOCK)) / e8m0.decode(scale, torch.float32).unsqueeze(-1)
    codes = _nearest_codes(scaled.abs().nan_to_num(0.0).clamp(max=MAGNITUDES[-1]))
    codes |= torch.signbit(scaled).to(torch.uint8) * _SIGN
    low, high = codes.flatten(-2).unflatten(-1, (-1, 2)).unbind(-1)
    return low | high << 4


def _nearest_codes(magnitudes: torch.Tensor) -> torch.Tensor:
    """Round magnitudes in 0..6 (float32) to codes 0..7 (uint8): steps of 0.5 up to 2, of 1 up to 4, of 2 above."""
    above_2, above_4 = (magnitudes >= 2.0).float(), (magnitudes >= 4.0).float()
    steps = 0.5 + 0.5 * above_2 + above_4
    # codes count steps, so rounding half to even picks the even code
    return (torch.round(magnitudes / steps) + 2.0 * (above_2 + above_4)).to(torch.uint8)


def _check(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> None:
    if packed.dtype != torch.uint8 or scale.dtype != torch.uint8:
        raise ValueError(f"packed is {packed.dtype} and scale is {scale.dtype}, expected torch.uint8")
    expected = (*packed.shape[:-1], 2 * packed.shape[-1] // BLOCK)
    if 2 * packed.shape[-1] % BLOCK or tuple(scale.shape) != expected:
        raise ValueError(
            f"packed is {tuple(packed.shape)} and scale {tuple(scale.shape)}, expected [..., C/2] and [..., C/{BLOCK}]"
        )
    if dtype not in _EXACT:
        raise ValueError(f"dtype is {dtype}, expected one of {_EXACT}")


@cache
def _pairs(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    codes = [*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)]
    pairs = [(codes[byte & 15], codes[byte >> 4]) for byte in range(256)]
    return torch.tensor(pairs, dtype=dtype, device=device)
