"""fused_experts against a loop over the tokens' experts, on the CPU or a GPU."""

import doctest
from collections.abc import Callable
from functools import partial

import pytest
import torch
from testing import mxfp4
from testing.xla import custom_call_lines

import torch_xla_ext
from torch_xla_ext.ops import choose_experts, fused_experts, gather_rows, rows_of_groups

HIDDEN, INNER, EXPERTS, TOP_K, TOKENS = 24, 40, 6, 2, 11
WIDE = 256  # hidden and inner, of weights in fp8
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}
for_each_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def moe(dtype: torch.dtype, bias: bool = False) -> dict[str, torch.Tensor]:
    weights, experts = choose_experts(torch.randn(TOKENS, EXPERTS), TOP_K)
    tensors = {
        "x": torch.randn(TOKENS, HIDDEN).to(dtype),
        "weights": weights,
        "experts": experts,
        "gate_up": torch.randn(EXPERTS, 2 * INNER, HIDDEN).to(dtype) / 5,
        "down": torch.randn(EXPERTS, HIDDEN, INNER).to(dtype) / 5,
    }
    if bias:
        tensors["gate_up_bias"] = torch.randn(EXPERTS, 2 * INNER).to(dtype)
        tensors["down_bias"] = torch.randn(EXPERTS, HIDDEN).to(dtype)
    return tensors


def reference(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the layer in float64, with SiLU."""
    rows = []
    for token, row in enumerate(x.double()):
        total = torch.zeros(x.shape[1], dtype=torch.float64)
        for weight, expert in zip(weights[token], experts[token].tolist(), strict=True):
            if expert == len(gate_up):
                continue
            both = gate_up[expert].double() @ row
            if gate_up_bias is not None:
                both = both + gate_up_bias[expert].double()
            gate, up = both.chunk(2)
            result = down[expert].double() @ (torch.nn.functional.silu(gate) * up)
            if down_bias is not None:
                result = result + down_bias[expert].double()
            total = total + weight.double() * result
        rows.append(total)
    return torch.stack(rows)


def assert_near(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    difference = (result.detach().cpu().double() - expected).abs().max()
    assert difference <= TOLERANCES[dtype] * expected.abs().max()


def to(device: torch.device, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@for_each_dtype
def test_result(device: torch.device, dtype: torch.dtype, bias: bool) -> None:
    tensors = moe(dtype, bias)
    result = fused_experts(**to(device, tensors))
    assert (result.dtype, result.shape) == (dtype, (TOKENS, HIDDEN))
    assert_near(result, reference(**tensors), dtype)


@pytest.mark.parametrize("recorded", [False, True], ids=["kernel", "recorded"])
def test_tokens_without_experts(device: torch.device, recorded: bool) -> None:
    tensors = moe(torch.float32, bias=True)
    tensors["experts"][::3], tensors["weights"][::3] = EXPERTS, 0
    expected = reference(**tensors)
    tensors = to(device, tensors)
    leaf = tensors.pop("x").requires_grad_(recorded)
    result = fused_experts(leaf, **tensors)
    assert_near(result, expected, torch.float32)
    assert not expected[::3].any()
    if recorded:
        result.sum().backward()
        assert leaf.grad.cpu().any(1).tolist() == [row % 3 > 0 for row in range(TOKENS)]


@pytest.mark.parametrize("gate_rows", [1, 8, 20])
def test_alternating_rows_of_gate_and_up(device: torch.device, gate_rows: int) -> None:
    tensors = moe(torch.float32, bias=True)
    expected = reference(**tensors)
    for name in ("gate_up", "gate_up_bias"):
        halves = tensors[name].unflatten(1, (2, INNER // gate_rows, gate_rows))
        tensors[name] = halves.transpose(1, 2).flatten(1, 3).contiguous()
    result = fused_experts(**to(device, tensors), gate_rows=gate_rows)
    assert_near(result, expected, torch.float32)


def test_transposed(device: torch.device) -> None:
    tensors = moe(torch.float32, bias=True)
    expected = reference(**tensors)
    for name in ("gate_up", "down"):
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    assert_near(fused_experts(**to(device, tensors), transposed=True), expected, torch.float32)


def test_activations(device: torch.device) -> None:
    tensors = to(device, moe(torch.float32))
    silu = fused_experts(**tensors)
    own = fused_experts(**tensors, activation=lambda gate, up: torch.nn.functional.silu(gate) * up)
    assert torch.equal(own.cpu(), silu.cpu())
    for name in ("gelu", "gelu_tanh", "swigluoai"):
        assert not torch.allclose(fused_experts(**tensors, activation=name).cpu(), silu.cpu())
    with pytest.raises(ValueError, match=r"expected an activation of silu, gelu, .* got 'relu2'"):
        fused_experts(**tensors, activation="relu2")


@for_each_dtype
def test_gradients(device: torch.device, dtype: torch.dtype) -> None:
    tensors = moe(dtype, bias=True)
    grad = torch.randn(TOKENS, HIDDEN)
    mine, right = to(device, tensors), dict(tensors)
    for values in (mine, right):
        for name, tensor in values.items():
            if tensor.is_floating_point():
                values[name] = tensor.detach().clone().requires_grad_()
    result = fused_experts(**mine)
    assert_near(result, reference(**tensors), dtype)
    (result * grad.to(result)).sum().backward()
    (reference(**right) * grad).sum().backward()
    for name, tensor in right.items():
        if tensor.is_floating_point():
            assert_near(mine[name].grad, tensor.grad.double(), dtype)


def test_autocast(device: torch.device) -> None:
    tensors = moe(torch.float32, bias=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        result = fused_experts(**to(device, tensors))
    assert result.dtype == torch.bfloat16
    assert_near(result, reference(**tensors), torch.bfloat16)


FP8, LARGEST = torch.float8_e4m3fn, 448
# How many scales `gate_up` and `down` have, by kind.
SCALES = {
    "tensor": ((1, 1), (1, 1)),
    "channels": ((2 * WIDE, 1), (WIDE, 1)),
    "blocks": ((4, 2), (2, 2)),
}


def in_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return x rounded to fp8 with this scale, as numbers again."""
    return (x / scale).clamp(-LARGEST, LARGEST).to(FP8).double() * scale


def scaled_moe(kind: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return arguments with weights in fp8, and the same arguments with these weights
    dequantized."""
    tensors = moe(torch.float32)
    tensors["x"] = torch.randn(TOKENS, WIDE)
    plain = dict(tensors)
    for name, rows, (n, k) in zip(("gate_up", "down"), (2 * WIDE, WIDE), SCALES[kind], strict=True):
        tensors[name] = (torch.randn(EXPERTS, rows, WIDE) * 60).to(FP8)
        scale = (torch.rand(EXPERTS, n, k) + 0.5) / 600
        tensors[f"{name}_scale"] = scale
        of_each = scale.repeat_interleave(rows // n, 1).repeat_interleave(WIDE // k, 2)
        plain[name] = tensors[name].double() * of_each
    return tensors, plain


Rounding = Callable[[torch.Tensor], torch.Tensor]


def of_blocks(count: int) -> Rounding:
    """Return a function that rounds rows to fp8, with a scale for each block of a row."""

    def rounded(row: torch.Tensor) -> torch.Tensor:
        blocks = row.unflatten(0, (count, -1))
        return in_fp8(blocks, blocks.abs().amax(1, keepdim=True) / LARGEST).flatten()

    return rounded


def rounded_reference(
    tensors: dict[str, torch.Tensor], of_gate_up: Rounding, of_down: Rounding
) -> torch.Tensor:
    """Compute `reference` with the inputs of both products rounded."""
    rows = []
    for token, row in enumerate(tensors["x"].double()):
        total = torch.zeros(WIDE, dtype=torch.float64)
        chosen = zip(tensors["weights"][token], tensors["experts"][token], strict=True)
        for weight, expert in chosen:
            gate, up = (tensors["gate_up"][expert] @ of_gate_up(row)).chunk(2)
            inner = of_down(torch.nn.functional.silu(gate) * up)
            total = total + weight.double() * (tensors["down"][expert] @ inner)
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("kind", SCALES)
def test_weights_in_fp8(device: torch.device, kind: str) -> None:
    """Except for the rounding of weights and inputs, results hardly differ from the reference's."""
    tensors, plain = scaled_moe(kind)
    result = fused_experts(**to(device, tensors)).cpu().double()
    rounding = of_blocks(SCALES[kind][0][1])
    expected = rounded_reference(plain, rounding, rounding)
    # The reference is in float64: in float32 a few numbers are rounded to the other side.
    assert (result - expected).norm() < 2e-3 * expected.norm()
    unrounded = reference(**plain)
    assert 1e-2 * expected.norm() < (result - unrounded).norm() < 5e-2 * expected.norm()


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_weights_in_mxfp4(device: torch.device, bias: bool) -> None:
    """Rows of gate and up alternate, as in gpt-oss."""
    tensors = moe(torch.float32, bias)
    tensors["x"] = torch.randn(TOKENS, 64)
    shapes = {"gate_up": (2 * 32, 64), "down": (64, 32)}
    plain = dict(tensors)
    for name, (n, k) in shapes.items():
        packed = mxfp4.quantize(torch.randn(EXPERTS, n, k) / 5)
        tensors[name], tensors[f"{name}_scale"] = packed
        plain[name] = mxfp4.values(*packed)
        if bias:
            plain[f"{name}_bias"] = tensors[f"{name}_bias"] = torch.randn(EXPERTS, n)
    halves = [plain["gate_up"]] + ([plain["gate_up_bias"]] if bias else [])
    halves = [half.unflatten(1, (32, 2)).transpose(1, 2).flatten(1, 2) for half in halves]
    plain |= dict(zip(("gate_up", "gate_up_bias"), halves, strict=False))
    result = fused_experts(**to(device, tensors), gate_rows=1)
    assert_near(result, reference(**plain), torch.float32)


def test_scales_of_inputs(device: torch.device) -> None:
    tensors, plain = scaled_moe("channels")
    scales = torch.tensor(0.02), torch.tensor(0.05)
    result = fused_experts(**to(device, tensors), input_scales=tuple(s.to(device) for s in scales))
    expected = rounded_reference(plain, *(partial(in_fp8, scale=scale) for scale in scales))
    assert (result.cpu() - expected).norm() < 2e-3 * expected.norm()


def test_scales_that_are_missing(device: torch.device) -> None:
    tensors, _ = scaled_moe("tensor")
    del tensors["down_scale"]
    with pytest.raises(ValueError, match="expected scales of both weights"):
        fused_experts(**to(device, tensors))


def test_captured(device: torch.device) -> None:
    """One program serves all choices of the router."""
    tensors = moe(torch.float32)
    placed = to(device, tensors)
    step = torch_xla_ext.capture(
        lambda x, weights, experts: fused_experts(
            x, weights, experts, placed["gate_up"], placed["down"]
        )
    )
    for _ in range(3):
        weights, experts = choose_experts(torch.randn(TOKENS, EXPERTS), TOP_K)
        result = step(placed["x"], weights.to(device), experts.to(device))
        expected = reference(**(tensors | {"weights": weights, "experts": experts}))
        assert_near(result, expected, torch.float32)


def test_calls(device: torch.device) -> None:
    """The program has three calls; XLA compiles the other operations itself."""
    if device.type != "xla":
        pytest.skip("a program of XLA's")
    lines = custom_call_lines(fused_experts(**to(device, moe(torch.bfloat16))))
    targets = sorted(line.split('custom_call_target="')[1].split('"')[0] for line in lines)
    assert targets == ["XlaGpuGroupRows", "XlaGpuGroupedLinear", "XlaGpuGroupedLinearSum"]


def test_compiled(device: torch.device) -> None:
    tensors = moe(torch.float32)
    compiled = torch.compile(fused_experts, backend="openxla")
    placed = to(device, tensors)
    assert_near(compiled(**placed), reference(**tensors), torch.float32)
    leaf = placed["gate_up"].requires_grad_()
    compiled(**placed).sum().backward()
    right = tensors | {"gate_up": tensors["gate_up"].clone().requires_grad_()}
    reference(**right).sum().backward()
    assert_near(leaf.grad, right["gate_up"].grad.double(), torch.float32)


@pytest.mark.parametrize("function", [gather_rows, rows_of_groups])
def test_the_documented_example(function: Callable) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(
        function, globs={"torch": torch, function.__name__: function}
    )
    assert doctest.DocTestRunner().run(example).failed == 0
    assert len(example.examples) > 1
