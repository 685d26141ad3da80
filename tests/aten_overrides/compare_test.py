"""The rules by which the sweep calls a result right."""

import pytest
import torch

from aten_overrides.compare import difference

NAN, INF = float("nan"), float("inf")


def numbers(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    "found, expected",
    [
        (numbers(1, NAN, INF), numbers(1, NAN, INF)),
        (numbers(1.00005), numbers(1)),
        (numbers(1e6, 1), numbers(1e6, 0)),
        (numbers(1.0078125, dtype=torch.bfloat16), numbers(1, dtype=torch.bfloat16)),
        ((numbers(1), [2, "a"]), (numbers(1), [2, "a"])),
        (numbers(1 + 2j, dtype=torch.complex64), numbers(1 + 2j, dtype=torch.complex64)),
        (None, None),
        (numbers(), numbers()),
    ],
)
def test_right(found: object, expected: object) -> None:
    assert difference(found, expected) is None


@pytest.mark.parametrize(
    "found, expected, text",
    [
        (numbers(1.001), numbers(1), "1.001 instead of 1 at [0]; 1 of 1 differ"),
        (numbers(1, 1), numbers(1, NAN), "1 instead of nan at [1]"),
        (numbers(1, NAN), numbers(1, 1), "nan instead of 1 at [1]"),
        (numbers(INF), numbers(-INF), "inf instead of -inf"),
        (numbers(3.4e38), numbers(INF), "instead of inf"),
        (numbers(1), numbers(1).double(), "dtype float32 instead of float64"),
        (numbers(1), torch.tensor(1.0), "shape [1] instead of []"),
        (torch.tensor([7]), torch.tensor([8]), "7 instead of 8"),
        (torch.tensor([True]), torch.tensor([False]), "True instead of False"),
        (numbers(1.05, dtype=torch.bfloat16), numbers(1, dtype=torch.bfloat16), "1.04688"),
        (numbers(1 + 2j, dtype=torch.complex64), numbers(1 - 2j, dtype=torch.complex64), "2 inst"),
        ((numbers(1),), (numbers(1), numbers(2)), "structure"),
        ((numbers(1), numbers(3)), (numbers(1), numbers(2)), "result 1: 3 instead of 2"),
        (numbers(1), 1.0, "a tensor instead of 1.0"),
        (1, True, "1 instead of True"),
        (None, numbers(1), "None instead of a tensor"),
    ],
)
def test_wrong(found: object, expected: object, text: str) -> None:
    assert text in str(difference(found, expected))


def test_an_answer_of_float64_is_right_for_16_bits() -> None:
    expected, exact = numbers(256, dtype=torch.bfloat16), torch.tensor([300.0]).double()
    assert difference(numbers(300, dtype=torch.bfloat16), expected) is not None
    assert difference(numbers(300, dtype=torch.bfloat16), expected, exact=exact) is None
    assert difference(numbers(320, dtype=torch.bfloat16), expected, exact=exact) is not None
    assert difference(numbers(300), numbers(256), exact=exact) is not None


def test_units_in_the_last_place() -> None:
    one = numbers(1, 256, dtype=torch.float16)
    for steps in (1, 2, 3):
        found = one + numbers(steps * 2**-10, 0, dtype=torch.float16)
        assert (difference(found, one, ulps=2) is None) == (steps <= 2)
    small = numbers(1e-3, 256, dtype=torch.float16)
    assert difference(small + 2e-4 * torch.eye(2, dtype=torch.float16)[0], small, ulps=2) is None
    assert difference(small * 0, small, ulps=2) is not None


def test_only_shapes() -> None:
    assert difference(numbers(1), numbers(2), only_shapes=True) is None
    assert difference(numbers(1), numbers(1, 2), only_shapes=True) is not None


def test_larger_tolerance() -> None:
    assert difference(numbers(1.001), numbers(1), factor=20) is None


def test_tolerance_scales_with_the_summands() -> None:
    assert difference(numbers(1e-6), numbers(0)) is not None
    assert difference(numbers(1e-6), numbers(0), scale=1.0) is None
