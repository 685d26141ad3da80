"""torch.compile(backend="openxla"): calls that PyTorch refuses are errors, at each call."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE, check, with_gradients
from testing.ways import run_by
from torch.nn import functional

Function = Callable[[torch.Tensor], torch.Tensor]
ERRORS = (RuntimeError, NotImplementedError, ValueError)


def _asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > -1).all())
    return x * 2


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4, device=x.device)
    y[x.flatten() > 0] = x[0]
    return y


BY_VALUE: dict[str, tuple[Function, list[float]]] = {
    # what is called, and a diagonal with which it is refused
    "_assert_async": (_asserted, [-2.0, 4.0]),
    "cholesky": (torch.linalg.cholesky, [-1.0, 4.0]),
    "inv": (torch.linalg.inv, [0.0, 4.0]),
    "MultivariateNormal": (
        lambda x: torch.distributions.MultivariateNormal(x[0], x).log_prob(x[1]),
        [-1.0, 4.0],
    ),
    "solve": (lambda x: torch.linalg.solve(x, x + 1), [0.0, 4.0]),
    "x[mask] = values": (_assigned, [0.0, 4.0]),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_a_value_that_is_refused_by_a_compiled_function(name: str) -> None:
    """The values are read after each run of the program."""
    function, refused = BY_VALUE[name]
    right, wrong = torch.diag(torch.tensor([2.0, 3.0])), torch.diag(torch.tensor(refused))
    run = run_by("openxla", function)
    with pytest.raises(ERRORS) as expected:
        function(wrong)
    for x in (right, 2 * right):
        torch.testing.assert_close(run(x.to("xla")).cpu(), function(x))
        with pytest.raises(type(expected.value)) as caught:
            run(wrong.to("xla"))
        assert str(caught.value).startswith(str(expected.value)[:30])


def _scattered(x: torch.Tensor) -> torch.Tensor:
    return x.masked_scatter(x > 0, x[1:] * 10)


def _unpooled(x: torch.Tensor) -> torch.Tensor:
    return functional.max_unpool2d(x.view(1, 1, 1, 4), x.long().view(1, 1, 1, 4), 2)


NAN, INFINITY = float("nan"), float("inf")
# What is called, numbers that PyTorch takes, and others that it refuses.
CHECKED: dict[str, tuple[Function, list[float], list[list[float]]]] = {
    "bernoulli": (
        torch.bernoulli,
        [0, 1, 1, 0],
        [[0.5, 0, 1, 1.5], [0, -0.5, 0, 0], [0, 0, NAN, 0]],
    ),
    "bernoulli_": (lambda x: torch.zeros_like(x).bernoulli_(x), [0, 1, 1, 0], [[0.5, 0, 1, 1.5]]),
    "histc": (lambda x: torch.histc(x, 2), [1, 2, 3, 4], [[1, 2, NAN, 4], [1, 2, 3, -INFINITY]]),
    "histc of a range": (lambda x: torch.histc(x, 2, 0, 3), [1, 2, 3, INFINITY], []),
    "masked_scatter": (_scattered, [-1, 2, 3, 4], [[1, 2, 3, 4]]),
    "masked_scatter_ of rows": (
        lambda x: torch.zeros(4, 2, device=x.device).masked_scatter_(x[:, None] > 0, x + 0),
        [1, -2, -3, 4],
        [[1, 2, 3, -4]],
    ),
    "matrix_rank": (
        lambda x: torch.linalg.matrix_rank(x.view(2, 2)),
        [1, 2, 3, 4],
        [[1, NAN, 2, 3]],
    ),
    "max_unpool2d": (_unpooled, [0, 3, 4, 7], [[0, 3, 4, 16], [0, -1, 4, 7]]),
    "multinomial": (
        lambda x: torch.multinomial(x, 1),
        [0, 0, 3, 0],
        [[0, -1, 3, 0], [NAN, 1, 1, 1], [1, 1, INFINITY, 1], [0, 0, 0, 0]],
    ),
    "multinomial of rows": (
        lambda x: torch.multinomial(x.view(2, 2), 3, replacement=True),
        [0, 1, 1, 0],
        [[1, 1, 0, 0], [1, -1, 1, 0], [NAN, 1, 1, 1]],
    ),
    "normal": (lambda x: torch.normal(x, x), [0, 0, 0, 0], [[1, -1, 0, 2], [1, 1, NAN, 2]]),
    "normal of a mean": (lambda x: torch.normal(0.0, x), [0, 0, 0, 0], [[1, -1, 0, 2]]),
    "one_hot": (
        lambda x: functional.one_hot(x.long(), 3),
        [0, 2, 1, 2],
        [[0, 2, 3, 1], [0, -1, 2, 1]],
    ),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_values_that_an_operator_checks(name: str, without_gradients: Callable) -> None:
    """CUDA's kernels refuse these values, too."""
    function, right, refused = CHECKED[name]
    run = run_by("openxla", function)
    with without_gradients():
        for wrong in [*refused, right, *refused]:
            x = torch.tensor(wrong, dtype=torch.float32)
            if wrong is right:
                torch.testing.assert_close(run(x.to("xla")).cpu(), function(x))
                continue
            with pytest.raises(RuntimeError) as expected:
                function(x)
            with pytest.raises(type(expected.value)) as caught:
                run(x.to("xla"))
            assert "frame #" not in str(caught.value)


@pytest.mark.parametrize("name", ["one_hot", "multinomial", "masked_scatter"])
def test_pytorchs_own_tensors(name: str) -> None:
    function, right, refused = CHECKED[name]
    run = run_by("openxla", function)
    x = torch.tensor(right, dtype=torch.float32)
    torch.testing.assert_close(run(x), function(x))
    with pytest.raises(RuntimeError):
        run(torch.tensor(refused[0], dtype=torch.float32))


def test_exported_one_hot_has_no_checks() -> None:
    class OneHot(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.one_hot(x, 3)

    exported = torch.export.export(OneHot(), (torch.tensor([0, 2], device="xla"),))
    graph = exported.run_decompositions().graph
    assert not [node for node in graph.nodes if "assert" in str(node.target)]


def test_nothing_is_written_before_a_check() -> None:
    def update(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.multinomial(weights, 2) + x[0].long()

    run = run_by("openxla", update)
    x, weights = torch.zeros(2, device="xla"), torch.tensor([0.0, 3.0, 1.0], device="xla")
    assert sorted(run(x, weights).tolist()) == [2, 3]
    with pytest.raises(RuntimeError, match="element < 0"):
        run(x, -weights)
    assert x.tolist() == [1, 1]


def test_gradient_of_masked_scatter() -> None:
    x = torch.tensor([-1.0, 2.0, 3.0, 4.0])
    run = with_gradients(run_by("openxla", _scattered))
    check(lambda x: (run if x.is_xla else with_gradients(_scattered))(x), x, **CLOSE)


def test_gradient_of_a_checked_function() -> None:
    function = BY_VALUE["solve"][0]
    run = with_gradients(run_by("openxla", function))
    x = torch.tensor([[2.0, 1.0], [0.5, 3.0]])
    check(lambda x: (run if x.is_xla else with_gradients(function))(x), x, **CLOSE)
    with pytest.raises(RuntimeError, match="singular"):
        run(torch.zeros(2, 2, device="xla"))


def test_nothing_is_written_before_an_error() -> None:
    def count(x: torch.Tensor, calls: torch.Tensor) -> torch.Tensor:
        inverse = torch.linalg.inv(x)
        calls += 1
        return inverse

    run, calls = run_by("openxla", count), torch.zeros((), device="xla")
    x = torch.eye(2, device="xla")
    for _ in range(2):
        run(x, calls)
        with pytest.raises(RuntimeError, match="singular"):
            run(0 * x, calls)
    assert calls.item() == 2


REFUSED: dict[str, Function] = {
    "addmv": lambda x: torch.addmv(x[0].byte(), x.byte(), x[0].byte(), beta=300),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x[None]] * 3, dropout_p=1.5),
    "div_": lambda x: x.long().div_(x.long()),
    "div_ by a number": lambda x: x.long().div_(2),
    "add_: complex": lambda x: (x + 0).add_(1j),
    "addcmul_": lambda x: x.long().addcmul_(x, x),
    "dropout": lambda x: torch.dropout(x, 1.5, train=True),
    "hardshrink": lambda x: functional.hardshrink(x.long()),
    "logit_": lambda x: x.long().logit_(),
    "masked_scatter_": lambda x: x[0].clone().masked_scatter_(x > 0, x),
    "mul_": lambda x: x.long().mul_(1.5),
    "nearest without channels": lambda x: functional.interpolate(x[None, :0], size=(2,)),
    "softshrink": lambda x: functional.softshrink(x.long()),
    "sub_": lambda x: x.sub_(x.cfloat()),
} | {
    f"{mode} of {rank} dimensions": lambda x, mode=mode, rank=rank: functional.interpolate(
        x[(None,) * rank].long(), scale_factor=2, mode=mode
    )
    for mode, rank in (
        *(("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)),
        *(("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 2)),
    )
}


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call(name: str, way: str) -> None:
    x = torch.eye(2) * 4
    with pytest.raises(ERRORS):
        REFUSED[name](x.clone())
    with pytest.raises(ERRORS):
        run_by(way, REFUSED[name])(x.to("xla"))


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.interpolate(x[None], scale_factor=1.7, mode="linear"),
        lambda x: functional.interpolate(x[None], size=3, mode="linear", align_corners=True),
        lambda x: functional.hardshrink(x, 0.3),
        lambda x: functional.softshrink(x, 0.3),
        lambda x: torch.renorm(x, 2, 1, 0.5),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_of_traced_functions(function: Function, way: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5, -1.25, 0.2, 3.0], [2.0, 0.75, -0.4, 1.0]], dtype=dtype)
    run = with_gradients(run_by(way, function))
    tolerances = CLOSE if dtype == torch.float32 else {"rtol": 2e-3, "atol": 2e-3}
    check(lambda x: (run if x.is_xla else with_gradients(function))(x), x, **tolerances)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("way", ["lazy", "openxla"])
def test_convolutions_of_integers(dtype: torch.dtype, way: str) -> None:
    x, weight = torch.arange(5, dtype=dtype)[None, None], torch.ones(1, 1, 2, dtype=dtype)
    check(functional.conv1d, x, weight, way=way)
    for function in (
        functional.conv_transpose1d,
        lambda x, weight: functional.conv1d(x, weight, dilation=2),
    ):
        if dtype == torch.int64:
            check(function, x, weight, way=way)
            continue
        with pytest.raises(NotImplementedError):
            function(x, weight)
        with pytest.raises(NotImplementedError, match="transposed or dilated"):
            run_by(way, function)(x.to("xla"), weight.to("xla"))
