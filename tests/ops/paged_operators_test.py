"""The operators on paged caches: their debug switch, compilers and exports."""

import re
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.paged import Pages, int32, relative_error
from testing.xla import custom_call_lines
from torch_xla.stablehlo import exported_program_to_stablehlo

import torch_xla_ext
from torch_xla_ext import debug, ops

BF16 = torch.bfloat16


def decode_arguments(device: str = "cpu") -> list[object]:
    torch.manual_seed(2)
    pages = Pages.random([20, 5], 2, 64, 16, BF16)
    query = torch.randn(2, 8, 64).to(BF16)
    tensors = query, pages.keys, pages.values, pages.tables, int32(pages.lengths)
    return [*(tensor.to(device) for tensor in tensors), 0.125]


def ragged_arguments(device: str = "cpu") -> list[object]:
    torch.manual_seed(2)
    pages = Pages.random([20, 5], 2, 64, 16, BF16)
    tensors = torch.randn(8, 8, 64).to(BF16), pages.combined, int32(pages.lengths), pages.tables
    tensors = *tensors, int32([0, 3, 8]), int32([2])
    return [*(tensor.to(device) for tensor in tensors), 0.125]


def with_lse(function: Callable) -> Callable:
    """Makes one tensor of the attended values and the logarithms."""

    def call(*args: object, **options: object) -> torch.Tensor:
        attended, lse = function(*args, **options, return_lse=True)
        return torch.cat([attended, lse.unsqueeze(-1).to(attended.dtype)], dim=-1)

    return call


ATTENTION = {
    "paged_attention": (ops.paged_attention, decode_arguments),
    "ragged_paged_attention": (ops.ragged_paged_attention, ragged_arguments),
}
for_each_attention = pytest.mark.parametrize(
    ("function", "arguments"), ATTENTION.values(), ids=ATTENTION
)


@for_each_attention
def test_results_and_workspace(function: Callable, arguments: Callable) -> None:
    (line,) = custom_call_lines(function(*arguments("xla")))
    assert line.startswith("%custom-call = (bf16[")
    assert ", f32[" in line.partition("custom-call(")[0]
    result = function(*arguments())
    assert (result.shape, result.dtype) == (arguments()[0].shape, BF16)


@pytest.mark.parametrize(
    ("head_dim", "dtype", "tokens", "seqs", "context", "expected"),
    [
        (64, BF16, 8, 8, 256, 1),  # nothing to split
        # 512 counters, and 2 parts of 4 heads' sums for each of 64 blocks of 8 kv heads
        (64, BF16, 1, 1, 1 << 17, 512 + 64 * 2 * 8 * 4 * 68),
        # a decode step: 512 counters, and what paged_attention asks for
        (128, torch.float8_e4m3fn, 1, 1, 1024, 512 + 512 * (2 * 4 * 130 + 2) + 4),
        (128, torch.float8_e4m3fn, 2, 2, 1024, 512 + 512 * (2 * 4 * 130 + 2) + 4),
        (128, BF16, 1, 1, 1 << 17, 512 + 64 * 2 * 8 * 4 * 132),
        # two query tokens of each sequence: 512 counters, and the same for 8 rows
        (128, BF16, 8, 4, 512, 512 + 512 * (2 * 8 * 130 + 2) + 4),
        (128, BF16, 256, 64, 1 << 17, None),
        (256, BF16, 8192, 64, 1 << 17, None),
    ],
)
def test_workspace_of_ragged_paged_attention(
    head_dim: int, dtype: torch.dtype, tokens: int, seqs: int, context: int, expected: int | None
) -> None:
    """The workspace depends only on shapes, and is at most 32 MiB."""
    q = torch.zeros(tokens, 32, head_dim, dtype=BF16, device="xla")
    pages = torch.zeros(2, 16, 16, head_dim, dtype=torch.uint8, device="xla").to(dtype)
    tables = torch.zeros(seqs, context // 16, dtype=torch.int32, device="xla")
    lengths, rows, count = (
        torch.zeros(n, dtype=torch.int32, device="xla") for n in (seqs, seqs + 1, 1)
    )
    (line,) = custom_call_lines(
        ops.ragged_paged_attention(q, pages, lengths, tables, rows, count, 0.125)
    )
    size = int(re.search(r", f32\[(\d+)\]", line.partition("custom-call(")[0]).group(1))
    assert size == expected if expected else (1 << 20) < size <= (1 << 23)


@for_each_attention
@pytest.mark.parametrize(
    ("backend", "device"), [("inductor", "cpu"), ("aot_eager", "xla"), ("openxla", "xla")]
)
def test_compilers_with_lse(
    function: Callable, arguments: Callable, backend: str, device: str
) -> None:
    torch._dynamo.reset()
    sinks = torch.linspace(-2, 2, 8)
    call = with_lse(function)
    compiled = torch.compile(
        lambda sinks, *args: call(*args, sinks=sinks) * 2, backend=backend, fullgraph=True
    )
    result = compiled(sinks.to(device), *arguments(device)).cpu()
    assert relative_error(result, call(*arguments(), sinks=sinks).double() * 2) < 1e-2


@for_each_attention
def test_capture_with_lse(function: Callable, arguments: Callable) -> None:
    query, *rest = arguments("xla")
    sinks = torch.linspace(-2, 2, 8)
    call, on_device = with_lse(function), sinks.to("xla")
    captured = torch_xla_ext.capture(lambda query: call(query, *rest, sinks=on_device))
    torch_xla.sync()
    for factor in (1, -1, 3):
        result = captured(query * factor)
        torch_xla.sync()
        expected = call(query.cpu() * factor, *arguments()[1:], sinks=sinks)
        assert relative_error(result, expected.double()) < 1e-2


@for_each_attention
def test_opcheck_with_lse(function: Callable, arguments: Callable) -> None:
    operator = getattr(torch.ops.xla_gpu, function.__name__ + "_with_lse").default
    results = torch.library.opcheck(operator, arguments())
    assert set(results.values()) == {"SUCCESS"}


@for_each_attention
def test_export_and_stablehlo(function: Callable, arguments: Callable) -> None:
    class Model(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return function(*tensors, 0.125)

    *tensors, _ = arguments()
    program = torch.export.export(Model(), tuple(tensors))
    assert torch.equal(program.module()(*tensors), Model()(*tensors))
    exported = exported_program_to_stablehlo(program)
    assert "stablehlo.custom_call @XlaGpu" in exported.get_stablehlo_text()
    result = exported(*(tensor.to("xla") for tensor in tensors)).cpu()
    assert relative_error(result, Model()(*tensors).double()) < 1e-2


@for_each_attention
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 4, "soft_cap": 2.0},
        {"sinks": torch.linspace(-2, 2, 8)},
        {"sinks": torch.linspace(-2, 2, 8), "sliding_window": 4},
        {"causal": False},
        {"custom_mask": torch.arange(8, dtype=torch.int32).unsqueeze(1)},
    ],
    ids=str,
)
def test_reference_implementation_with_lse(
    function: Callable, arguments: Callable, options: dict[str, object]
) -> None:
    of_both = {"sinks", "sliding_window", "soft_cap"}
    if function is ops.paged_attention and not of_both.issuperset(options):
        pytest.skip("an option of ragged_paged_attention")
    call = with_lse(function)
    expected = call(*arguments(), **options)
    moved = {k: v.to("xla") if torch.is_tensor(v) else v for k, v in options.items()}
    with debug.use_reference("XlaGpuPagedAttention", "XlaGpuRaggedPagedAttention"):
        result = call(*arguments("xla"), **moved)
    assert custom_call_lines(result) == []
    finite = expected.isfinite()
    assert torch.equal(result.cpu().isfinite(), finite)
    assert relative_error(result.cpu()[finite], expected[finite].double()) < 1e-2


@for_each_attention
def test_no_derivative(function: Callable, arguments: Callable) -> None:
    query, *rest = arguments()
    result = function(query.requires_grad_(), *rest)
    with pytest.raises(
        NotImplementedError, match=f"xla_gpu::{function.__name__} has no derivative"
    ):
        result.sum().backward()


def test_debug_shows_the_parameters() -> None:
    arguments = decode_arguments("xla")
    (call,) = debug.custom_calls(ops.paged_attention(*arguments, sliding_window=7, soft_cap=2.0))
    assert call.payload == (
        "{absent_operands = 96 : i64, key_scale = 1.0 : f64, report_out_of_range = false, "
        "scale = 0.125 : f64, sliding_window = 7 : i64, soft_cap = 2.0 : f64, "
        "value_scale = 1.0 : f64}"
    )  # operands 5 and 6, the slopes and sinks, are absent
