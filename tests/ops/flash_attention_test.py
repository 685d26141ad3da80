"""torch.ops.xla.flash_attention with cuDNN: its calls, when it is chosen, and its numbers.

On the CPU, which has no cuDNN, torch's operators replace its calls.
"""

import json
import re

import pytest
import torch
import torch_xla
import torch_xla.utils.checkpoint
from testing import cudnn
from testing.xla import custom_call_lines, hlo
from torch_xla.experimental import custom_kernel, eager_mode_context

import torch_xla_ext

FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
TARGETS = (FORWARD, BACKWARD)
SHAPE = (2, 3, 64, 32)
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: "CUDA")


def inputs(
    dtype: torch.dtype = torch.bfloat16,
    q_shape: tuple[int, ...] = SHAPE,
    kv_seq_len: int | None = None,
) -> list[torch.Tensor]:
    torch.manual_seed(1)
    kv_shape = (*q_shape[:2], kv_seq_len or q_shape[2], q_shape[3])
    return [torch.randn(shape).to(dtype) for shape in (q_shape, kv_shape, kv_shape, q_shape)]


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """The expected result in float64; for a query that sees no key, the mean of the values."""
    logits = q.double() @ k.double().mT * scale
    if visible is not None:
        logits = logits.masked_fill(~visible, -1e300)
    return logits.softmax(-1) @ v.double()


def tril(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril()


def same(q_ids: torch.Tensor, kv_ids: torch.Tensor) -> torch.Tensor:
    return (q_ids[:, :, None] == kv_ids[:, None, :])[:, None]


def assert_close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """The limit, relative to the largest number, is far below the error of a wrong mask."""
    error = (actual.cpu().double() - wanted).abs().max() / wanted.abs().max()
    assert error < TOLERANCE[actual.dtype], error


def payload(line: str) -> dict:
    config, _ = json.JSONDecoder().raw_decode(line.partition("backend_config=")[2])
    return config["cudnn_fmha_backend_config"]


def test_the_forward_call() -> None:
    """The call equals JAX's: payload, and operands and results [batch, sequence, heads, width]."""
    q, k, v, _ = (tensor.to("xla") for tensor in inputs(torch.float16, kv_seq_len=128))
    result = custom_kernel.flash_attention(q, k, v, True, sm_scale=0.5)
    (line,) = custom_call_lines(result)
    assert f'custom_call_target="{FORWARD}"' in line
    assert (
        "(f16[2,3,64,32]{3,1,2,0}, f32[2,3,64]{2,1,0}, u8[0]{0}) custom-call("
        "f16[2,64,3,32]{" in line
    )
    assert (
        "operand_layout_constraints={f16[2,64,3,32]{3,2,1,0}, f16[2,128,3,32]{3,2,1,0}, "
        "f16[2,128,3,32]{3,2,1,0}}" in line
    )
    config = payload(line)
    assert (config["fmha_scale"], config["mask_type"]) == (0.5, "CAUSAL")
    assert config["is_flash_attention"] is True
    logits = config["intermediate_tensor_shape"]
    assert (logits["element_type"], logits["dimensions"]) == ("F16", ["2", "3", "64", "128"])
    assert config["bmm2_dot_dimension_numbers"] == {
        "lhs_contracting_dimensions": ["3"],
        "rhs_contracting_dimensions": ["1"],
        "lhs_batch_dimensions": ["0", "1"],
        "rhs_batch_dimensions": ["0", "2"],
    }
    assert "[2,3,64,128]" not in hlo(result).replace(line, "")


def test_the_backward_call() -> None:
    q, k, v, grad = (tensor.to("xla") for tensor in inputs())
    q.requires_grad_()
    torch.ops.xla.flash_attention(q, k, v).backward(grad)
    lines = custom_call_lines(q.grad)
    assert [re.search('custom_call_target="([^"]*)"', line)[1] for line in lines] == [
        FORWARD,
        BACKWARD,
    ]
    result, array = "bf16[2,3,64,32]{3,1,2,0}", "bf16[2,64,3,32]{3,2,1,0}"
    results = f"({result}, {result}, {result}, u8[0]{{0}}) custom-call("
    operands = [array, array, array, "f32[2,3,64]{2,1,0}", array, array]
    assert results in lines[1]
    assert "operand_layout_constraints={" + ", ".join(operands) + "}" in lines[1]
    config = payload(lines[1])
    assert config["mask_type"] == "NO_MASK"
    dots = {
        name: (dots["lhs_contracting_dimensions"], dots["rhs_contracting_dimensions"])
        for name, dots in config.items()
        if name.endswith("_dot_dimension_numbers")
    }
    assert dots == {
        "bmm1_grad_gemm1_dot_dimension_numbers": (["2"], ["1"]),
        "bmm1_grad_gemm2_dot_dimension_numbers": (["3"], ["1"]),
        "bmm2_grad_gemm1_dot_dimension_numbers": (["2"], ["1"]),
        "bmm2_grad_gemm2_dot_dimension_numbers": (["3"], ["3"]),
    }


OTHERS = {
    "float32": (inputs(torch.float32), {}),
    "head_dim 264": (inputs(q_shape=(1, 2, 16, 264)), {}),
    "head_dim 20": (inputs(q_shape=(1, 2, 16, 20)), {}),
    "no batch": ([tensor[0] for tensor in inputs()], {}),
    "bias": (inputs(), {"ab": torch.zeros(2, 3, 64, 64)}),
    "segments": (
        inputs(),
        dict.fromkeys(("q_segment_ids", "kv_segment_ids"), torch.zeros(2, 64, dtype=torch.int32)),
    ),
    "no query": (inputs(q_shape=(2, 3, 0, 32), kv_seq_len=8), {}),
}


@pytest.mark.parametrize(("tensors", "options"), OTHERS.values(), ids=OTHERS)
def test_calls_that_torchs_operators_compute(tensors: list[torch.Tensor], options: dict) -> None:
    args = [tensor.to("xla") for tensor in tensors[:3]]
    result = custom_kernel.flash_attention(
        *args, **{name: tensor.to("xla") for name, tensor in options.items()}
    )
    assert custom_call_lines(result) == []
    wanted = expected(*tensors[:3], None, 1.0)
    torch.testing.assert_close(result.cpu().double(), wanted, rtol=2e-2, atol=2e-2)


def test_mixed_dtypes_are_torchs() -> None:
    q, k, v, _ = (tensor.to("xla") for tensor in inputs())
    assert custom_call_lines(torch.ops.xla.flash_attention(q.half(), k, v)) == []


def test_on_the_cpu_it_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: "CPU")
    q, k, v, _ = (tensor.to("xla") for tensor in inputs())
    assert custom_call_lines(torch.ops.xla.flash_attention(q, k, v)) == []


SEGMENTS = {
    "none": None,
    "own": lambda rows, columns: (torch.arange(rows) // 10, torch.arange(columns) // 10),
    # The first queries see no keys.
    "padded": lambda rows, columns: (torch.arange(rows).ge(5).int(), torch.ones(columns).int()),
    # Only keys behind the diagonal may be seen, so causal queries see none.
    "late": lambda rows, columns: (torch.zeros(rows).int(), torch.arange(columns).lt(9).int()),
}
LENGTHS = {"square": (64, 64), "wide": (64, 192), "tall": (192, 64)}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("segments", SEGMENTS.values(), ids=SEGMENTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(64, torch.bfloat16), (128, torch.float16)], ids=str
)
def test_numbers_and_gradients(
    head_dim: int, dtype: torch.dtype, causal: bool, segments: object, lengths: tuple[int, int]
) -> None:
    tensors = inputs(dtype, (2, 3, lengths[0], head_dim), lengths[1])
    scale = head_dim**-0.5
    visible, ids = None, ()
    if causal:
        visible = tril(*lengths)
    if segments is not None:
        ids = tuple(each.int().expand(2, -1) for each in segments(*lengths))
        visible = same(*ids) if visible is None else visible & same(*ids)
    q, k, v, grad = (tensor.to("xla") for tensor in tensors)
    wanted = [tensor.double().requires_grad_() for tensor in tensors[:3]]
    expected(*wanted, visible, scale).backward(tensors[3].double())
    with cudnn.computing(TARGETS):
        args = [tensor.requires_grad_() for tensor in (q, k, v)]
        given = [each.to("xla") for each in ids] or [None, None]
        result = custom_kernel.flash_attention(*args, causal, *given, sm_scale=scale)
        result.backward(grad)
        torch_xla.sync()
    assert_close(result.detach(), expected(*wanted, visible, scale).detach())
    for arg, other in zip(args, wanted, strict=True):
        assert_close(arg.grad, other.grad)


WAYS = ["openxla", "capture", "eager", "operator", "checkpoint"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way(way: str) -> None:
    tensors = inputs()
    q, k, v, _ = (tensor.to("xla") for tensor in tensors)
    wanted = expected(*tensors[:3], tril(64, 64), 0.2)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return custom_kernel.flash_attention(q, k, v, True, sm_scale=0.2)

    with cudnn.computing(TARGETS):
        if way == "openxla":
            result = torch.compile(attend, backend="openxla", fullgraph=True)(q, k, v)
        elif way == "capture":
            step = torch_xla_ext.capture(attend)
            for _ in range(3):
                result = step(q, k, v)
        elif way == "eager":
            with eager_mode_context(True):
                result = attend(q, k, v)
        elif way == "operator":
            result = torch.ops.xla.flash_attention(q * 0.2, k, v, True)
        else:
            result = torch_xla.utils.checkpoint.checkpoint(attend, q, k, v)
        assert_close(result, wanted)


def test_gradients_under_openxla() -> None:
    tensors = inputs()
    wanted = [tensor.double().requires_grad_() for tensor in tensors[:3]]
    expected(*wanted, tril(64, 64), 1.0).backward(tensors[3].double())
    args = [tensor.to("xla").requires_grad_() for tensor in tensors[:3]]
    with cudnn.computing(TARGETS):
        compiled = torch.compile(torch.ops.xla.flash_attention, backend="openxla", fullgraph=True)
        compiled(*args, True).backward(tensors[3].to("xla"))
        torch_xla.sync()
    for arg, other in zip(args, wanted, strict=True):
        assert_close(arg.grad, other.grad)


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.xla.flash_attention(q, k, v, True)


def test_exported() -> None:
    """The exported program has one operator, whose device decides about its kernel."""
    tensors = inputs()[:3]
    program = torch.export.export(Attention(), tuple(tensors)).module()
    wanted = expected(*tensors, tril(64, 64), 1.0)
    assert_close(program(*tensors), wanted)
    with cudnn.computing(TARGETS):
        result = program(*(tensor.to("xla") for tensor in tensors))
        assert_close(result, wanted)
    assert len(custom_call_lines(program(*(tensor.to("xla") for tensor in tensors)))) == 1


def test_gradient_of_one_operand() -> None:
    q, k, v, grad = (tensor.to("xla") for tensor in inputs())
    v.requires_grad_()
    with cudnn.computing(TARGETS):
        torch.ops.xla.flash_attention(q, k, v).backward(grad)
    assert q.grad is None and v.grad is not None
    weights = expected(*(inputs()[i] for i in (0, 1)), torch.eye(64), None, 1.0)
    assert_close(v.grad, weights.mT @ inputs()[3].double())


def test_a_second_derivative_is_an_error() -> None:
    q, k, v, _ = (tensor.to("xla") for tensor in inputs())
    q.requires_grad_()
    with cudnn.computing(TARGETS):
        result = torch.ops.xla.flash_attention(q, k, v)
        (grad,) = torch.autograd.grad(result.float().square().sum(), q, create_graph=True)
        with pytest.raises(NotImplementedError, match="cudnn_attention_backward has no derivative"):
            grad.sum().backward()


def test_wrong_calls_of_the_operator() -> None:
    q, k, v, _ = (tensor.transpose(1, 2).to("xla") for tensor in inputs())
    operator = torch.ops.xla_gpu.cudnn_attention
    with pytest.raises(TypeError, match=r"q must be float16 or bfloat16, but is torch\.float32"):
        operator(q.float(), k.float(), v.float(), False, 1.0)
    with pytest.raises(TypeError, match=r"k must be torch.bfloat16, as q is"):
        operator(q, k.half(), v, False, 1.0)
    with pytest.raises(ValueError, match=r"v must be \[2, 64, 3, 32\], but is \[2, 32, 3, 32\]"):
        operator(q, k, v[:, :32], False, 1.0)
