"""Cases of the sweep: samples of PyTorch's OpInfo database, with and without NaN and infinities.

A case is one call. It is made on the CPU, and moved to a device for each run.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import torch
from torch.utils import _pytree as pytree

from aten_overrides import sums, variants

with mock.patch.object(sys, "argv", sys.argv[:1]):  # PyTorch's test modules read sys.argv
    from torch.testing._internal import common_methods_invocations as invocations
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core


def seed(number: int = 0) -> None:
    """Seeds the CPU's random numbers. torch.manual_seed() keeps a stack for each CUDA device."""
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


# PyTorch calls this for each sample, to search the stack and all modules for a unittest, which
# would take 39% of the sweep's time.
core.extract_test_fn = common_utils.extract_test_fn = lambda: None
common_utils.set_rng_seed = seed

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float16),
    )
}


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to run cases."""

    dtypes: tuple[str, ...]
    is_compiled: bool = False  # under torch.compile(backend="openxla") instead of lazily
    has_gradients: bool = False  # backward runs, too, and gradients are compared
    # The largest number of an operator's samples that are run, evenly spread over all of them.
    most: int = 48


_DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
MODES = {
    "lazy": Mode(_DTYPES),
    "compiled": Mode(_DTYPES, is_compiled=True, most=4),
    "gradients": Mode(("float32", "bfloat16", "complex64"), has_gradients=True, most=24),
    "compiled gradients": Mode(("float32",), is_compiled=True, has_gradients=True, most=2),
    "specials": Mode(("float32", "bfloat16")),
    "sums": Mode(("bfloat16", "float16")),
    "strided": Mode(("float32", "int64", "complex64"), most=12),
    "out": Mode(("float32", "int64", "complex64"), most=12),
    "in place": Mode(("float32", "int64", "complex64"), most=12),
    "wrong": Mode(("float32",)),
}
_VARIANTS = {
    "strided": variants.strided,
    "out": variants.out,
    "in place": variants.in_place,
    "wrong": variants.wrong,
}

# Random numbers differ; random_numbers_test.py looks at their distributions.
_RANDOM = (
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial"),
    *("nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d"),
    *("nn.functional.dropout3d", "nn.functional.feature_alpha_dropout.with_train"),
    *("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"),
    *("nn.functional.multi_head_attention_forward", "nn.functional.rrelu"),
    *("nn.functional.scaled_dot_product_attention", "normal", "normal.in_place"),
    *("normal.number_mean", "pca_lowrank", "rand_like", "randint", "randint_like", "randn"),
    *("randn_like", "svd_lowrank", "torch.ops.aten._efficient_attention_forward"),
    *("torch.ops.aten._flash_attention_forward", "uniform"),
)
# Operators that return memory to which nothing was written.
_UNINITIALIZED = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_"),
)
# Operators of whose results only dtypes and shapes are compared.
WITHOUT_NUMBERS = frozenset(_RANDOM + _UNINITIALIZED)

# Factors of the tolerances.
LIMITED_PRECISION = {
    # One number minus its own mean is 0 except for rounding, and the norm enlarges this error.
    "native_layer_norm": 4.0,
    # With p = 0.5, the norm squares a sum of roots.
    "nn.functional.normalize": 2.0,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an operator; its tensors are on the CPU."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    # Converts the result to what is compared or differentiated.
    process: Callable[[object], object]

    def on(self, device: str) -> Case:
        """Returns the case with copies of its tensors on a device, leaves of their own."""
        args, kwargs = pytree.tree_map(
            functools.partial(_moved, device=device), (self.args, self.kwargs)
        )
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def is_on_a_device(self) -> bool:
        """Whether an argument chooses the results' device."""
        return "device" in self.kwargs or bool(tensors((self.args, self.kwargs)))

    def largest(self) -> float:
        """Returns the largest finite number of the operands."""
        numbers = [x.detach().abs().nan_to_num(0, 0, 0) for x in self.leaves() if x.numel()]
        return max([x.max().item() for x in numbers], default=0.0)

    def in_float64(self) -> Case:
        args, kwargs = pytree.tree_map(_widened, (self.args, self.kwargs))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def leaves(self) -> list[torch.Tensor]:
        """Returns the tensors whose gradients are asked for."""
        return [x for x in tensors((self.args, self.kwargs)) if x.requires_grad]

    def __str__(self) -> str:
        arguments = [_described(argument) for argument in self.args]
        arguments += [f"{name}={_described(value)}" for name, value in self.kwargs.items()]
        return f"({', '.join(arguments)})"


@functools.cache
def operators() -> dict[str, core.OpInfo]:
    """Returns PyTorch's operators by their names, sorted."""
    found = {}
    for operator in invocations.op_db:
        name = operator.name
        if operator.variant_test_name:
            name += f".{operator.variant_test_name}"
        assert name not in found, name
        found[name] = operator
    return dict(sorted(found.items()))


def names(mode: str) -> list[str]:
    """Returns the operators that a mode runs."""
    if mode == "sums":
        return list(sums.CASES)
    if mode == "specials":
        return [name for name, operator in operators().items() if _has_specials(name, operator)]
    return list(operators())


def dtypes(mode: str, name: str) -> list[str]:
    """Returns the dtypes with which a mode runs an operator: those that PyTorch's CPU has."""
    if mode == "sums":
        return list(MODES[mode].dtypes)
    operator = operators()[name]
    if MODES[mode].has_gradients:
        if not operator.supports_autograd:
            return []
        supported = operator.supported_backward_dtypes("cpu")
    else:
        supported = operator.supported_dtypes("cpu")
    return [dtype for dtype in MODES[mode].dtypes if DTYPES[dtype] in supported]


def make(mode: str, name: str, dtype: str) -> list[Case]:
    """Returns the cases of an operator, the same ones at each call."""
    seed()
    if mode == "sums":
        return [
            Case(function, args, {}, _itself) for function, args in sums.make(name, DTYPES[dtype])
        ]
    operator = operators()[name]
    if mode in _VARIANTS:
        calls = _VARIANTS[mode](operator, DTYPES[dtype])
        return [_case(call, name, sample, False) for call, sample in calls]
    has_gradients = MODES[mode].has_gradients
    samples = operator.sample_inputs("cpu", DTYPES[dtype], requires_grad=has_gradients)
    cases = (_case(operator.op, name, sample, has_gradients) for sample in samples)
    if mode == "specials":
        return list(itertools.islice(_with_specials(cases), 25))
    return list(cases)


def _case(function: Callable, name: str, sample: core.SampleInput, has_gradients: bool) -> Case:
    process = INVARIANTS.get(name, _itself)
    if has_gradients:
        # OpInfo's own choice of the results' parts that do not depend on signs and phases.
        process = sample.output_process_fn_grad
    return Case(function, (sample.input, *sample.args), dict(sample.kwargs), process)


def tensors(tree: object) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def to_cpu(tree: object) -> object:
    return pytree.tree_map(lambda x: x.detach().cpu() if isinstance(x, torch.Tensor) else x, tree)


def _itself(x: object) -> object:
    return x


def _moved(x: object, device: str) -> object:
    if isinstance(x, torch.Tensor):
        return x.detach().clone().to(device).requires_grad_(x.requires_grad)
    if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
        return torch.device(device)
    return x


def _widened(x: object) -> object:
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.detach().double().requires_grad_(x.requires_grad)
    return x


def _described(x: object) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    if isinstance(x, list | tuple):
        return f"({', '.join(map(_described, x))})"
    return repr(x)


# Decompositions are defined up to signs, phases and orders, so their products are compared.
def _eigenvectors(result: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    values, vectors = result
    return values, (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH


def _singular_vectors(result: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    u, s, vh = result
    k = s.shape[-1]
    return s, (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ vh[..., :k, :]


def _columns_of_singular_vectors(result: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    u, s, v = result
    return _singular_vectors((u, s, v.mH))


def _qr(result: tuple[torch.Tensor, ...]) -> object:
    q, r = result
    return q @ r if q.numel() else r.abs()


INVARIANTS: dict[str, Callable] = {
    "linalg.eigh": _eigenvectors,
    "linalg.svd": _singular_vectors,
    "svd": _columns_of_singular_vectors,
    "linalg.qr": _qr,
    "qr": _qr,
}

# Prefixes of the names of elementwise operators and reductions that OpInfo's database does not
# declare as UnaryUfuncInfo, BinaryUfuncInfo or ReductionOpInfo.
_WITH_SPECIALS = (
    *("add", "arg", "clamp", "cum", "diff", "dist", "fmod", "kthvalue", "lerp"),
    *("linalg.vector_norm", "log", "masked.", "max", "median", "min", "mode", "msort", "nan"),
    *("nn.functional.", "norm", "quantile", "renorm", "softmax", "sort", "std", "topk"),
    *("trapezoid", "unique", "var", "where", "xlogy"),
)
# Exceptions: sums of products, whose NaN depend on the order of the sums; conversions to integers,
# which C++ does not define for NaN; and operators whose numbers are indices.
_WITHOUT_SPECIALS = (
    *("addb", "addm", "addr", "logdet", "nn.functional.bilinear", "nn.functional.conv"),
    *("norm.nuc", "logspace", "byte", "char", "int", "long", "short"),
    "nn.functional.grid_sample",
)


def _has_specials(name: str, operator: core.OpInfo) -> bool:
    if name in WITHOUT_NUMBERS or name.startswith(_WITHOUT_SPECIALS):
        return False
    kinds = (core.UnaryUfuncInfo, core.BinaryUfuncInfo, core.ReductionOpInfo)
    return isinstance(operator, kinds) or name.startswith(_WITH_SPECIALS)


def _with_specials(cases: Iterator[Case]) -> Iterator[Case]:
    """Yields each case five times: with NaN, inf and -inf, with one of these, and with -inf
    only."""
    nan, inf = float("nan"), float("inf")
    for case in cases:
        for numbers in ((nan, inf, -inf), (nan,), (inf,), (-inf,), None):
            count = itertools.count()
            put = functools.partial(_put, numbers=numbers, count=count)
            args, kwargs = pytree.tree_map(put, (case.args, case.kwargs))
            if next(count) > 0:
                yield dataclasses.replace(case, args=args, kwargs=kwargs)


def _put(x: object, numbers: tuple[float, ...] | None, count: Iterator[int]) -> object:
    """Puts numbers into a tensor, or -inf everywhere if there are none."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.numel():
        return x
    first = next(count)
    if numbers is None:
        return torch.full_like(x, float("-inf"))
    x = x.detach().clone(memory_format=torch.contiguous_format)
    for i, number in enumerate(numbers):
        # Each operand gets few of them, at positions of its own, so that most numbers stay.
        x.view(-1)[(first + 2 * i) % x.numel() :: 7] = number
    return x
