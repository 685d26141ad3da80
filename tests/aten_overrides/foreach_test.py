"""torch._foreach_… with lists that have some tensors on the CPU."""

from collections.abc import Callable

import pytest
import torch
import torch_xla

Lists = list[torch.Tensor]

# Functions of two lists that write to the first.
IN_PLACE: dict[str, Callable[[Lists, Lists], object]] = {
    "add": lambda a, b: torch._foreach_add_(a, b, alpha=2),
    "sub": lambda a, b: torch._foreach_sub_(a, b),
    "mul": lambda a, b: torch._foreach_mul_(a, b),
    "maximum": lambda a, b: torch._foreach_maximum_(a, b),
    "lerp": lambda a, b: torch._foreach_lerp_(a, b, 0.25),
    "addcmul": lambda a, b: torch._foreach_addcmul_(a, b, b, [2.0, 3.0, 4.0, 5.0]),
    "addcdiv": lambda a, b: torch._foreach_addcdiv_(a, b, b, torch.tensor([2.0, 3.0, 4.0, 5.0])),
    "scalars": lambda a, b: torch._foreach_mul_(a, [2.0, 3.0, 4.0, 5.0]),
    "number": lambda a, b: torch._foreach_add_(a, 1.5),
    "tensor": lambda a, b: torch._foreach_mul_(a, torch.tensor(3.0)),
    "sqrt": lambda a, b: torch._foreach_sqrt_(a),
    "copy": lambda a, b: torch._foreach_copy_(a, b),
    "zero": lambda a, b: torch._foreach_zero_(a),
}
OTHERS: dict[str, Callable[[Lists, Lists], object]] = {
    "add": lambda a, b: torch._foreach_add(a, b),
    "norm": lambda a, b: torch._foreach_norm(a),
    "max": lambda a, b: torch._foreach_max(a),
    "pow": lambda a, b: torch._foreach_pow(a, b),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, a, b, torch.tensor([1.0, 2.0, 3.0, 4.0])),
}
PLACES = {"mixed": ["cpu", "xla", "cpu", "xla"], "xla": ["xla"] * 4, "cpu": ["cpu"] * 4}


def lists(places: list[str], others: list[str]) -> tuple[Lists, Lists]:
    torch.manual_seed(0)
    numbers = torch.rand(8, 3) + 0.5
    both = [row.clone().to(place) for row, place in zip(numbers, places + others, strict=True)]
    return both[:4], both[4:]


def check(results: Lists, expected: Lists) -> None:
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted)


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("number", [1.5, [2.5, 3.5], 1j])
@pytest.mark.parametrize("name", ["add", "div", "mul", "sub"])
def test_numbers_of_another_type_in_place(name: str, number: object, device: str) -> None:
    integers = [torch.tensor([1, 2], device=device), torch.tensor(3, device=device)]
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type Long"):
        getattr(torch, f"_foreach_{name}_")(integers, number)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("others", PLACES)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str, places: str, others: str) -> None:
    a, b = lists(PLACES[places], PLACES[others])
    expected, expected_others = lists(PLACES["cpu"], PLACES["cpu"])
    IN_PLACE[name](a, b)
    IN_PLACE[name](expected, expected_others)
    assert [each.device.type for each in a] == PLACES[places]
    check(a, expected)
    check(b, expected_others)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("others", PLACES)
@pytest.mark.parametrize("name", OTHERS)
def test_results(name: str, others: str) -> None:
    a, b = lists(PLACES["mixed"], PLACES[others])
    check(OTHERS[name](a, b), OTHERS[name](*lists(PLACES["cpu"], PLACES["cpu"])))


def test_lists_of_different_lengths() -> None:
    one, two = [torch.ones(1)], [torch.ones(1, device="xla")] * 2
    with pytest.raises(RuntimeError, match="Tensor lists must have the same number of tensors"):
        torch._foreach_add_(one + two, two)


def test_numbers_on_another_device() -> None:
    x = [torch.ones(1, device="xla")]
    with pytest.raises(RuntimeError, match="Expected scalars to be on CPU, got xla:0"):
        torch._foreach_addcmul_(x, x, x, torch.ones(1, device="xla"))


def test_a_copied_tensor_is_reported() -> None:
    with pytest.warns(UserWarning, match="one on the CPU, .* which is copied to the device"):
        torch._foreach_add_([torch.ones(1, device="xla"), torch.ones(1)], [torch.ones(1)] * 2)
    torch_xla.sync()
