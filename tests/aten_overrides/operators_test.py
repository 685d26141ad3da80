"""Operators with wrong results in upstream torch_xla, against the CPU's results."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import CLOSE, check, check_calls, with_gradients
from testing.ways import run_by

functional = torch.nn.functional


@pytest.mark.parametrize(
    "elu",
    [
        *(functional.elu, lambda x: functional.elu(x, alpha=0.5)),
        lambda x: functional.elu(x * 2, alpha=0.5, inplace=True),
        lambda x: torch.ops.aten.elu(x, 0.5, 1.5, 0.75),
        lambda x: torch.ops.aten.elu(x, -0.5),
    ],
)
def test_gradient_of_elu(elu: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Upstream torch_xla uses elu's operand in place of its result."""
    x = torch.tensor([-3.0, -1.0, -0.25, 0.0, 0.25, 1.0, 3.0])
    check(with_gradients(elu), x, **CLOSE)


@pytest.mark.parametrize(
    "way, momentum",
    [("lazy", 0.1), ("lazy", 1.0), ("lazy", None), ("captured", 0.1), ("openxla", 0.1)],
)
def test_running_variance(way: str, momentum: float | None) -> None:
    """BatchNorm's running variance is divided by n - 1; upstream torch_xla divides by n."""
    models = [torch.nn.BatchNorm2d(3, momentum=momentum) for _ in range(2)]
    models[1].to("xla")
    step = run_by(way, torch.no_grad()(models[1].forward) if way == "captured" else models[1])
    generator = torch.Generator().manual_seed(0)
    for i in range(3):
        x = torch.randn(2, 3, 2, 2, generator=generator) * (i + 1) + i
        torch.testing.assert_close(step(x.to("xla")).cpu(), models[0](x), rtol=1e-4, atol=1e-4)
        for name, buffer in models[0].named_buffers():
            torch.testing.assert_close(models[1].get_buffer(name).cpu(), buffer)


@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 4)], ids=len)
def test_gradients_of_frozen_batch_norm(
    shape: tuple[int, ...], dtype: torch.dtype, is_affine: bool
) -> None:
    """Upstream torch_xla's backward() fails: it has no statistics of the batch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype)
    weights = torch.randn(shape, generator=generator).to(dtype)
    mean, variance = torch.randn(3, generator=generator), torch.rand(3, generator=generator) + 0.5
    affine = torch.randn(2, 3, generator=generator)

    def gradients(device: str) -> list[torch.Tensor]:
        operand, scale, offset = (t.to(device).requires_grad_() for t in (x, *affine))
        result = functional.batch_norm(
            operand,
            mean.to(device),
            variance.to(device),
            scale if is_affine else None,
            offset if is_affine else None,
            training=False,
        )
        leaves = [operand, scale, offset] if is_affine else [operand]
        return list(torch.autograd.grad((result * weights.to(device)).sum(), leaves))

    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    on_device = gradients("xla")
    torch_xla.sync()  # one program for all
    for found, expected in zip(on_device, gradients("cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("p", [float("inf"), float("-inf")])
def test_infinite_norm(p: float) -> None:
    x = torch.tensor([[1.0, -5.0, 2.0], [-0.5, 0.25, 3.0]])
    for options in (
        *({}, {"dim": 1}, {"dim": (0, 1)}, {"dim": 0, "keepdim": True}),
        {"dim": 1, "dtype": torch.float64},
    ):
        check(lambda x, options=options: x.norm(p, **options), x, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [None, 0, (0, 1), ()], ids=str)
def test_count_nonzero(dtype: torch.dtype, dim: int | tuple[int, ...] | None) -> None:
    """Upstream torch_xla counts in the operand's dtype: a mask to True, int8 to -56."""
    check(lambda x: x.count_nonzero(dim), (torch.arange(600).reshape(300, 2) % 3).to(dtype))


@pytest.mark.parametrize("scale", [1.7, 0.6, 2.0, (1.3, 2.4)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_interpolate(mode: str, scale: float | tuple[float, float], dtype: torch.dtype) -> None:
    """Upstream torch_xla uses the ratio of the sizes instead of the scale."""
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    tolerances = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else CLOSE
    check(lambda x: functional.interpolate(x, scale_factor=scale, mode=mode), x, **tolerances)


@pytest.mark.parametrize("divisor", [None, 1, 5, -5])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("pool", [functional.avg_pool2d, functional.avg_pool3d])
def test_average(
    pool: Callable[..., torch.Tensor], dtype: torch.dtype, divisor: int | None
) -> None:
    """Upstream torch_xla ignores divisor_override for integers, and without count_include_pad."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-50, 50, (1, 2, 5, 6, 7), generator=generator).to(dtype)
    for include in (True, False):
        options = {"padding": 1, "divisor_override": divisor, "count_include_pad": include}
        average = functools.partial(pool, kernel_size=3, **options)
        check(average, x[0] if pool is functional.avg_pool2d else x, **CLOSE)


@pytest.mark.parametrize("include_pad", [True, False])
@pytest.mark.parametrize("divisor", [None, 2])
def test_average_of_a_window_past_the_end(divisor: int | None, include_pad: bool) -> None:
    x = torch.randn(1, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    check(lambda x: functional.avg_pool2d(x, 6, 2, 1, True, include_pad, divisor), x, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32], ids=str)
def test_sums_of_integers(dtype: torch.dtype) -> None:
    """Upstream torch_xla adds up in the operand's dtype: positions in a mask are True."""
    x = (torch.arange(300) % 3).to(dtype)
    check(lambda x: x.cumsum(0), x)
    check(lambda x: (x[:0].cumsum(0), x[:0].view(2, 0).cumsum(1)), x)
    check(lambda x: x.cumsum(0, dtype=torch.float32), x)
    if dtype != torch.bool:
        check(torch.trace, (x * 40).reshape(15, 20))


def test_singular_values_of_a_batch() -> None:
    """Upstream torch_xla computes a batch's result shapes as for one matrix."""
    x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(x)
    torch.testing.assert_close(torch.linalg.svdvals(x.to("xla")).sum(-1).cpu(), values.sum(-1))
    torch.testing.assert_close(torch.norm(x.to("xla"), "nuc", dim=(1, 2)).cpu(), values.sum(-1))
    for decompose in (torch.svd, torch.linalg.svd):
        u, s, v = decompose(x.to("xla"))
        torch.testing.assert_close(s.cpu(), values)
        right = v.mT if decompose is torch.svd else v
        product = u[..., :3] * s[:, None] @ right
        torch.testing.assert_close(product.cpu(), x, rtol=1e-4, atol=1e-4)


def test_decompositions_of_float64() -> None:
    """XLA's have errors of 1e-7."""
    x = torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, s, v = torch.linalg.svd(x.to("xla"))
    torch.testing.assert_close((u * s @ v).cpu(), x, rtol=0, atol=1e-12)
    values, vectors = torch.linalg.eigh((x + x.T).to("xla"))
    torch.testing.assert_close((vectors * values @ vectors.T).cpu(), x + x.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32]
)
def test_floor_division(dtype: torch.dtype, way: str) -> None:
    """Upstream torch_xla rounds the rounded quotient: to it, 3.0 // 0.3 is 10."""

    def divide(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            *(x // y, x[2] // y, x // y[1], x // 0.1, 6.0 // y, x // 3),
            torch.div(x, y, rounding_mode="floor"),
            torch.div(x, 0.7, rounding_mode="floor"),
            (x // y) * y + x % y,
        ]

    infinity = float("inf")
    x = torch.tensor([1.0, -1, 3, -3, 0.7, -0.3, 6, 5e3, infinity, -1, 0, -5, 2, 5])
    y = torch.tensor([0.1, 0.1, 0.3, 0.3, 0.1, 0.1, 0.2, 0.1, 2, infinity, 0.5, 0, -0.4, -2])
    if not dtype.is_floating_point:
        x, y = x[[1, 2, 6, 7, 11, 12, 13]], 10 * y[[1, 2, 6, 7, 12, 12, 13]]
    check(divide, x.to(dtype), y.to(dtype), way=way)


REDUCTIONS: dict[str, Callable] = {
    "amax": lambda x, *dim: x.amax(*dim),
    "amin": lambda x, *dim: x.amin(*dim),
    "logsumexp": lambda x, dim=(0, 1): x.logsumexp((0, 1) if dim == () else dim),
    "mean": lambda x, *dim: x.mean(*dim),
    "nanmean": lambda x, *dim: x.nanmean(*dim),
    "norm": lambda x, dim=(): torch.linalg.vector_norm(x, 3, dim),
    "std": lambda x, *dim: x.std(*dim, correction=0),
    "std_mean": lambda x, dim=(): sum(torch.std_mean(x, dim, correction=0)),
    "sum": lambda x, *dim: x.sum(*dim),
    "var": lambda x, *dim: x.var(*dim, correction=0),
    "var_mean": lambda x, dim=(): sum(torch.var_mean(x, dim, correction=0)),
}


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_all_dimensions(name: str, way: str) -> None:
    """To upstream torch_xla, an empty list of dimensions means none of them: x.amax() is x."""
    reduce = REDUCTIONS[name]

    def several(x: torch.Tensor) -> list[torch.Tensor]:
        return [reduce(x), reduce(x, ()), reduce(x, (0, 1)), reduce(x, 1), reduce(x[0, 0], 0)]

    check(several, torch.tensor([[1.0, -2, 0.5], [4, 0.25, -3]]), way=way, **CLOSE)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_pairwise_distances(p: float) -> None:
    """The first distance is 0, where only some of these norms have a gradient."""
    x = torch.tensor([[1.0, -2, 0.5], [1, -2, 0.5], [0, 3, 1]])
    check(lambda x: functional.pdist(x, p), x, **CLOSE)
    check(with_gradients(lambda x: functional.pdist(x, p)[1:]), x, **CLOSE)


@pytest.mark.parametrize("shape, dims", [((0, 3), 0), ((3, 0), (0, 1)), ((0,), None)])
def test_roll_of_nothing(shape: tuple[int, ...], dims: int | tuple[int, ...] | None) -> None:
    """Upstream torch_xla divides by the dimension's size, and crashes."""
    shifts = (1, 2) if isinstance(dims, tuple) else 1
    assert torch.zeros(shape, device="xla").roll(shifts, dims).cpu().shape == shape


@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "adaptive_max_pool2d"])
def test_adaptive_pool_to_nothing(name: str) -> None:
    """Upstream torch_xla divides by the sizes of the output, and crashes."""
    pool = getattr(functional, name)
    x = torch.zeros(1, 2, 6, 6, device="xla")
    assert pool(x, (0, 2)).cpu().shape == (1, 2, 0, 2)
    assert pool(x, (3, 2)).cpu().shape == (1, 2, 3, 2)
    with pytest.raises(RuntimeError):
        pool(x, (-1, 2))


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pool_of_wrong_sizes(name: str) -> None:
    """Upstream torch_xla crashes with a stride of 0, and computes with other wrong sizes."""
    pool = getattr(functional, name)
    x = torch.zeros(1, 2, 6, 6, device="xla")
    with pytest.raises(RuntimeError, match=r"_pool: stride must be above 0, but is \[0, 2\]"):
        pool(x, 2, (0, 2))
    with pytest.raises(RuntimeError, match=r"_pool: kernel_size must be above 0, but is \[0, 0\]"):
        pool(x, 0)
    with pytest.raises(RuntimeError, match=r"padding must be 0 to half of kernel_size \[3, 3\]"):
        pool(x, 3, padding=2)
    assert pool(x, 3, 1, padding=1).cpu().shape == (1, 2, 6, 6)


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4), (2, 0, 4, 4), (0, 0)])
def test_inverse_and_its_info(shape: tuple[int, ...]) -> None:
    """In upstream torch_xla, `info` has the shape of the matrices."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    check(lambda x: tuple(torch.linalg.inv_ex(x)), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("singular", ["zeros", "ones", "one of a batch"])
def test_singular_matrices(singular: str) -> None:
    """Upstream torch_xla returns large numbers or NaN, and an `info` of 0."""
    x = {
        "zeros": torch.zeros(3, 3),
        "ones": torch.ones(3, 3),
        "one of a batch": torch.stack([torch.eye(3), torch.zeros(3, 3)]),
    }[singular]
    check(lambda x: torch.linalg.inv_ex(x).info, x)
    for function in (torch.linalg.inv, torch.inverse, torch.cholesky):
        with pytest.raises(torch.linalg.LinAlgError):
            function(x.to("xla"))


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
@pytest.mark.parametrize(
    "select",
    [
        lambda x, order: x.index_select(0, order.argsort()),
        lambda x, order: x.index_select(0, order.max(0).indices),
        lambda x, order: x.index_copy(0, order.argsort(), x + 1),
        lambda x, order: x.index_add(0, order.sort().indices, x),
        lambda x, order: x.index_fill(0, order.topk(2).indices, 3.0),
        lambda x, order: x.index_fill(0, order.min(0).indices, 3.0),
    ],
    ids=["argsort", "max", "copy", "add", "fill", "fill_one"],
)
def test_index_from_an_operator_with_several_results(
    select: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], way: str
) -> None:
    """Upstream torch_xla crashes the process."""
    check_calls(select, [(torch.randn(5, 3), torch.randn(5)) for _ in range(2)], way)


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
@pytest.mark.parametrize(
    "bounds",
    [(-512, None), (None, -512), (-512, 50), (-512, -2), (-512, None, 3), (-7, -512), (-7, -2)],
    ids=str,
)
def test_slice_that_begins_before_the_first_element(bounds: tuple, way: str) -> None:
    """Upstream torch_xla refuses to read and to write such a slice."""
    where = slice(*bounds)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        written = x * 2
        written[..., where] = 7
        return x[..., where] + 1, written, x[where]

    check_calls(step, [(torch.arange(20.0).view(2, 10) + i,) for i in range(2)], way)


def test_gradient_of_a_slice_that_begins_before_the_first_element() -> None:
    x = torch.arange(10.0, device="xla", requires_grad=True)
    (x[-512:-4] * x[:6]).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "function",
    [
        *(torch.add, torch.sub, torch.mul, torch.div, torch.fmod, torch.remainder, torch.pow),
        *(torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.maximum),
    ],
)
def test_operands_on_two_devices(function: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the option, calls raise an error as on CUDA. See tests/users/mixed_devices_test.py,
    too."""
    monkeypatch.setenv("TORCH_XLA_EXT_MIXED_DEVICES", "error")
    x, number = torch.ones(3, device="xla"), torch.tensor(2.0)
    for operands in ((x, torch.ones(3)), (torch.ones(3), x)):
        with pytest.raises(RuntimeError, match="to be on the same device, but found at least two"):
            function(*operands)
    assert function(x, number).cpu().tolist() == function(torch.ones(3), number).tolist()
    assert function(number, x).cpu().tolist() == function(number, torch.ones(3)).tolist()


def test_complex128_on_the_way_to_the_cpu() -> None:
    """The upstream binary drops imaginary parts when it copies operands to the CPU for an
    operator."""
    z = torch.tensor([3 + 4j, -1j], dtype=torch.complex128)
    check(torch.abs, z, **CLOSE)
    check(functional.l1_loss, z, torch.tensor([1.0, 2.0], dtype=torch.float64), **CLOSE)


@pytest.mark.parametrize("dtypes", [(torch.int64, torch.int32), (torch.bool, torch.int32)])
def test_indices_of_two_dtypes(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """The upstream kernels concatenate them, and fail."""
    x = torch.arange(12.0).view(3, 4)
    rows = torch.tensor([0, 1, 2] if dtypes[0] == torch.int64 else [1, 1, 1]).to(dtypes[0])
    columns = torch.tensor([3, 1, 1]).to(dtypes[1])
    check(lambda x, i, j: x[i, j], x, rows, columns)
    for accumulate in (False, True):
        put = lambda x, i, j, ones, add=accumulate: x.index_put_((i, j), ones, add)  # noqa: E731
        check(put, x, rows, columns, torch.ones(3))


@pytest.mark.parametrize("function", [torch.addcmul, torch.addcdiv])
def test_products_of_integers_and_floats(function: Callable) -> None:
    """The upstream kernels multiply by the value in the dtype of tensor1: half of it was 0."""
    x, n, y = torch.tensor([1.5, 2, -3]), torch.tensor([1, 2, 3]), torch.tensor([0.5, 4, 8])
    check(functools.partial(function, value=0.5), x, n, y, **CLOSE)
    with pytest.raises(RuntimeError, match="Integer division with addcdiv"):
        torch.addcdiv(x.to("xla"), n.to("xla"), n.to("xla"))


def test_lengths_of_ctc_loss_on_the_cpu() -> None:
    scores, targets = torch.randn(10, 2, 5).log_softmax(-1), torch.tensor([[1, 2], [3, 4]])
    lengths = torch.tensor([10, 9]), torch.tensor([2, 1])
    check(
        lambda scores, targets: functional.ctc_loss(scores, targets, *lengths),
        scores,
        targets,
        **CLOSE,
    )


@pytest.mark.parametrize("shape", [(8, 2, 3), (3, 8, 2, 3), (2, 4, 8, 2, 3)], ids=len)
def test_pixel_shuffle(shape: tuple[int, ...]) -> None:
    """Upstream takes the second dimension for the channels."""
    check(with_gradients(lambda x: functional.pixel_shuffle(x, 2)), torch.randn(shape), **CLOSE)


def test_the_huber_loss_has_the_dtype_of_its_input() -> None:
    x, target = torch.tensor([0.1, 2.0, 3.0]), torch.tensor([0.3, 0.5, 70.25])
    for reduction in ("none", "mean", "sum"):
        check(
            lambda x, y, reduction=reduction: functional.huber_loss(x, y, reduction),
            x.half(),
            target,
            **CLOSE,
        )


def test_gradients_of_batch_norm_without_statistics() -> None:
    x = torch.ones(2, 3, device="xla")
    for is_training, name in ((True, "save_mean"), (False, "running_mean")):
        with pytest.raises(RuntimeError, match=f"expected {name} and"):
            torch.ops.aten.native_batch_norm_backward(
                x, x, None, None, None, None, None, is_training, 1e-5, [True] * 3
            )


@pytest.mark.parametrize(
    "convolution",
    [functional.conv1d, functional.conv2d, functional.conv3d, functional.conv_transpose2d],
)
def test_convolutions_of_float16_are_rounded_once(convolution: Callable[..., torch.Tensor]) -> None:
    """XLA:CPU adds up in float16."""
    rank = int(convolution.__name__[-2])
    x = torch.rand(1, 64, *[4] * rank).half()
    weight = torch.rand(64, 64, *[3] * rank).half()

    def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [operand.to(device, dtype).requires_grad_() for operand in (x, weight)]
        result = convolution(*leaves)
        return [result.detach(), *torch.autograd.grad(result.mean(), leaves)]

    exact = gradients("cpu", torch.float64)
    for found, expected in zip(gradients("xla", torch.float16), exact, strict=True):
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.cpu().double(), expected, rtol=2**-10, atol=2**-24)


def test_logarithms_of_float64() -> None:
    x = torch.tensor([1e-12, 0.3, 2.0, 7.0, 1e12], dtype=torch.float64)
    for function in (torch.log2, torch.log10):
        check(function, x, rtol=1e-14)
        check(function, x.to(torch.complex128), rtol=1e-14)
    check(torch.acosh, torch.tensor([1.001, 1.1, 3.0]).half(), rtol=2**-10)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_binary_cross_entropy_of_small_probabilities(reduction: str) -> None:
    """Upstream's log(1 - x) is 0 for a small x."""
    x = torch.tensor([0.0, 1e-12, 1e-7, 0.3, 1.0])
    for target in (torch.zeros(5), torch.ones(5), torch.full((5,), 0.25)):
        check(
            lambda x, y: functional.binary_cross_entropy(x, y, y + 0.5, reduction=reduction),
            x,
            target,
            rtol=1e-6,
        )
