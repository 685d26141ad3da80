"""Upstream's operator torch.ops.xla.ragged_paged_attention runs on a CPU and a GPU."""

import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.paged import Pages, assert_close, int32
from testing.xla import custom_call_lines
from torch_xla.experimental import custom_kernel

from torch_xla_ext.custom_kernel import install

BF16 = torch.bfloat16
OPTIONS = {"sm_scale": 0.125, "sliding_window": 15, "soft_cap": 3.0}


def batch() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    pages = Pages.random([33, 20], 2, 64, 16, BF16)
    data = int32(pages.lengths), pages.tables, int32([0, 5, 8]), int32([2])
    return torch.randn(8, 4, 64).to(BF16), pages.combined.float().nan_to_num(0).to(BF16), *data


def expected() -> torch.Tensor:
    q, kv_pages, *data = batch()
    return custom_kernel.ragged_paged_attention(
        q.float(), kv_pages.float(), *data, **OPTIONS, use_kernel=False
    ).double()


CALLS = {
    "operator": torch.ops.xla.ragged_paged_attention,
    "function": custom_kernel.ragged_paged_attention,
}


@pytest.mark.parametrize("function", CALLS.values(), ids=CALLS)
def test_calls_run_our_kernel(function: object) -> None:
    args = [tensor.to("xla") for tensor in batch()]
    tuning = {"num_kv_pages_per_block": 8, "num_queries_per_block": 16, "vmem_limit_bytes": 1 << 20}
    result = function(*args, **OPTIONS, **tuning)
    (line,) = custom_call_lines(result)
    assert 'custom_call_target="XlaGpuRaggedPagedAttention"' in line
    assert_close(result.cpu(), expected())


@pytest.mark.parametrize("function", CALLS.values(), ids=CALLS)
def test_tensors_of_the_cpu(function: object) -> None:
    """CPU tensors are computed; upstream's operator returns uninitialized memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(function(*batch(), **OPTIONS), expected())
        result = function(*batch(), **OPTIONS, use_kernel=False)
    torch.testing.assert_close(result.double(), expected(), rtol=5e-2, atol=5e-2)  # all in bfloat16


@pytest.mark.parametrize(
    ("backend", "device"),
    [("aot_eager", "cpu"), ("inductor", "cpu"), ("openxla", "cpu"), ("openxla", "xla")],
)
def test_compiled(backend: str, device: str) -> None:
    compiled = torch.compile(
        lambda *tensors: torch.ops.xla.ragged_paged_attention(*tensors, **OPTIONS),
        backend=backend,
        fullgraph=True,
    )
    with torch.no_grad():
        assert_close(compiled(*(tensor.to(device) for tensor in batch())).cpu(), expected())


def test_without_the_kernel_it_is_upstreams() -> None:
    args = [tensor.to("xla") for tensor in batch()]
    result = torch.ops.xla.ragged_paged_attention(*args, **OPTIONS, use_kernel=False)
    assert "XlaGpuRaggedPagedAttention" not in torch_xla._XLAC._get_xla_tensors_hlo([result])


def test_on_tpus_it_is_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(name: str) -> Callable[..., tuple]:
        return lambda *args, **options: (name, args, options)

    function = install._dispatching(call("upstream's"), call("ours"))
    tensor = torch.ones(1, device="xla")
    assert function(tensor, 3, scale=2.0) == ("ours", (tensor, 3), {"scale": 2.0})
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: "TPU")
    assert function(tensor, 3, scale=2.0) == ("upstream's", (tensor, 3), {"scale": 2.0})
    assert function(q=tensor) == ("upstream's", (), {"q": tensor})


def test_schema_begins_as_upstreams() -> None:
    def arguments(operator: object) -> list[tuple]:
        schema = operator.default._schema
        return [(a.name, str(a.type), a.default_value) for a in schema.arguments]

    ours = arguments(torch.ops.xla_gpu.ragged_paged_attention)
    theirs = arguments(torch.ops.xla.ragged_paged_attention)
    assert ours[:12] == theirs[:12]
    assert [name for name, _, _ in ours[12:]] == [
        "sinks",
        "causal",
        "custom_mask",
        "q_is_float8",
        "max_q_len",
    ]


def test_unsupported_calls_are_errors() -> None:
    args = [tensor.to("xla") for tensor in batch()]
    with pytest.raises(ValueError, match="mask_value must be None or at most -65504"):
        torch.ops.xla.ragged_paged_attention(*args, mask_value=-1.0)


@pytest.mark.parametrize("imports", ["torch_xla", "torch_xla.experimental.custom_kernel"])
def test_in_whatever_order_it_is_imported(imports: str) -> None:
    script = (
        f"import {imports}\n"
        "import torch_xla.experimental.custom_kernel as module\n"
        "from torch_xla_ext.custom_kernel import install\n"
        "function = module.ragged_paged_attention\n"
        "print(function.__code__.co_filename == install.__file__)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "True\n", result.stderr
