"""Signatures of FlashInfer's functions, because its libraries contain no signatures.

FlashInfer builds each library with nvcc on first use, unless the package flashinfer-jit-cache has
it. The signatures are those of FlashInfer 0.7.2 to 0.7.4 (csrc/*.cu).
"""

import functools
import importlib
from pathlib import Path

import torch

NAMESPACE = "flashinfer"
_FLOATS = "where T: F16 | BF16"
_ROPE = (
    "(q: T[n, heads, d], k: T[n, kv_heads, d], {}) -> "
    "(q_rope: T[n, heads, d], k_rope: T[n, kv_heads, d]) where T: F16 | BF16, I: S32 | S64"
)


def _check_rank(input: torch.Tensor, **others: object) -> None:
    if input.ndim not in (2, 3):
        raise ValueError(
            f"rmsnorm: operand 0 (input): expected rank 2 or 3 but got {input.ndim} "
            f"{list(input.shape)}"
        )


def _check_rotary_dim(q: torch.Tensor, rotary_dim: int, **others: object) -> None:
    """Refuse what makes the kernel read beyond a head, or at odd addresses."""
    if rotary_dim % 16 or not 0 < rotary_dim <= q.shape[-1]:
        raise ValueError(
            f"rotary_dim: expected a multiple of 16, at most d = {q.shape[-1]}, but got "
            f"{rotary_dim}"
        )


def _check_cache(q: torch.Tensor, cos_sin_cache: torch.Tensor, **others: object) -> None:
    _check_rotary_dim(q, cos_sin_cache.shape[1])


def _norm(rank: str) -> dict[str, object]:
    return {
        "check": _check_rank,
        "signature": f"(input: T[{rank}, d], weight: T[d]) -> (out: T[{rank}, d]) {_FLOATS}",
        "parameters": "eps: f64, enable_pdl: bool",
        "arguments": "out input weight eps enable_pdl",
        "defaults": {"eps": 1e-6, "enable_pdl": False},
        "sharding_rule": "... _, _ -> ... _",
    }


_ADD_NORM = {
    "signature": "(input: T[n, d], residual: T[n, d], weight: T[d]) -> (input, residual) "
    + _FLOATS,
    "parameters": "eps: f64, enable_pdl: bool",
    "defaults": {"eps": 1e-6, "enable_pdl": False},
    "sharding_rule": "n _, n _, _ -> n _, n _",
}
_ACTIVATION = {
    "signature": f"(input: T[*n, 2*d]) -> (out: T[*n, d]) {_FLOATS}",
    "parameters": "enable_pdl: bool",
    "arguments": "out input enable_pdl",
    "defaults": {"enable_pdl": False},
    "sharding_rule": "... _ -> ... _",
}
# For each function: FlashInfer's module, the arguments of its generator, and the function's
# options.
FUNCTIONS = {
    "rmsnorm": ("norm", (), _norm("*n")),
    "gemma_rmsnorm": ("norm", (), _norm("n")),
    "fused_add_rmsnorm": ("norm", (), _ADD_NORM),
    "gemma_fused_add_rmsnorm": ("norm", (), _ADD_NORM),
    "layernorm": (
        "norm",
        (),
        {
            "signature": "(input: BF16[n, d], gamma: F32[d], beta: F32[d]) -> (out: BF16[n, d])",
            "parameters": "eps: f64",
            "arguments": "out input gamma beta eps",
            "defaults": {"eps": 1e-6},
            "sharding_rule": "n _, _, _ -> n _",
        },
    ),
    **{
        f"{kind}_and_mul": ("activation", (kind,), _ACTIVATION)
        for kind in ("silu", "gelu", "gelu_tanh")
    },
    "apply_rope_pos_ids": (
        "rope",
        (),
        {
            "signature": _ROPE.format("pos_ids: I[n]"),
            "parameters": "rotary_dim: i64, interleave: bool, rope_scale: f64, rope_theta: f64",
            "arguments": "q k q_rope k_rope pos_ids rotary_dim interleave rope_scale rope_theta",
            "defaults": {"interleave": False, "rope_scale": 1.0, "rope_theta": 1e4},
            "check": _check_rotary_dim,
            "sharding_rule": "n h _, n k _, n -> n h _, n k _",
        },
    ),
    "apply_rope_pos_ids_cos_sin_cache": (
        "rope",
        (),
        {
            "signature": _ROPE.format("cos_sin_cache: F32[length, rotary_dim], pos_ids: I[n]"),
            "parameters": "interleave: bool",
            "arguments": "q k q_rope k_rope cos_sin_cache pos_ids interleave",
            "defaults": {"interleave": False},
            "check": _check_cache,
            "sharding_rule": "n h _, n k _, _ _, n -> n h _, n k _",
        },
    ),
}
_GENERATORS = {
    "norm": "gen_norm_module",
    "activation": "gen_act_and_mul_module",
    "rope": "gen_rope_module",
}


@functools.cache
def library(name: str) -> Path:
    """Return the path of the library with a function, which is compiled if necessary."""
    module, arguments, _ = FUNCTIONS[name]
    try:
        jit = importlib.import_module(f"flashinfer.jit.{module}")
    except ImportError as error:
        raise ImportError(
            f"load_kernels: FlashInfer cannot be imported: {error}; pip install flashinfer-python"
        ) from error
    spec = getattr(jit, _GENERATORS[module])(*arguments)
    if not spec.is_compiled:
        spec.build()
    return Path(spec.get_library_path())
