"""With TORCH_XLA_EXT_REPORT_OUT_OF_RANGE, kernels print pages and lengths out of range."""

import functools
import subprocess

import pytest
import torch_xla
from testing.scripts import run_script
from testing.xla import PLATFORM

REPORT = """
import torch, torch_xla
from torch_xla_ext import ops
def int32(values): return torch.tensor(values, dtype=torch.int32).to("xla")
cache = torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16).to("xla")
query = torch.zeros(2, 4, 64, dtype=torch.bfloat16).to("xla")
tables = int32([[1, 77], [0, 0]])
ops.paged_attention(query, cache, cache, tables, int32([20, -3]), 1.0).cpu()
ops.ragged_paged_attention(
    query, cache[:, :, :2], int32([20, 9999]), tables, int32([0, 1, 2]), int32([2])
).cpu()
key = torch.zeros(2, 2, 64, dtype=torch.bfloat16).to("xla")
caches = [cache.clone(), cache.clone()]
ops.kv_cache_update(key, key, torch.tensor([-1, 64]).to("xla"), *caches)
print(caches[0].cpu().sum().item())
"""


@functools.cache
def report(switch: str) -> subprocess.CompletedProcess[str]:
    result = run_script(REPORT, TORCH_XLA_EXT_REPORT_OUT_OF_RANGE=switch)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.parametrize("switch", ["0", "1"])
def test_report_of_out_of_range_values(switch: str) -> None:
    result = report(switch)
    texts = result.stdout + result.stderr  # a GPU's printf writes to standard output
    for number in ("77", "-3", "9999", "64"):
        lines = [line for line in texts.splitlines() if "XlaGpu" in line and number in line]
        assert bool(lines) == (switch == "1"), (number, texts)
    assert not [line for line in texts.splitlines() if "XlaGpuKv" in line and "-1" in line]


@pytest.mark.skipif(PLATFORM != "Host", reason="the texts are the Host's")
def test_texts_of_the_report() -> None:
    result = report("1")
    for text in (
        "XlaGpuPagedAttention: block_tables[0][1] is 77, which is not in [0, 4): its tokens take",
        "XlaGpuPagedAttention: context_lens[1] is -3, which is not in [0, 32]: clamped",
        "XlaGpuRaggedPagedAttention: kv_lens[1] is 9999, which is not in [0, 32]: clamped",
        "XlaGpuKvCacheUpdate: slot_mapping[1] is 64, which is not in [0, 64): skipped",
    ):
        assert text in result.stderr
    assert torch_xla.runtime.device_type() == "CPU"
