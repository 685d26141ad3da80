"""Wrong calls of the operators on paged caches: each error names the argument."""

from collections.abc import Callable

import pytest
import torch
from testing.paged import FP8, int32

from torch_xla_ext import ops

BF16 = torch.bfloat16
CACHE = torch.zeros(4, 16, 2, 64, dtype=BF16)
OTHER = torch.zeros(4, 16, 2, 64, dtype=torch.float16)
LENGTHS = int32([5, 0])

DECODE = {
    "query": torch.zeros(2, 8, 64, dtype=BF16),
    "key_cache": CACHE,
    "value_cache": CACHE,
    "block_tables": torch.zeros(2, 3, dtype=torch.int32),
    "context_lens": LENGTHS,
    "scale": 0.125,
}
RAGGED = {
    "q": torch.zeros(6, 8, 64, dtype=BF16),
    "kv_pages": CACHE,
    "kv_lens": LENGTHS,
    "page_indices": torch.zeros(2, 3, dtype=torch.int32),
    "cu_q_lens": int32([0, 3, 5]),
    "num_seqs": int32([2]),
}
UPDATE = {
    "key": torch.zeros(3, 2, 64, dtype=BF16),
    "value": torch.zeros(3, 2, 64, dtype=BF16),
    "slot_mapping": torch.tensor([0, 1, 2]),
    "key_cache": CACHE,
    "value_cache": CACHE.clone(),
}
PAGES = {**{k: UPDATE[k] for k in ("key", "value", "slot_mapping")}, "kv_pages": CACHE}
PAGES["kv_pages"] = torch.zeros(4, 16, 4, 64, dtype=BF16)

SCALE = r"key_scale is for a cache of torch.float8_e4m3fn; for one of torch.bfloat16 it must be"
# (operator, its arguments, what is changed, the error, its text)
WRONG = [
    (ops.paged_attention, DECODE, change, error, text)
    for change, error, text in [
        (
            {"query": torch.zeros(2, 8, 64, dtype=torch.float64)},
            TypeError,
            r"operand 0 \(query\): expected dtype F16, BF16 or F32 but got F64",
        ),
        ({"query": None}, TypeError, "query must be a tensor, but is None"),
        ({"block_tables": None}, TypeError, "block_tables must be a tensor, but is None"),
        (
            {"query": torch.zeros(2, 8, dtype=BF16)},
            ValueError,
            r"operand 0 \(query\): expected rank 3 \[num_seqs, num_heads, head_dim\] but got 2 ",
        ),
        (
            {"query": torch.zeros(2, 3, 64, dtype=BF16)},
            ValueError,
            r"\(query\): expected num_heads to be a multiple of num_kv_heads, 2, but got 3",
        ),
        (
            {"query": torch.zeros(2, 0, 64, dtype=BF16)},
            ValueError,
            r"operand 0 \(query\): expected num_heads to be at least 1 but got 0",
        ),
        (
            {"query": torch.zeros(2, 8, 80, dtype=BF16)},
            ValueError,
            r"operand 1 \(key_cache\): expected dimension 3 to be 80 but got 64",
        ),
        (
            {
                "query": torch.zeros(2, 8, 80, dtype=BF16),
                "key_cache": torch.zeros(4, 16, 2, 80, dtype=BF16),
                "value_cache": torch.zeros(4, 16, 2, 80, dtype=BF16),
            },
            ValueError,
            r"operand 0 \(query\): expected head_dim to be 64, 96, 128, 192 or 256 but got 80",
        ),
        (
            {"key_cache": OTHER, "value_cache": OTHER},
            TypeError,
            r"operand 1 \(key_cache\): expected dtype BF16 or F8E4M3FN but got F16",
        ),
        (
            {"value_cache": OTHER},
            TypeError,
            r"operand 2 \(value_cache\): expected dtype BF16 but got F16",
        ),
        (
            {"value_cache": CACHE[:2]},
            ValueError,
            r"operand 2 \(value_cache\): expected dimension 0 to be 4 but got 2",
        ),
        (
            {"key_cache": CACHE[:, :7], "value_cache": CACHE[:, :7]},
            ValueError,
            r"operand 1 \(key_cache\): expected block_size to be 8 to 256 but got 7",
        ),
        (
            {"block_tables": torch.zeros(2, 3)},
            TypeError,
            r"operand 3 \(block_tables\): expected dtype S32 but got F32",
        ),
        (
            {"block_tables": torch.zeros(3, 3, dtype=torch.int32)},
            ValueError,
            r"operand 3 \(block_tables\): expected dimension 0 to be 2 but got 3",
        ),
        (
            {"context_lens": LENGTHS.long()},
            TypeError,
            r"operand 4 \(context_lens\): expected dtype S32 but got S64",
        ),
        (
            {"context_lens": int32([1, 2, 3])},
            ValueError,
            r"operand 4 \(context_lens\): expected dimension 0 to be 2 but got 3",
        ),
        (
            {"alibi_slopes": torch.zeros(7)},
            ValueError,
            r"operand 5 \(alibi_slopes\): expected dimension 0 to be 8 but got 7",
        ),
        (
            {"alibi_slopes": torch.zeros(8).half()},
            TypeError,
            r"operand 5 \(alibi_slopes\): expected dtype F32 but got F16",
        ),
        (
            {"sinks": torch.zeros(2)},
            ValueError,
            r"operand 6 \(sinks\): expected dimension 0 to be 8 but got 2",
        ),
        (
            {"sinks": torch.zeros(8, dtype=BF16), "return_lse": True},
            TypeError,
            r"operand 6 \(sinks\): expected dtype F32 but got BF16",
        ),
        ({"scale": float("nan")}, ValueError, "scale must be from -1e12 to 1e12, but is nan"),
        ({"scale": 1e300}, ValueError, r"scale must be from -1e12 to 1e12, but is 1e\+300"),
        ({"sliding_window": 0}, ValueError, "sliding_window must be at least 1, or None, but is 0"),
        ({"soft_cap": 0.0}, ValueError, "soft_cap must be from 1e-12 to 1e12, or None, but is 0"),
        ({"soft_cap": 1e-60}, ValueError, "soft_cap must be from 1e-12 to 1e12, or None, but is 1"),
        ({"soft_cap": 1e60}, ValueError, "soft_cap must be from 1e-12 to 1e12, or None, but is 1"),
        ({"key_scale": 2.0}, ValueError, SCALE),
        (
            {"value_scale": -1.0, "key_cache": CACHE.to(FP8), "value_cache": CACHE.to(FP8)},
            ValueError,
            "value_scale must be from 1e-12 to 1e12, but is -1.0",
        ),
    ]
]
WRONG += [
    (ops.ragged_paged_attention, RAGGED, change, error, text)
    for change, error, text in [
        (
            {"q": torch.zeros(6, 8, 64, dtype=torch.float64)},
            TypeError,
            r"operand 0 \(q\): expected dtype F16, BF16 or F32 but got F64",
        ),
        (
            {"q": torch.zeros(6, 8, 128, dtype=BF16)},
            ValueError,
            r"operand 1 \(kv_pages\): expected dimension 3 to be 128 but got 64",
        ),
        (
            {"kv_pages": CACHE[:, :, :1]},
            ValueError,
            r"operand 1 \(kv_pages\): expected dimension 2 to be 2 \* num_kv_heads but got 1",
        ),
        (
            {"kv_pages": CACHE[:, :4]},
            ValueError,
            r"operand 1 \(kv_pages\): expected page_size to be 8 to 256 but got 4",
        ),
        (
            {"kv_pages": OTHER},
            TypeError,
            r"operand 1 \(kv_pages\): expected dtype BF16 or F8E4M3FN but got F16",
        ),
        (
            {"kv_lens": LENGTHS.long()},
            TypeError,
            r"operand 2 \(kv_lens\): expected dtype S32 but got S64",
        ),
        (
            {"page_indices": int32([[1]])},
            ValueError,
            r"operand 3 \(page_indices\): expected dimension 0 to be 2 but got 1",
        ),
        (
            {"cu_q_lens": LENGTHS},
            ValueError,
            r"operand 4 \(cu_q_lens\): expected dimension 0 to be 3 but got 2",
        ),
        (
            {"num_seqs": LENGTHS},
            ValueError,
            r"operand 5 \(num_seqs\): expected dimension 0 to be 1 but got 2",
        ),
        ({"sm_scale": float("inf")}, ValueError, "sm_scale must be from -1e12 to 1e12, but is inf"),
        ({"mask_value": -1.0}, ValueError, "mask_value must be None or at most -65504.0, by which"),
        ({"mask_value": float("nan")}, ValueError, "mask_value must be None or at most"),
        ({"sliding_window": -1}, ValueError, "sliding_window must be at least 1, or None"),
        ({"soft_cap": float("inf")}, ValueError, "soft_cap must be from 1e-12 to 1e12, or None"),
        (
            {"sinks": torch.zeros(2)},
            ValueError,
            r"operand 6 \(sinks\): expected dimension 0 to be 8 but got 2",
        ),
        (
            {"custom_mask": torch.zeros(5, 1, dtype=torch.int32)},
            ValueError,
            r"operand 7 \(custom_mask\): expected dimension 0 to be 6 but got 5",
        ),
        (
            {"custom_mask": torch.zeros(6, 0, dtype=torch.int32)},
            ValueError,
            r"operand 7 \(custom_mask\): expected mask_words to be 1 to 64 but got 0",
        ),
        (
            {"custom_mask": torch.zeros(6, 8, dtype=torch.bool)},
            TypeError,
            r"operand 7 \(custom_mask\): expected dtype S32 but got PRED",
        ),
        (
            {"causal": False, "sliding_window": 3},
            ValueError,
            "sliding_window must be None if causal is False, but is 3",
        ),
        ({"k_scale": 2.0}, ValueError, "k_scale is for a cache of torch.float8_e4m3fn"),
        ({"v_scale": 0.5}, ValueError, "v_scale is for a cache of torch.float8_e4m3fn"),
    ]
]
WRONG += [
    (ops.kv_cache_update, UPDATE, change, error, text)
    for change, error, text in [
        (
            {"key": torch.zeros(3, 2, 64).double()},
            TypeError,
            r"operand 0 \(key\): expected dtype F16, BF16 or F32 but got F64",
        ),
        ({"key": None}, TypeError, "key must be a tensor, but is None"),
        ({"value_cache": None}, TypeError, "value_cache must be a tensor, but is None"),
        (
            {"value": torch.zeros(3, 2, 64)},
            TypeError,
            r"operand 1 \(value\): expected dtype BF16 but got F32",
        ),
        (
            {"value": torch.zeros(4, 2, 64, dtype=BF16)},
            ValueError,
            r"operand 1 \(value\): expected dimension 0 to be 3 but got 4",
        ),
        (
            {"slot_mapping": torch.zeros(3)},
            TypeError,
            r"operand 2 \(slot_mapping\): expected dtype S32 or S64 but got F32",
        ),
        (
            {"slot_mapping": LENGTHS},
            ValueError,
            r"operand 2 \(slot_mapping\): expected dimension 0 to be 3 but got 2",
        ),
        (
            {"key_cache": OTHER},
            TypeError,
            r"operand 3 \(key_cache\): expected dtype BF16 or F8E4M3FN but got F16",
        ),
        (
            {"value_cache": OTHER},
            TypeError,
            r"operand 4 \(value_cache\): expected dtype BF16 but got F16",
        ),
        (
            {"key_cache": CACHE[0]},
            ValueError,
            r"operand 3 \(key_cache\): expected rank 4 \[num_blocks, block_size, num_kv_heads, "
            r"head_dim\] but got 3 ",
        ),
        (
            {"value_cache": CACHE[:3]},
            ValueError,
            r"operand 4 \(value_cache\): expected dimension 0 to be 4 but got 3",
        ),
        ({"key_scale": 0.5}, ValueError, SCALE),
        (
            {"key_scale": 1e-60, "key_cache": CACHE.to(FP8), "value_cache": CACHE.to(FP8)},
            ValueError,
            "key_scale must be from 1e-12 to 1e12, but is 1e-60",
        ),
    ]
]
WRONG += [
    (ops.kv_pages_update, PAGES, change, error, text)
    for change, error, text in [
        (
            {"kv_pages": CACHE},
            ValueError,
            r"operand 3 \(kv_pages\): expected dimension 2 to be 4 but got 2",
        ),
        (
            {"kv_pages": OTHER},
            TypeError,
            r"operand 3 \(kv_pages\): expected dtype BF16 or F8E4M3FN but got F16",
        ),
        ({"v_scale": 0.5}, ValueError, "v_scale is for a cache of torch.float8_e4m3fn"),
    ]
]


@pytest.mark.parametrize("place", ["cpu", "xla", "meta"])
@pytest.mark.parametrize(
    ("function", "arguments", "change", "error", "text"),
    WRONG,
    ids=[f"{case[0].__name__}-{'-'.join(case[2])}-{i}" for i, case in enumerate(WRONG)],
)
def test_errors(
    function: Callable[..., object],
    arguments: dict[str, object],
    change: dict[str, object],
    error: type[Exception],
    text: str,
    place: str,
) -> None:
    values = {
        name: value.to(place) if torch.is_tensor(value) else value
        for name, value in (arguments | change).items()
    }
    with pytest.raises(error, match=rf"xla_gpu::{function.__name__}(_with_lse)?: .*{text}"):
        function(**values)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (ops.paged_attention, DECODE),
        (ops.ragged_paged_attention, RAGGED),
        (ops.kv_cache_update, UPDATE),
        (ops.kv_pages_update, PAGES),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tensors_of_two_devices(
    function: Callable[..., object], arguments: dict[str, object]
) -> None:
    operator = f"xla_gpu::{function.__name__}"
    for name in [name for name, value in arguments.items() if torch.is_tensor(value)][1:]:
        with pytest.raises(
            ValueError, match=rf"{operator}: {name} must be on the device of .*, cpu, but is on"
        ):
            function(**(arguments | {name: arguments[name].to("xla")}))
