"""A step's packed batch equals the batch of a loop over its tokens."""

import types

import numpy as np
import pytest
import torch
import torch_xla
from vllm_xla_gpu.batch import (
    KNOWN,
    NO_ADAPTER,
    UNUSED_SLOT,
    Batch,
    BatchShape,
    decode_sizes,
    pack,
    pack_empty,
    step_sizes,
)
from vllm_xla_gpu.compile_options import step_options

PAGE_SIZE = 8
SHAPE = BatchShape(num_tokens=32, num_seqs=6, pages_per_seq=5)
# For each sequence: the number of tokens in the cache, and in the step.
COMPUTED, NEW = np.array([0, 13, 39, 8]), np.array([9, 1, 1, 12])
# For each sequence: the number of tokens that the host knows, and its row in the previous step.
TOKENS, ROWS = np.array([9, 13, 39, 30]), np.array([KNOWN, 4, 0, 2])


def _requests() -> types.SimpleNamespace:
    generator = np.random.default_rng(0)
    pages = generator.permutation(30).astype(np.int32).reshape(6, 5)
    return types.SimpleNamespace(
        num_computed_tokens_cpu=np.append(COMPUTED, [3, 3]),
        num_tokens=np.append(TOKENS, [7, 7]),
        token_ids_cpu=generator.integers(1, 500, (6, 40), dtype=np.int32),
        block_table=[types.SimpleNamespace(get_numpy_array=lambda: pages)],
    )


def test_batch() -> None:
    requests = _requests()
    pages = requests.block_table[0].get_numpy_array()
    adapters = np.array([1, NO_ADAPTER, 0, 2])
    packed = pack(SHAPE, requests, NEW, PAGE_SIZE, ROWS, adapters)
    on_device = Batch.unpack(torch.from_numpy(packed).to(torch_xla.device()), SHAPE)
    fields = vars(on_device)
    assert fields.pop("max_q_len") is None
    batch = {name: value.tolist() for name, value in fields.items()}
    expected: dict[str, list[int]] = {
        name: [] for name in ("input_ids", "positions", "slots", "adapters")
    }
    last_tokens = []
    for i in range(len(NEW)):
        for position in range(COMPUTED[i], COMPUTED[i] + NEW[i]):
            expected["input_ids"].append(requests.token_ids_cpu[i, position])
            expected["positions"].append(position)
            expected["adapters"].append(adapters[i])
            page = pages[i, position // PAGE_SIZE]
            expected["slots"].append(page * PAGE_SIZE + position % PAGE_SIZE)
        last_tokens.append(len(expected["slots"]) - 1)
    count = len(expected["slots"])
    for name, values in expected.items():
        assert batch[name][:count] == values
    assert batch["slots"][count:] == [UNUSED_SLOT] * (32 - count)
    assert batch["adapters"][count:] == [NO_ADAPTER] * (32 - count)
    previous = [KNOWN] * 32
    previous[9], previous[10] = 4, 0
    assert batch["previous"] == previous
    assert batch["page_indices"][:4] == pages[:4].tolist()
    assert batch["kv_lens"][:4] == [9, 14, 40, 20]
    assert batch["cu_q_lens"] == [0, 9, 10, 11, 23, 23, 23]
    assert batch["num_seqs"] == [4]
    assert batch["last_tokens"][:4] == last_tokens


def test_token_that_nobody_has() -> None:
    with pytest.raises(RuntimeError, match="neither known nor computed"):
        pack(SHAPE, _requests(), NEW, PAGE_SIZE, np.full(4, KNOWN))


def test_empty_batch_writes_nothing() -> None:
    batch = Batch.unpack(pack_empty(SHAPE), SHAPE)
    assert (batch.slots == UNUSED_SLOT).all()
    assert (batch.previous == KNOWN).all()
    assert (batch.adapters == NO_ADAPTER).all()
    assert batch.num_seqs.tolist() == [1]
    assert batch.kv_lens[0] == 1
    assert batch.cu_q_lens.tolist() == [0, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("sizes", "num_seqs", "added"),
    [
        ([16, 32, 64], 8, []),
        ([128, 256, 512, 1024], 256, [288, 384, 576, 640, 768, 896]),
        ([1024, 2048, 4096, 8192], 256, [1152, 1280, 1536, 1792, 2304, 3072]),
        ([256, 512, 1024], 512, [576, 640, 768, 896]),
        ([256, 512, 768, 1024], 8, [288, 384]),  # a gap of 256
    ],
)
def test_sizes_between_powers_of_two(sizes: list[int], num_seqs: int, added: list[int]) -> None:
    assert step_sizes(sizes, num_seqs) == sorted(sizes + added)


@pytest.mark.parametrize(
    ("num_tokens", "is_fp8", "num_devices", "flags", "expected"),
    [
        (256, False, 1, "", ()),
        (288, False, 1, "", ("xla_gpu_enable_triton_gemm",)),
        (16, True, 1, "", ("xla_gpu_enable_triton_gemm",)),
        (288, True, 1, "", ("xla_gpu_enable_triton_gemm",)),
        (288, True, 1, "--a=1 --xla_gpu_enable_triton_gemm=true", ()),
        (256, False, 2, "", ("xla_gpu_enable_command_buffer",)),
        (256, False, 2, "--xla_gpu_enable_command_buffer=", ()),
    ],
)
def test_options_of_steps(
    num_tokens: int,
    is_fp8: bool,
    num_devices: int,
    flags: str,
    expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    with step_options(num_tokens, is_fp8, num_devices):
        found = torch_xla._XLAC._xla_compile_options()
    names = ("xla_gpu_enable_triton_gemm", "xla_gpu_enable_command_buffer")
    assert tuple(name for name in names if name.encode() in found) == expected
    assert b"rematerialization" in found


def test_sizes_with_one_token_a_sequence() -> None:
    assert decode_sizes([16, 32, 64, 128, 256], num_seqs=256) == [1, 16, 32, 64]
    assert decode_sizes([16, 32, 64, 128], num_seqs=32) == [1, 16, 32]
    assert decode_sizes([16], num_seqs=16) == []  # prompts need a program, too
