"""benchmarks/paged_attention.py calls the kernels correctly, here their functions for the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path("benchmarks").resolve()))

import paged_attention
import paged_attention_cases as cases
from kernel_library import KernelLibrary
from torch.nn.attention import SDPBackend

FP8 = torch.float8_e4m3fn
CASES = [
    cases.decode(3, 100),
    cases.decode(2, 64, FP8),
    cases.prefill(3, 48),
    cases.Case("mixed", (40, 1, 7), (40, 33, 90)),
]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ours() -> paged_attention.Ours:
    return paged_attention.Ours(KernelLibrary(os.environ["PAGED_KERNELS"]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_near_the_reference(ours: paged_attention.Ours, case: cases.Case) -> None:
    inputs = cases.make_inputs(case, CPU)
    kernels = ours.attention(case)
    assert ("paged_attention" in kernels) == (case.kind == "decode")
    for bind in kernels.values():
        call, result = bind(case, inputs)
        with pytest.raises(AssertionError, match="not written"):
            cases.error(case, inputs, result())
        call()
        assert cases.error(case, inputs, result()) < 3e-3
        result().mul_(1.02)
        with pytest.raises(AssertionError, match="relative error"):
            cases.error(case, inputs, result())


def test_dense_copy() -> None:
    for case in CASES[0], CASES[2]:
        inputs = cases.make_inputs(case, CPU)
        call, result = cases.sdpa(case, inputs, SDPBackend.MATH)
        call()
        assert cases.error(case, inputs, result()) < 3e-3


def test_wrong_calls(ours: paged_attention.Ours) -> None:
    case = CASES[0]
    inputs = cases.make_inputs(case, CPU)
    inputs.kv_lens = inputs.kv_lens.long()
    with pytest.raises(TypeError, match=r"context_lens\): expected dtype S32 but got S64"):
        ours.paged(case, inputs)
    inputs = cases.make_inputs(case, CPU)
    inputs.cu_q_lens = torch.zeros(9, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"XlaGpuRaggedPagedAttention: .*cu_q_lens"):
        ours.ragged(case, inputs)
    with pytest.raises(ValueError, match="no kernel XlaGpuOther"):
        ours.library.bind("XlaGpuOther", {}, {})


def test_help() -> None:
    command = [sys.executable, "benchmarks/paged_attention.py", "--help"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "--only" in result.stdout
