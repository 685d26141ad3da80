"""The key of a cached call covers its operands' types and all other values."""

import itertools

import numpy as np
import pytest
import torch
import torch_xla
from torch import nn

KEY = torch_xla._XLAC._xla_call_key


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="xla")


def key(*values: object) -> bytes | None:
    return KEY(values, [])


def test_keys_of_different_values_differ() -> None:
    values = [
        *(None, False, True, 0, 1, -1, 2**62, 0.0, -0.0, 1.0, float("inf")),
        *("", "a", "b", b"", b"a", (), [], (1,), [1], ((1,),), (1, 2), ("a", "b"), ("ab", "")),
        *(torch.float32, torch.int32, torch.device("cpu"), torch.device("xla", 1)),
        *(torch.strided, torch.contiguous_format, torch.channels_last),
        *(tensor(), tensor(1), tensor(2), tensor(1, 1), tensor(1, dtype=torch.int32)),
    ]
    keys = [key(value) for value in values]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    pairs = [key(a, b) for a, b in itertools.product(values, repeat=2)]
    assert len(set(pairs)) == len(pairs)


def test_keys_of_equal_values_are_equal() -> None:
    assert key(tensor(3, 4), 1.5) == key(tensor(3, 4) + 1, 1.5)
    assert key(nn.Parameter(tensor(3)).detach()) == key(tensor(3))
    assert key(tensor(3).shape) == key((3,))


def test_the_key_collects_nested_operands() -> None:
    a, b, operands = tensor(1), tensor(2), []
    assert KEY((a, 1, [b, (a, None)]), operands) is not None
    assert [id(operand) for operand in operands] == [id(a), id(b), id(a)]


def test_values_that_are_not_cached() -> None:
    class Subclass(torch.Tensor):
        pass

    for value in (
        torch.zeros(1),
        tensor(1).as_subclass(Subclass),
        2**64,
        "\ud800",
        np.float32(1),
        np.int64(1),
        {},
        {1},
        object(),
        type("Number", (int,), {})(1),
    ):
        assert key(value) is None
        assert key(tensor(1), [value]) is None


def test_other_values() -> None:
    def shape(value: object) -> tuple[int, ...] | None:
        return value.shape if isinstance(value, np.ndarray) else None

    one, two, three = (KEY((np.ones(size),), None, shape) for size in (1, 2, 2))
    assert one != two == three
    assert KEY((tensor(1), {}), None, shape) is None
    with pytest.raises(ZeroDivisionError):
        KEY((object(),), None, lambda value: 1 // 0)


def test_operands_that_get_gradients() -> None:
    weight = nn.Parameter(tensor(3))
    assert key(weight) is None
    with torch.no_grad():
        assert key(weight) == key(tensor(3))
