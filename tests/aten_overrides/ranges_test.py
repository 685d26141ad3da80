"""arange, range, linspace and logspace: as many numbers as PyTorch makes, and the same ones."""

from collections.abc import Callable

import pytest
import torch
import torch_xla  # noqa: F401

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ARANGES = [
    *((0, 1, 0.1), (0, 10, 0.1), (5, 0, -0.1), (1, 1.3, 0.1), (1e-3, 1, 1e-3), (2, 5, 0.5)),
    *((7,), (0,), (5, 5), (10, 0, -3), (0, 300, 7), (-5, 5, 2), (0.5, 5.5), (2**24, 2**24 + 5)),
]
REFUSED = [(3, 1), (1, 3, -1), (0, 1, 0), (float("nan"),), (0, float("inf"))]
LINSPACES = [
    *((0, 1, 10), (0, 1, 1001), (10, -3, 7), (0.5, 6.7, 9), (-10, 10, 1), (0, 1, 0), (200, 100, 4))
]


def _ends_the_process(function: Callable[..., torch.Tensor], dtype: torch.dtype | None) -> bool:
    """Whether PyTorch crashes: its CPU kernel divides by the step as an integer, which is 0."""
    return dtype == torch.int64 or (function is torch.range and dtype in INTEGERS)


def _compare(expected: torch.Tensor, result: torch.Tensor) -> None:
    assert result.dtype == expected.dtype
    tolerance = {torch.float32: (5e-7, 1e-7), torch.float64: (1e-14, 1e-14)}
    rtol, atol = tolerance.get(expected.dtype, (None, None))
    torch.testing.assert_close(result.cpu(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, None])
@pytest.mark.parametrize("arguments", ARANGES)
@pytest.mark.filterwarnings("ignore:torch.range")
def test_arange(arguments: tuple[float, ...], dtype: torch.dtype | None) -> None:
    for function in (torch.arange, torch.range):
        has_part = len(arguments) == 3 and abs(arguments[2]) < 1
        if has_part and _ends_the_process(function, dtype):
            continue
        if function is torch.range and len(arguments) == 1:
            continue
        expected = function(*arguments, dtype=dtype)
        _compare(expected, function(*arguments, dtype=dtype, device="xla"))
        out = torch.empty(0, dtype=expected.dtype, device="xla")
        _compare(expected, function(*arguments, out=out))


@pytest.mark.parametrize("arguments", REFUSED)
def test_refused(arguments: tuple[float, ...]) -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match=r"inconsistent|nonzero|unsupported range"):
            torch.arange(*arguments, device=device)


def test_step_that_is_no_integer() -> None:
    with pytest.raises(RuntimeError, match=r"step is 0\.1, which is 0 as an integer"):
        torch.arange(0, 1, 0.1, dtype=torch.int64, device="xla")


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.complex64, torch.complex128])
@pytest.mark.parametrize("arguments", LINSPACES)
def test_linspace(arguments: tuple[float, ...], dtype: torch.dtype) -> None:
    if dtype == torch.uint8 and arguments[0] * arguments[1] < 0:
        pytest.skip("negative numbers")
    if dtype == torch.int8 and arguments[0] > 127:
        pytest.skip("an overflow")
    expected = torch.linspace(*arguments, dtype=dtype)
    _compare(expected, torch.linspace(*arguments, dtype=dtype, device="xla"))
    out = torch.empty(0, dtype=dtype, device="xla")
    _compare(expected, torch.linspace(*arguments, out=out))


@pytest.mark.parametrize("dtype", FLOATS)
def test_logspace(dtype: torch.dtype) -> None:
    for arguments in ((0, 1, 10), (-3, 2, 5), (0, 6, 7, 2.0), (3, 0, 5, 2.0), (-1, 1, 1)):
        expected = torch.logspace(*arguments, dtype=dtype)
        _compare(expected, torch.logspace(*arguments, dtype=dtype, device="xla"))


def test_complex_ends() -> None:
    for dtype in (torch.complex64, torch.complex128):
        expected = torch.linspace(1 + 1j, 3 - 2j, 7, dtype=dtype)
        _compare(expected, torch.linspace(1 + 1j, 3 - 2j, 7, dtype=dtype, device="xla"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:10] + torch.arange(0, 1, 0.1, device=x.device),
        lambda x: x[:4] + torch.arange(1, 1.3, 0.1, device=x.device),
        lambda x: x[:11] + torch.linspace(0, 1, 11, device=x.device),
        lambda x: x[:11] + torch.logspace(0, 1, 11, device=x.device),
    ],
)
def test_compiled(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(20)
    _compare(function(x), torch.compile(function, backend="openxla")(x.to("xla")))


@pytest.mark.parametrize("steps", [0, 1])
def test_few_steps(steps: int) -> None:
    _compare(torch.linspace(2, 3, steps), torch.linspace(2, 3, steps, device="xla"))


@pytest.mark.parametrize("options", [{}, {"periodic": False}, {"periodic": False, "beta": 3.0}])
def test_kaiser_window(options: dict[str, float]) -> None:
    expected = torch.kaiser_window(8, **options)
    _compare(expected, torch.kaiser_window(8, **options, device="xla"))


def test_a_complex_number() -> None:
    _compare(torch.full((2,), 1 + 2j), torch.full((2,), 1 + 2j, device="xla"))
