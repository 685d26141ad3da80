"""_xla_gpu_custom_call: the traced calls, and their results."""

import struct
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.xla import XLAC, compilations, custom_call_lines, register_host_kernels
from torch_xla.experimental import eager_mode_context

UNIFIED = "api_version=API_VERSION_STATUS_RETURNING_UNIFIED"


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestEcho", "TestCopy", "TestSumDifferenceRound", "TestCount")


def call(
    inputs: list[torch.Tensor],
    payload: bytes,
    shapes: list[list[int]],
    dtypes: list[torch.dtype],
    *target: str,
) -> list[torch.Tensor]:
    return XLAC._xla_gpu_custom_call(inputs, payload, shapes, dtypes, *target)


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns TestCopy's result: the elements in the order in which the kernel sees them."""
    payload = struct.pack("<q", tensor.numel())
    return call([tensor], payload, [tensor.shape], [tensor.dtype], "TestCopy")[0]


def echo(tensor: torch.Tensor, payload: bytes | str) -> bytes:
    """The payload that the kernel sees."""
    result = call([tensor], payload, [[16]], [torch.int64], "TestEcho")[0].cpu().tolist()
    assert result[0] <= 15, "TestEcho shows 15 bytes"
    return bytes(result[1 : 1 + result[0]])


def test_result_in_another_layout(device: torch.device) -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    (result,) = XLAC._xla_gpu_custom_call(
        [x.to(device)],
        struct.pack("<q", x.numel()),
        [[4, 2, 3]],
        [x.dtype],
        "TestCopy",
        result_layouts={0: (1, 2, 0)},
    )
    torch.testing.assert_close(result.cpu(), x.permute(2, 0, 1), rtol=0, atol=0)


def test_hidden_results_are_left_out(device: torch.device) -> None:
    x = torch.tensor([5.0, 3.0])
    (total,) = XLAC._xla_gpu_custom_call(
        [x.to(device), x.to(device)],
        struct.pack("<q", 2),
        [[2], [2], [2]],
        [torch.float32] * 3,
        "TestSumDifferenceRound",
        num_hidden_results=2,
    )
    assert torch.equal(total.cpu(), x + x)


def test_the_default_target_by_its_name_is_the_default_call(device: torch.device) -> None:
    a = torch.zeros(3, device=device)
    by_default = custom_call_lines(*call([a], "p", [[3]], [torch.float32]))
    by_name = custom_call_lines(*call([a], "p", [[3]], [torch.float32], "triton_kernel_call"))
    assert by_name == by_default


def test_named_target_positional_and_keyword(device: torch.device) -> None:
    a = torch.zeros(3, device=device)
    (positional,) = custom_call_lines(*call([a], "p", [[3]], [torch.float32], "MyKernel"))
    (keyword,) = custom_call_lines(
        *XLAC._xla_gpu_custom_call(
            inputs=[a],
            payload="p",
            output_shapes=[[3]],
            output_dtypes=[torch.float32],
            target="MyKernel",
        )
    )
    assert positional == keyword
    assert 'custom_call_target="MyKernel"' in keyword
    assert UNIFIED in keyword


@pytest.mark.parametrize("target", ["a.b/c-d e", "Ünïcode", 'quo"te', "x" * 300])
def test_any_non_empty_name_is_a_target(device: torch.device, target: str) -> None:
    a = torch.zeros(3, device=device)
    (line,) = custom_call_lines(*call([a], "p", [[3]], [torch.float32], target))
    assert UNIFIED in line


@pytest.mark.parametrize(
    "payload", [b"", b"\0", b"a\0b\0", bytes(range(241, 256)), b"[1]", "text", "ü"]
)
def test_payload_reaches_the_kernel_whole(device: torch.device, payload: bytes) -> None:
    expected = payload.encode() if isinstance(payload, str) else payload
    assert echo(torch.zeros(1, device=device), payload) == expected


VIEWS = {
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[1:, ::2],
    "permuted": lambda x: x.reshape(2, 3, 4).permute(2, 0, 1),
    "expanded": lambda x: x[:1].expand(5, 4),
    "flipped": lambda x: x.flip(1),
    "transposed_computed": lambda x: (x * 2).t() + 1,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_operands_are_row_major(
    device: torch.device, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(6, 4)
    expected = view(x).contiguous()
    result = copy(view(x.to(device)))
    (line,) = custom_call_lines(result)
    rank = expected.dim()
    layout = "{" + ",".join(str(i) for i in reversed(range(rank))) + "}"
    shape = f"f32[{','.join(map(str, expected.shape))}]{layout}"
    assert f"operand_layout_constraints={{{shape}}}" in line
    assert line.startswith(f"%custom-call = ({shape}) custom-call(")
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_results_are_row_major_for_their_consumers(
    device: torch.device, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(6, 4)
    result = view(copy(x.to(device)))
    assert torch.equal(result.cpu(), view(x))


def test_scalar_and_empty_results(device: torch.device) -> None:
    assert torch.equal(copy(torch.tensor(3.5).to(device)).cpu(), torch.tensor(3.5))
    assert copy(torch.zeros(0, 4).to(device)).cpu().shape == (0, 4)


def test_several_results(device: torch.device) -> None:
    a, b = torch.randn(7), torch.randn(7)
    total, difference, rounded = call(
        [a.to(device), b.to(device)],
        struct.pack("<q", 7),
        [[7], [7], [7]],
        [torch.float32, torch.float32, torch.int32],
        "TestSumDifferenceRound",
    )
    assert torch.equal(total.cpu(), a + b)
    assert torch.equal(difference.cpu(), a - b)
    assert torch.equal(rounded.cpu(), a.to(torch.int32))


def test_several_results_are_one_run(device: torch.device) -> None:
    """Reading the results of one call in one step runs the kernel once."""
    a = torch.zeros(1, device=device)
    first = call([a], "x", [[1], [1]], [torch.int64] * 2, "TestCount")[0].cpu().item()
    second = call([a], "y", [[1], [1]], [torch.int64] * 2, "TestCount")[0].cpu().item()
    assert second == first + 1


def test_inside_a_larger_graph(device: torch.device) -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    x, y = a.to(device), b.to(device)
    result = torch.relu(copy((x @ y).exp()) * 2 + 1).sum(0)
    expected = torch.relu((a @ b).exp() * 2 + 1).sum(0)
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_twice_in_one_graph(device: torch.device) -> None:
    x = torch.randn(5, 3)
    result = copy(copy(x.to(device)) + 1) - copy(x.to(device))
    assert len(custom_call_lines(result)) == 3
    torch.testing.assert_close(result.cpu(), torch.ones(5, 3))


def test_steps_of_a_loop_compile_once(device: torch.device) -> None:
    x = torch.randn(4, 4).to(device)
    torch_xla.sync()
    counts = []
    for _ in range(5):
        x = copy(x) + 1
        torch_xla.sync()
        counts.append(compilations())
    assert counts[-1] == counts[0], counts


def test_eager_mode(device: torch.device) -> None:
    x = torch.randn(4, 6)
    with eager_mode_context(True):
        result = copy(x.to(device).t())
        assert torch.equal(result.cpu(), x.t())


def test_eager_mode_runs_a_call_with_several_results_once(device: torch.device) -> None:
    a = torch.zeros(1, device=device)
    with eager_mode_context(True):
        first = call([a], "x", [[1], [1]], [torch.int64] * 2, "TestCount")
        second = call([a], "x", [[1], [1]], [torch.int64] * 2, "TestCount")
    assert second[0].cpu().item() == first[0].cpu().item() + 1
