"""Rules by which a result on an XLA device equals PyTorch's on the CPU.

- The structure, the dtypes and the shapes are equal.
- Integers, booleans, and what is not a tensor are equal.
- NaN are at the same positions, and so are infinities, with their signs.
- Other floating-point numbers differ by at most `relative` times the expected number plus
  `absolute` times the largest expected number: sums of large numbers that cancel each other are as
  exact as the largest of them.
- A gradient's error may be relative to its operands if these are larger, because a gradient is
  often a sum of numbers that cancel each other.
- 16-bit numbers may instead be as near to what PyTorch computes from the same operands in float64,
  because PyTorch's own 16-bit results are the less exact ones in some operators.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.utils import _pytree as pytree


@dataclasses.dataclass(frozen=True)
class Tolerance:
    relative: float
    absolute: float

    def times(self, factor: float) -> Tolerance:
        return Tolerance(self.relative * factor, self.absolute * factor)


# For 16-bit numbers: two units in the last place, and one unit of the largest number.
TOLERANCES = {
    torch.bfloat16: Tolerance(2**-6, 2**-7),
    torch.float16: Tolerance(2**-9, 2**-10),
    torch.float32: Tolerance(1e-4, 2e-6),
    torch.float64: Tolerance(1e-6, 1e-7),
    torch.complex64: Tolerance(1e-4, 2e-6),
    torch.complex128: Tolerance(1e-6, 1e-7),
}


@dataclasses.dataclass(frozen=True)
class _Limits:
    factor: float = 1.0
    ulps: float | None = None
    scale: float = 0.0


_16_BITS = (torch.bfloat16, torch.float16)


def difference(
    found: object,
    expected: object,
    *,
    exact: object = None,
    factor: float = 1.0,
    ulps: float | None = None,
    scale: float = 0.0,
    only_shapes: bool = False,
) -> str | None:
    """Returns what differs, in one line, or None.

    Args:
      found: tensors and numbers in any structure, on the CPU. expected: PyTorch's results on the
          CPU, in the same structure. exact: PyTorch's results in float64, or None; 16-bit numbers
          may be near these instead. factor: a factor of the tolerances, for operators of limited
          precision. ulps: the tolerance in units in the last place, instead of the usual ones.
          scale: the size of the numbers that were added up; a sum of them may be 0 except for
          rounding. only_shapes: compares structure, dtypes and shapes, but no numbers.
    """
    found_leaves, found_structure = pytree.tree_flatten(found)
    leaves, structure = pytree.tree_flatten(expected)
    if len(leaves) != len(found_leaves):
        return f"structure {found_structure} instead of {structure}"
    exact_leaves = pytree.tree_leaves(exact) if exact is not None else [None] * len(leaves)
    if len(exact_leaves) != len(leaves):
        exact_leaves = [None] * len(leaves)
    limits = _Limits(factor, ulps, scale)
    for i, (one, other, third) in enumerate(zip(found_leaves, leaves, exact_leaves, strict=True)):
        text = _leaf(one, other, third, limits, only_shapes)
        if text is not None:
            return f"result {i}: {text}" if len(leaves) > 1 else text
    return None


def has_16_bits(results: object) -> bool:
    leaves = pytree.tree_leaves(results)
    return any(isinstance(x, torch.Tensor) and x.dtype in _16_BITS for x in leaves)


def _leaf(
    found: object, expected: object, exact: object, limits: _Limits, only_shapes: bool
) -> str | None:
    if not isinstance(expected, torch.Tensor):
        if isinstance(found, torch.Tensor):
            return f"a tensor instead of {expected!r}"
        return _numbers(found, expected, only_shapes)
    if not isinstance(found, torch.Tensor):
        return f"{found!r} instead of a tensor"
    if found.layout != expected.layout:
        return f"layout {found.layout} instead of {expected.layout}"
    if found.dtype != expected.dtype:
        return f"dtype {_name(found.dtype)} instead of {_name(expected.dtype)}"
    if found.shape != expected.shape:
        return f"shape {list(found.shape)} instead of {list(expected.shape)}"
    if only_shapes:
        return None
    found, expected = _strided(found), _strided(expected)
    text = _values(found, expected, limits)
    if text is None or expected.dtype not in _16_BITS or not isinstance(exact, torch.Tensor):
        return text
    if exact.shape == found.shape and _values(found, exact.to(found.dtype), limits) is None:
        return None
    return text


def _numbers(found: object, expected: object, only_shapes: bool) -> str | None:
    if type(found) is not type(expected):
        return f"{found!r} instead of {expected!r}"
    if only_shapes or found == expected:
        return None
    if isinstance(expected, float | complex):
        return _values(torch.tensor(found), torch.tensor(expected), _Limits())
    return f"{found!r} instead of {expected!r}"


def _values(found: torch.Tensor, expected: torch.Tensor, limits: _Limits) -> str | None:
    if not (expected.is_floating_point() or expected.is_complex()):
        return _first(found, expected, found != expected)
    nan = expected.isnan()
    if text := _first(found, expected, found.isnan() != nan):
        return text
    tolerance = TOLERANCES[expected.dtype].times(limits.factor)
    if expected.is_complex():
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
        nan = nan.unsqueeze(-1).expand(expected.shape)
    wide, other = found.double(), expected.double()
    infinite = other.isinf() | wide.isinf()
    if text := _first(found, expected, infinite & (wide != other) & ~nan):
        return text
    ordinary = ~(nan | infinite)
    if not ordinary.any():
        return None
    if limits.ulps is not None:
        # Where terms cancel, the error is that of a sum in float32.
        limit = limits.ulps * torch.maximum(
            _unit(expected), _unit(expected[ordinary].abs().max()) / 256
        )
    else:
        largest = other[ordinary].abs().max().clamp(min=limits.scale)
        limit = tolerance.relative * other.abs() + tolerance.absolute * largest
    return _first(found, expected, ordinary & ~((wide - other).abs() <= limit))


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Returns the distance to the next number of the same dtype, as float64."""
    information = torch.finfo(x.dtype)
    _, exponent = torch.frexp(x.double().abs().clamp(min=information.tiny))
    return torch.ldexp(torch.full_like(x, information.eps, dtype=torch.float64), exponent - 1)


def _first(found: torch.Tensor, expected: torch.Tensor, differs: torch.Tensor) -> str | None:
    """Describes the first element that differs, and says how many do."""
    if not differs.any():
        return None
    index = differs.nonzero()[0].tolist()
    one, other = found[tuple(index)].item(), expected[tuple(index)].item()
    count = int(differs.sum())
    return f"{_text(one)} instead of {_text(other)} at {index}; {count} of {differs.numel()} differ"


def _strided(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().resolve_conj().resolve_neg()
    return x if x.layout == torch.strided else x.to_dense()


def _text(number: complex) -> str:
    return f"{number:.6g}" if isinstance(number, float | complex) else str(number)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
