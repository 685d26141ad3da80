"""Sums of many 16-bit numbers: reductions of 100,000 elements, and gradients that are sums.

PyTorch adds up in float32. A program that adds up in 16 bits stops at 256 ones in bfloat16, or
overflows in float16.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

COUNT = 100_000
# In units in the last place of the 16-bit result.
ULPS = 2.0

Function = Callable[..., object]
Case = tuple[Function, tuple[object, ...]]


class _Numbers:
    """Operands in one dtype, the same ones at each run."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(0)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        numbers = torch.rand(shape, generator=self.generator) * (high - low) + low
        return numbers.to(self.dtype)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def indices(self, count: int, size: int) -> torch.Tensor:
        return torch.randint(0, size, (count,), generator=self.generator)


def make(name: str, dtype: torch.dtype) -> list[Case]:
    return CASES[name](_Numbers(dtype))


def _reduction(function: Function) -> Callable[[_Numbers], list[Case]]:
    """Yields reductions of all elements, of rows, and of columns."""

    def cases(numbers: _Numbers) -> list[Case]:
        x = numbers.uniform(COUNT)
        return [
            (function, (x, 0)),
            (function, (x.view(4, -1), 1)),
            (function, (x.view(-1, 4), 0)),
            (function, (x.view(100, 4, -1), (0, 2))),
        ]

    return cases


def _of_one_dimension(function: Function) -> Callable[[_Numbers], list[Case]]:
    def cases(numbers: _Numbers) -> list[Case]:
        x = numbers.uniform(COUNT, high=1.0)
        return [(function, (x, 0)), (function, (x.view(4, -1), 1)), (function, (x.view(-1, 4), 0))]

    return cases


def _loss(function: Function) -> Callable[[_Numbers], list[Case]]:
    def cases(numbers: _Numbers) -> list[Case]:
        operands = (
            numbers.uniform(COUNT // 4, 4, low=0.1, high=0.9),
            numbers.uniform(COUNT // 4, 4, low=0.1, high=0.9),
        )
        return [(_reduced(function, kind), operands) for kind in ("mean", "sum")]

    return cases


def _reduced(function: Function, reduction: str) -> Function:
    return lambda *operands: function(*operands, reduction=reduction)


_WIDTHS = {1: COUNT // 2, 2: 224, 3: 36}  # by the number of dimensions


def _pool(function: Function, dims: int) -> Callable[[_Numbers], list[Case]]:
    width = _WIDTHS[dims]

    def cases(numbers: _Numbers) -> list[Case]:
        x = numbers.uniform(1, 2, *[width] * dims)
        return [(lambda x: function(x, width), (x,)), (lambda x: function(x, width // 2), (x,))]

    return cases


def _adaptive(function: Function, dims: int) -> Callable[[_Numbers], list[Case]]:
    return _one(lambda n: (n.uniform(1, 2, *[_WIDTHS[dims]] * dims),), lambda x: function(x, 1))


def _one(make_operands: Callable[[_Numbers], tuple], function: Function) -> Callable:
    return lambda numbers: [(function, make_operands(numbers))]


def _gradients(function: Function) -> Function:
    """Returns the gradients of a weighted sum with respect to the floating-point operands."""

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in operands]
        result = function(*leaves)
        wanted = [x for x in leaves if x.requires_grad]
        weights = torch.linspace(0.5, 1.5, result.numel()).view(result.shape).to(result)
        return list(torch.autograd.grad(result, wanted, weights))

    return run


def _scatter(function: Function) -> Callable[[_Numbers], list[Case]]:
    """Yields scatters of many numbers into few elements."""

    def cases(numbers: _Numbers) -> list[Case]:
        source, into = numbers.uniform(COUNT), numbers.uniform(4)
        return [(function, (into, numbers.indices(COUNT, 4), source))]

    return cases


def _norm(p: float) -> Function:
    return lambda x, dim: torch.linalg.vector_norm(x, p, dim)


CASES: dict[str, Callable[[_Numbers], list[Case]]] = {
    "sum": _reduction(lambda x, dim: x.sum(dim)),
    "sum of ones": _one(lambda n: (torch.ones(COUNT // 2, dtype=n.dtype),), lambda x: x.sum()),
    "nansum": _reduction(lambda x, dim: x.nansum(dim)),
    "mean": _reduction(lambda x, dim: x.mean(dim)),
    "nanmean": _reduction(lambda x, dim: x.nanmean(dim)),
    "std": _reduction(lambda x, dim: x.std(dim)),
    "var": _reduction(lambda x, dim: x.var(dim)),
    "std_mean": _reduction(lambda x, dim: torch.std_mean(x, dim)),
    "var_mean": _reduction(lambda x, dim: torch.var_mean(x, dim)),
    "norm": _reduction(lambda x, dim: x.norm(dim=dim)),
    **{f"linalg.vector_norm with {p}": _reduction(_norm(p)) for p in (1, 2, 3)},
    "dist": _one(lambda n: (n.uniform(COUNT), n.uniform(COUNT)), torch.dist),
    "prod": _of_one_dimension(lambda x, dim: (1 + x / 5000).prod(dim)),
    "logsumexp": _reduction(lambda x, dim: x.logsumexp(dim)),
    "softmax": _of_one_dimension(lambda x, dim: x.softmax(dim)),
    "log_softmax": _of_one_dimension(lambda x, dim: x.log_softmax(dim)),
    "cumsum": _of_one_dimension(lambda x, dim: x.cumsum(dim)),
    "cumprod": _of_one_dimension(lambda x, dim: (1 + x / 5000).cumprod(dim)),
    "logcumsumexp": _of_one_dimension(lambda x, dim: x.logcumsumexp(dim)),
    "trapezoid": _of_one_dimension(lambda x, dim: torch.trapezoid(x, dim=dim)),
    **{
        f"nn.functional.{name}": _loss(getattr(functional, name))
        for name in (
            *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss"),
            *("soft_margin_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
        )
    },
    "nn.functional.cross_entropy": lambda n: [
        (
            _reduced(functional.cross_entropy, kind),
            (n.normal(COUNT // 4, 4), n.indices(COUNT // 4, 4)),
        )
        for kind in ("mean", "sum")
    ],
    "nn.functional.cross_entropy of many classes": _one(
        lambda n: (n.normal(1, COUNT), n.indices(1, COUNT)), functional.cross_entropy
    ),
    "nn.functional.cosine_similarity": _one(
        lambda n: (n.uniform(4, COUNT // 4), n.uniform(4, COUNT // 4)), functional.cosine_similarity
    ),
    **{
        f"nn.functional.{name}{dims}d": make_cases(getattr(functional, f"{name}{dims}d"), dims)
        for name, make_cases in (("avg_pool", _pool), ("adaptive_avg_pool", _adaptive))
        for dims in (1, 2, 3)
    },
    "nn.functional.layer_norm": _one(
        lambda n: (n.uniform(4, COUNT // 4),), lambda x: functional.layer_norm(x, x.shape[1:])
    ),
    "nn.functional.rms_norm": _one(
        lambda n: (n.uniform(4, COUNT // 4),), lambda x: functional.rms_norm(x, x.shape[1:])
    ),
    "nn.functional.batch_norm": _one(
        lambda n: (n.uniform(COUNT // 4, 4),),
        lambda x: functional.batch_norm(x, None, None, training=True),
    ),
    "nn.functional.group_norm": _one(
        lambda n: (n.uniform(2, 4, COUNT // 8),), lambda x: functional.group_norm(x, 2)
    ),
    "nn.functional.instance_norm": _one(
        lambda n: (n.uniform(2, 4, COUNT // 8),), lambda x: functional.instance_norm(x)
    ),
    "matmul": _one(lambda n: (n.uniform(2, COUNT // 2), n.uniform(COUNT // 2, 2)), torch.matmul),
    "scatter_add": _scatter(lambda into, at, source: into.scatter_add(0, at, source)),
    **{
        f"scatter_reduce with {name}": _scatter(
            lambda into, at, source, name=name: into.scatter_reduce(0, at, source, name)
        )
        for name in ("sum", "mean")
    },
    "index_add": _scatter(lambda into, at, source: into.index_add(0, at, source)),
    "index_put that accumulates": _scatter(
        lambda into, at, source: into.index_put((at,), source, accumulate=True)
    ),
    "gradient of embedding": _one(
        lambda n: (n.uniform(4, 3), n.indices(COUNT, 4)),
        _gradients(lambda table, at: functional.embedding(at, table)),
    ),
    "gradient of index_select": _one(
        lambda n: (n.uniform(4), n.indices(COUNT, 4)),
        _gradients(lambda x, at: x.index_select(0, at)),
    ),
    "gradient of gather": _one(
        lambda n: (n.uniform(4), n.indices(COUNT, 4)), _gradients(lambda x, at: x.gather(0, at))
    ),
    "gradient of expand": _one(
        lambda n: (n.uniform(4, 1),), _gradients(lambda x: x.expand(4, COUNT // 4))
    ),
    "gradient of nn.functional.linear": _one(
        lambda n: (n.uniform(COUNT // 4, 4), n.uniform(2, 4), n.uniform(2)),
        _gradients(functional.linear),
    ),
    "gradient of nn.functional.conv2d": _one(
        lambda n: (n.uniform(2, 2, 112, 112), n.uniform(2, 2, 3, 3), n.uniform(2)),
        _gradients(functional.conv2d),
    ),
    "gradient of nn.functional.layer_norm": _one(
        lambda n: (n.uniform(COUNT // 4, 4), n.uniform(4), n.uniform(4)),
        _gradients(lambda x, scale, shift: functional.layer_norm(x, (4,), scale, shift)),
    ),
    "gradient of nn.functional.batch_norm": _one(
        lambda n: (n.uniform(COUNT // 4, 4), n.uniform(4), n.uniform(4)),
        _gradients(
            lambda x, scale, shift: functional.batch_norm(
                x, None, None, scale, shift, training=True
            )
        ),
    ),
    "gradient of nn.functional.group_norm": _one(
        lambda n: (n.uniform(2, 4, COUNT // 8), n.uniform(4), n.uniform(4)),
        _gradients(lambda x, scale, shift: functional.group_norm(x, 2, scale, shift)),
    ),
}
