"""Weights in MXFP4: codes of four bits, two per byte, and an exponent for each 32 elements."""

import torch

_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = torch.cat([_MAGNITUDES, -_MAGNITUDES])  # of the codes


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns uint8 [..., k / 2] and [..., k / 32] for [..., k]."""
    blocks = weight.float().unflatten(-1, (-1, 32))
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
    scaled = blocks / torch.exp2(exponents)[..., None]
    codes = (scaled[..., None] - VALUES).abs().argmin(-1).flatten(-2)
    return pack(codes), (exponents + 127).to(torch.uint8)


def pack(codes: torch.Tensor) -> torch.Tensor:
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def values(packed: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Returns the dequantized numbers, float64 [..., k]."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    scale = torch.exp2(exponents.double() - 127)
    return VALUES.double()[codes] * scale.repeat_interleave(32, -1)
