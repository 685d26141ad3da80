"""Wrong calls of the operators on paged caches: each error names the argument."""

import re
from collections.abc import Callable

import pytest
import torch
from testing.paged import FP8, int32
from torch import zeros

from torch_xla_ext import ops


def bf16(*shape: int) -> torch.Tensor:
    return zeros(shape, dtype=torch.bfloat16)


def s32(*shape: int) -> torch.Tensor:
    return zeros(shape, dtype=torch.int32)


CACHE = bf16(4, 16, 2, 64)
OTHER = zeros(4, 16, 2, 64).half()
LENGTHS = int32([5, 0])

DECODE = {
    "query": bf16(2, 8, 64),
    "key_cache": CACHE,
    "value_cache": CACHE,
    "block_tables": s32(2, 3),
    "context_lens": LENGTHS,
    "scale": 0.125,
}
RAGGED = {
    "q": bf16(6, 8, 64),
    "kv_pages": CACHE,
    "kv_lens": LENGTHS,
    "page_indices": s32(2, 3),
    "cu_q_lens": int32([0, 3, 5]),
    "num_seqs": int32([2]),
}
UPDATE = {
    "key": bf16(3, 2, 64),
    "value": bf16(3, 2, 64),
    "slot_mapping": torch.tensor([0, 1, 2]),
    "key_cache": CACHE,
    "value_cache": CACHE.clone(),
}
PAGES = {k: UPDATE[k] for k in ("key", "value", "slot_mapping")}
PAGES["kv_pages"] = bf16(4, 16, 4, 64)
ARGUMENTS = {
    ops.paged_attention: DECODE,
    ops.ragged_paged_attention: RAGGED,
    ops.kv_cache_update: UPDATE,
    ops.kv_pages_update: PAGES,
}

SCALE = r"key_scale is for a cache of torch.float8_e4m3fn; for one of torch.bfloat16 it must be"
# By operator and error: its text, and the argument that is wrong.
WRONG: dict[tuple[Callable[..., object], type[Exception]], dict[str, dict[str, object]]] = {
    (ops.paged_attention, TypeError): {
        "0 (query): expected dtype F16, BF16 or F32 but got F64": {
            "query": zeros(2, 8, 64).double()
        },
        "query must be a tensor, but is None": {"query": None},
        "block_tables must be a tensor, but is None": {"block_tables": None},
        "1 (key_cache): expected dtype BF16 or F8E4M3FN but got F16": {
            "key_cache": OTHER,
            "value_cache": OTHER,
        },
        "2 (value_cache): expected dtype BF16 but got F16": {"value_cache": OTHER},
        "3 (block_tables): expected dtype S32 but got F32": {"block_tables": zeros(2, 3)},
        "4 (context_lens): expected dtype S32 but got S64": {"context_lens": LENGTHS.long()},
        "5 (alibi_slopes): expected dtype F32 but got F16": {"alibi_slopes": zeros(8).half()},
        "6 (sinks): expected dtype F32 but got BF16": {"sinks": bf16(8), "return_lse": True},
    },
    (ops.paged_attention, ValueError): {
        "0 (query): expected rank 3 [num_seqs, num_heads, head_dim] but got 2 ": {
            "query": bf16(2, 8)
        },
        "(query): expected num_heads to be a multiple of num_kv_heads, 2, but got 3": {
            "query": bf16(2, 3, 64)
        },
        "0 (query): expected num_heads to be at least 1 but got 0": {"query": bf16(2, 0, 64)},
        "1 (key_cache): expected dimension 3 to be 80 but got 64": {"query": bf16(2, 8, 80)},
        "0 (query): expected head_dim to be 64, 96, 128, 192 or 256 but got 80": {
            "query": bf16(2, 8, 80),
            "key_cache": bf16(4, 16, 2, 80),
            "value_cache": bf16(4, 16, 2, 80),
        },
        "2 (value_cache): expected dimension 0 to be 4 but got 2": {"value_cache": CACHE[:2]},
        "1 (key_cache): expected block_size to be 8 to 256 but got 7": {
            "key_cache": CACHE[:, :7],
            "value_cache": CACHE[:, :7],
        },
        "3 (block_tables): expected dimension 0 to be 2 but got 3": {"block_tables": s32(3, 3)},
        "4 (context_lens): expected dimension 0 to be 2 but got 3": {
            "context_lens": int32([1, 2, 3])
        },
        "5 (alibi_slopes): expected dimension 0 to be 8 but got 7": {"alibi_slopes": zeros(7)},
        "6 (sinks): expected dimension 0 to be 8 but got 2": {"sinks": zeros(2)},
        "scale must be from -1e12 to 1e12, but is nan": {"scale": float("nan")},
        "scale must be from -1e12 to 1e12, but is 1e+300": {"scale": 1e300},
        "sliding_window must be at least 1, or None, but is 0": {"sliding_window": 0},
        "soft_cap must be from 1e-12 to 1e12, or None, but is 0": {"soft_cap": 0.0},
        "soft_cap must be from 1e-12 to 1e12, or None, but is 1e-60": {"soft_cap": 1e-60},
        "soft_cap must be from 1e-12 to 1e12, or None, but is 1e+60": {"soft_cap": 1e60},
        SCALE: {"key_scale": 2.0},
        "value_scale must be from 1e-12 to 1e12, but is -1.0": {
            "value_scale": -1.0,
            "key_cache": CACHE.to(FP8),
            "value_cache": CACHE.to(FP8),
        },
    },
    (ops.ragged_paged_attention, TypeError): {
        "0 (q): expected dtype F16, BF16 or F32 but got F64": {"q": zeros(6, 8, 64).double()},
        "1 (kv_pages): expected dtype BF16 or F8E4M3FN but got F16": {"kv_pages": OTHER},
        "2 (kv_lens): expected dtype S32 but got S64": {"kv_lens": LENGTHS.long()},
        "7 (custom_mask): expected dtype S32 but got PRED": {
            "custom_mask": zeros(6, 8, dtype=torch.bool)
        },
    },
    (ops.ragged_paged_attention, ValueError): {
        "1 (kv_pages): expected dimension 3 to be 128 but got 64": {"q": bf16(6, 8, 128)},
        "1 (kv_pages): expected dimension 2 to be 2 * num_kv_heads but got 1": {
            "kv_pages": CACHE[:, :, :1]
        },
        "1 (kv_pages): expected page_size to be 8 to 256 but got 4": {"kv_pages": CACHE[:, :4]},
        "3 (page_indices): expected dimension 0 to be 2 but got 1": {"page_indices": int32([[1]])},
        "4 (cu_q_lens): expected dimension 0 to be 3 but got 2": {"cu_q_lens": LENGTHS},
        "5 (num_seqs): expected dimension 0 to be 1 but got 2": {"num_seqs": LENGTHS},
        "sm_scale must be from -1e12 to 1e12, but is inf": {"sm_scale": float("inf")},
        "mask_value must be None or at most -65504.0, so that": {"mask_value": -1.0},
        "mask_value must be None or at most": {"mask_value": float("nan")},
        "sliding_window must be at least 1, or None": {"sliding_window": -1},
        "soft_cap must be from 1e-12 to 1e12, or None": {"soft_cap": float("inf")},
        "6 (sinks): expected dimension 0 to be 8 but got 2": {"sinks": zeros(2)},
        "7 (custom_mask): expected dimension 0 to be 6 but got 5": {"custom_mask": s32(5, 1)},
        "7 (custom_mask): expected mask_words to be 1 to 64 but got 0": {"custom_mask": s32(6, 0)},
        "sliding_window must be None if causal is False, but is 3": {
            "causal": False,
            "sliding_window": 3,
        },
        "k_scale is for a cache of torch.float8_e4m3fn": {"k_scale": 2.0},
        "v_scale is for a cache of torch.float8_e4m3fn": {"v_scale": 0.5},
    },
    (ops.kv_cache_update, TypeError): {
        "0 (key): expected dtype F16, BF16 or F32 but got F64": {"key": zeros(3, 2, 64).double()},
        "key must be a tensor, but is None": {"key": None},
        "value_cache must be a tensor, but is None": {"value_cache": None},
        "1 (value): expected dtype BF16 but got F32": {"value": zeros(3, 2, 64)},
        "2 (slot_mapping): expected dtype S32 or S64 but got F32": {"slot_mapping": zeros(3)},
        "3 (key_cache): expected dtype BF16 or F8E4M3FN but got F16": {"key_cache": OTHER},
        "4 (value_cache): expected dtype BF16 but got F16": {"value_cache": OTHER},
    },
    (ops.kv_cache_update, ValueError): {
        "1 (value): expected dimension 0 to be 3 but got 4": {"value": bf16(4, 2, 64)},
        "2 (slot_mapping): expected dimension 0 to be 3 but got 2": {"slot_mapping": LENGTHS},
        "3 (key_cache): expected rank 4 [num_blocks, block_size, num_kv_heads, head_dim] but got": {
            "key_cache": CACHE[0]
        },
        "4 (value_cache): expected dimension 0 to be 4 but got 3": {"value_cache": CACHE[:3]},
        SCALE: {"key_scale": 0.5},
        "key_scale must be from 1e-12 to 1e12, but is 1e-60": {
            "key_scale": 1e-60,
            "key_cache": CACHE.to(FP8),
            "value_cache": CACHE.to(FP8),
        },
    },
    (ops.kv_pages_update, ValueError): {
        "3 (kv_pages): expected dimension 2 to be 4 but got 2": {"kv_pages": CACHE},
        "v_scale is for a cache of torch.float8_e4m3fn": {"v_scale": 0.5},
    },
    (ops.kv_pages_update, TypeError): {
        "3 (kv_pages): expected dtype BF16 or F8E4M3FN but got F16": {"kv_pages": OTHER}
    },
}
CASES = [(*call, change, text) for call, cases in WRONG.items() for text, change in cases.items()]


@pytest.mark.parametrize("place", ["cpu", "xla", "meta"])
@pytest.mark.parametrize(
    ("function", "error", "change", "text"),
    CASES,
    ids=[f"{case[0].__name__}-{'-'.join(case[2])}-{i}" for i, case in enumerate(CASES)],
)
def test_errors(
    function: Callable[..., object],
    error: type[Exception],
    change: dict[str, object],
    text: str,
    place: str,
) -> None:
    values = {
        name: value.to(place) if torch.is_tensor(value) else value
        for name, value in (ARGUMENTS[function] | change).items()
    }
    text = re.escape(f"operand {text}" if text[0].isdigit() else text)
    with pytest.raises(error, match=rf"xla_gpu::{function.__name__}(_with_lse)?: .*{text}"):
        function(**values)


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__name__)
def test_tensors_of_two_devices(function: Callable[..., object]) -> None:
    operator, arguments = f"xla_gpu::{function.__name__}", ARGUMENTS[function]
    for name in [name for name, value in arguments.items() if torch.is_tensor(value)][1:]:
        with pytest.raises(
            ValueError, match=rf"{operator}: {name} must be on the device of .*, cpu, but is on"
        ):
            function(**(arguments | {name: arguments[name].to("xla")}))
