"""run_torch_operator and register_torch_operator: PyTorch's own kernels in XLA programs."""

import re

import pytest
import torch
import torch_xla
from testing.xla import compilations, hlo
from torch import Tensor
from torch.utils import _pytree as pytree

import torch_xla_ext
from torch_xla_ext.launchers.torch_operator import register as registering

run = torch_xla_ext.run_torch_operator
register = torch_xla_ext.register_torch_operator
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check(name: str, *args: object, **kwargs: object) -> None:
    """Compares with the operator on the CPU, bit for bit, dtypes and None included."""
    packet, overload = registering._packet(name)
    on_cpu = (getattr(packet, overload) if overload else packet)(*args, **kwargs)
    to_xla = lambda t: t.to("xla")  # noqa: E731
    xla_args, xla_kwargs = pytree.tree_map_only(Tensor, to_xla, (args, kwargs))
    on_xla = run(name, *xla_args, **xla_kwargs)
    assert pytree.tree_structure(on_xla) == pytree.tree_structure(on_cpu)
    for mine, other in zip(pytree.tree_leaves(on_xla), pytree.tree_leaves(on_cpu), strict=True):
        if isinstance(other, Tensor) and other.numel():
            assert mine.device.type == "xla"
            torch.testing.assert_close(mine.cpu(), other, rtol=0, atol=0, equal_nan=True)
        elif isinstance(other, Tensor):
            assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        else:
            assert mine == other


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(64, 129), (1,), (3, 0), (2, 3, 5, 7)])
def test_softmax_of_any_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check("aten::softmax.int", torch.randn(shape).to(dtype), -1)


def test_each_kind_of_argument() -> None:
    x = torch.randn(6, 8)
    check("aten::topk", x, k=3, largest=False)  # ints, bools, two results
    check("aten::cat", [x, x + 1, x[:2]], 0)  # a list of tensors
    check("aten::sum.dim_IntList", x, [0, 1], True, dtype=torch.float64)  # ints, a dtype
    check("aten::gelu", x, approximate="tanh")  # a string
    check("aten::clamp.Tensor", x, None, torch.zeros(6, 1))  # optional tensors
    check("aten::leaky_relu", x, 0.3)  # a number
    check("aten::add.Tensor", x, x, alpha=2)
    check("aten::upsample_nearest2d.vec", x[None, None], None, [1.5, 2.0])  # floats
    rows = torch.tensor([1, 2, 7])
    check("aten::index_put", x, [None, rows], torch.zeros(3))  # optional tensors in a list
    check("aten::histc", x, bins=4, min=float("-1.5"), max=2)
    check("aten::layer_norm", x, [8], torch.ones(8), None, 1e-5)
    check("aten::nan_to_num", torch.tensor([float("nan"), float("inf")]), nan=float("inf"))
    check("aten::unsafe_split.Tensor", x, 3, 1)  # a list of results
    check("aten::_to_copy", x, dtype=torch.float16, memory_format=torch.contiguous_format)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("number", [2, 2.5, True])
def test_numbers_promote_as_on_the_cpu(dtype: torch.dtype, number: float) -> None:
    register("aten::mul.Tensor")  # through the dispatcher, which makes tensors of numbers
    x = torch.tensor([0, 1, 1]).to(dtype)
    check("aten::add.Tensor", x, number)
    check("aten::add.Tensor", x, torch.tensor(number))
    expected = torch.ops.aten.mul.Tensor(x, number)
    result = torch.ops.aten.mul.Tensor(x.to("xla"), number)
    assert result.dtype == expected.dtype
    assert torch.equal(result.cpu(), expected)


def test_numbers_of_one_type_are_distinguished(device: torch.device) -> None:
    register("aten::mul.Tensor")
    x = torch.randn(3)
    for number in (2, 3, 2.5, 3.5, True, -0.0):
        result = torch.ops.aten.mul.Tensor(x.to(device), number)
        assert torch.equal(result.cpu(), x * number)


def test_results_that_are_none_or_numbers() -> None:
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    check("aten::_scaled_dot_product_flash_attention_for_cpu", q, k, v, is_causal=True)
    check("aten::native_batch_norm", torch.randn(4, 3), None, None, None, None, True, 0.1, 1e-5)
    grads = run(
        "aten::convolution_backward",
        *[t.to("xla") for t in (torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4))],
        torch.ones(1, 1, 1, 1).to("xla"),
        *(None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]),
    )
    assert grads[0] is None and grads[2] is None and grads[1].item() == 16


def test_numbers_in_the_program_differ_and_programs_are_reused(device: torch.device) -> None:
    x = torch.randn(4, 9)
    on_xla = x.to(device)
    for k in (1, 2, 3, 2, 1):
        assert torch.equal(run("aten::topk", on_xla, k)[0].cpu(), x.topk(k)[0])
    before = compilations()
    assert torch.equal(run("aten::topk", on_xla, 3)[0].cpu(), x.topk(3)[0])
    assert compilations() == before


def test_calls_are_cached(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, planned = torch.randn(4, 9), []
    on_xla = x.to(device)
    plan = registering.OperatorOverload._planned

    def counting_plan(operator: object, values: object) -> object:
        planned.append(values)
        return plan(operator, values)

    monkeypatch.setattr(registering.OperatorOverload, "_planned", counting_plan)
    for _ in range(3):  # swapped values differ
        for exponent in (2, 2.0, True, 0.0, -0.0, 3):
            result = run("aten::pow.Tensor_Scalar", on_xla, exponent)
            expected = torch.ops.aten.pow.Tensor_Scalar(x, exponent)
            assert torch.equal(result.cpu(), expected)
    assert len(planned) == 6
    for _ in range(2):
        assert run("aten::pow.Tensor_Scalar", on_xla[:2], 3).shape == (2, 9)
        assert run("aten::pow.Tensor_Scalar", on_xla.double(), 3).dtype == torch.float64
    assert len(planned) == 8
    with torch_xla_ext.debug.use_reference():  # the check is made at every call
        run("aten::pow.Tensor_Scalar", on_xla, 3)
    weight = on_xla.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="has no derivative"):
        run("aten::pow.Tensor_Scalar", weight, 3).sum().backward()


def test_overloads_are_chosen_by_types(device: torch.device) -> None:
    x = torch.randn(3, 4)
    on_xla = x.to(device)
    for _ in range(2):
        assert torch.equal(run("aten::sum", on_xla).cpu(), x.sum())
        assert torch.equal(run("aten::sum", on_xla, [1]).cpu(), x.sum(1))
        assert torch.equal(run("aten::sum", on_xla, dim=[0], keepdim=True).cpu(), x.sum(0, True))
        assert torch.equal(run("aten::pow", on_xla.abs(), 2).cpu(), x.abs().pow(2))
        assert torch.equal(run("aten::pow", on_xla.abs(), on_xla).cpu(), x.abs().pow(x))
        assert torch.equal(run("aten::pow", 2, on_xla).cpu(), torch.pow(2, x))


def test_operands_are_row_major(device: torch.device) -> None:
    x = torch.randn(5, 7, 3)
    result = run("aten::cumsum", x.to(device).permute(2, 0, 1), 1)
    assert torch.equal(result.cpu(), x.permute(2, 0, 1).cumsum(1))


def test_the_out_variant_fills_xlas_buffer(device: torch.device) -> None:
    text = hlo(run("aten::softmax.int", torch.ones(2, 3).to(device), 1))
    assert 'operator = "aten::softmax", overload = "int_out"' in text.replace("\\22", '"')


def test_errors_of_the_operator_have_its_text(device: torch.device) -> None:
    table = torch.ones(4, 2).to(device)
    result = run("aten::embedding", table, torch.tensor([9]).to(device))
    with pytest.raises(RuntimeError, match="aten::embedding: index out of range in self"):
        result.cpu()
    assert run("aten::embedding", table, torch.tensor([3]).to(device)).cpu().tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aten::nonzero", "a shape or a value that depends on its arguments' data"),
        ("aten::_local_scalar_dense", "a shape or a value that depends"),
        ("aten::view", "its result is a view of an argument"),
        ("aten::zeros", "it has no argument that is a tensor"),
        ("aten::size.int", "it neither returns a tensor nor writes to one"),
    ],
)
def test_unsupported_operators_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        register(name)


@torch.library.custom_op("existing_test::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x.clone()


def test_an_operator_without_a_fake_function_is_refused_until_it_has_one() -> None:
    with pytest.raises(NotImplementedError, match=r"register_fake\('existing_test::without"):
        register("existing_test::without_fake")
    without_fake.register_fake(torch.empty_like)
    assert len(register("existing_test::without_fake")) == 1


@pytest.mark.parametrize("name", ["aten::no_such_operator", "no_such_namespace::x"])
def test_unknown_operators(name: str) -> None:
    with pytest.raises(ValueError, match=f"torch has no operator '{name}'"):
        register(name)


@pytest.mark.parametrize("name", ["softmax", "", "a::b::c", None])
def test_bad_names(name: object) -> None:
    with pytest.raises(ValueError, match="namespace::name"):
        register(name)


def test_wrong_arguments(device: torch.device) -> None:
    x = torch.ones(3).to(device)
    with pytest.raises(TypeError, match="must be XLA tensors, but one is on cpu"):
        run("aten::add.Tensor", x, torch.ones(3))
    with pytest.raises(TypeError, match="none of its arguments is an XLA tensor"):
        run("aten::cat", [])
    with pytest.raises(TypeError, match="unexpected arguments: k"):
        run(torch.ops.aten.neg.default, x, k=3)
    with pytest.raises(TypeError, match="argument other is missing"):
        run(torch.ops.aten.add.Tensor, x)


# An operator in Python; a later one works in place. `seen` records where it runs.
@torch.library.custom_op("existing_test::scaled", mutates_args=())
def scaled(x: Tensor, factor: float, *, offset: float = 0.0) -> Tensor:
    if factor == 13:
        raise ValueError("13 is no good factor")
    assert x.device.type == "cpu"
    return x * factor + offset


@scaled.register_fake
def _(x: Tensor, factor: float, *, offset: float = 0.0) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, keyword_only_inputs, output: setattr(
        ctx, "factor", inputs[1]
    ),
)


@torch.library.custom_op("existing_test::add_to", mutates_args=("out", "count"))
def add_to(out: Tensor, x: Tensor, count: Tensor) -> Tensor:
    out += x
    count += 1
    return out.sum()


@add_to.register_fake
def _(out: Tensor, x: Tensor, count: Tensor) -> Tensor:
    return out.new_empty(())


@torch.library.custom_op("existing_test::no_formula", mutates_args=())
def no_formula(x: Tensor) -> Tensor:
    return x.exp()


no_formula.register_fake(torch.empty_like)


@torch.library.custom_op("existing_test::liar", mutates_args=())
def liar(x: Tensor) -> Tensor:
    return x[1:].clone()


liar.register_fake(torch.empty_like)


register("existing_test::scaled")
register("existing_test::add_to")
register("existing_test::no_formula")
register("existing_test::liar")


def test_a_registered_operator_takes_xla_tensors(device: torch.device) -> None:
    x = torch.randn(3, 4)
    result = torch.ops.existing_test.scaled(x.to(device), 0.5, offset=1)
    assert result.device.type == "xla"
    assert torch.equal(result.cpu(), x * 0.5 + 1)
    assert torch.equal(scaled(x, 2.0), x * 2)  # and those of the CPU


def test_errors_of_python(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="scaled: ValueError: 13 is no good factor"):
        scaled(torch.ones(3).to(device), 13.0).cpu()
    assert scaled(torch.ones(3).to(device), 2.0).tolist() == [2, 2, 2]


def test_a_fake_function_that_lies_is_an_error(device: torch.device) -> None:
    text = re.escape("it returned Float[2], but its fake function said Float[3]")
    with pytest.raises(RuntimeError, match=text):
        liar(torch.ones(3).to(device)).cpu()


def test_the_operators_own_derivative(device: torch.device) -> None:
    x = torch.randn(3).to(device).requires_grad_()
    scaled(x, 3.0).sum().backward()
    assert x.grad.tolist() == [3, 3, 3]


def test_a_backward_pass_without_a_derivative_is_an_error(device: torch.device) -> None:
    x = torch.randn(3).to(device).requires_grad_()
    result = no_formula(x)
    assert torch.equal(result.detach().cpu(), x.detach().cpu().exp())
    with pytest.raises((RuntimeError, NotImplementedError), match="no_formula"):
        result.sum().backward()


def test_in_place(device: torch.device) -> None:
    state, count, x = torch.ones(4, 3), torch.zeros(1), torch.randn(3)
    on_xla, count_on_xla = state.to(device), count.to(device)
    for _ in range(3):
        total = add_to(state[1], x, count)
        on_device = torch.ops.existing_test.add_to(on_xla[1], x.to(device), count_on_xla)
        assert torch.equal(on_device.cpu(), total)
        torch_xla.sync()
    assert torch.equal(on_xla.cpu(), state)
    assert count_on_xla.item() == 3
    run("existing_test::add_to", on_xla[2], x.to(device), count_on_xla)
    assert torch.equal(on_xla[2].cpu(), torch.ones(3) + x)
    assert "output_to_operand_aliasing" in hlo(add_to(on_xla[1], x.to(device), count_on_xla))


def test_in_place_under_compile(device: torch.device) -> None:
    @torch.compile(backend="openxla", fullgraph=True)
    def step(state: Tensor, x: Tensor, count: Tensor) -> Tensor:
        return add_to(state, scaled(x, 2.0), count) * 2

    state, count, x = torch.ones(3), torch.zeros(1), torch.randn(3)
    on_xla, count_on_xla = state.to(device), count.to(device)
    for _ in range(3):
        total = add_to(state, x * 2, count) * 2
        assert torch.equal(step(on_xla, x.to(device), count_on_xla).cpu(), total)
    assert torch.equal(on_xla.cpu(), state)
    assert count_on_xla.item() == 3


_VLLM_LIKE = torch.library.Library("existing_test_vllm", "DEF")
# `Tensor!`, and no fake function where nothing is returned, as vLLM defines its operators.
_VLLM_LIKE.define("scale(Tensor! result, Tensor input, float factor) -> ()")
_VLLM_LIKE.define("sums(Tensor! total, Tensor x, Tensor!? out, int? n=None) -> Tensor[]")


def _scale(result: Tensor, input: Tensor, factor: float) -> None:
    result.copy_(input * factor)


def _sums(total: Tensor, x: Tensor, out: Tensor | None, n: int | None = None) -> list[Tensor]:
    total += x.sum()
    if out is not None:
        out.copy_(x + total)
    return [x * (n or 1), x.sum(-1)]


_VLLM_LIKE.impl("scale", _scale, "CPU")
_VLLM_LIKE.impl("sums", _sums, "CPU")
torch.library.register_fake(
    "existing_test_vllm::sums",
    lambda total, x, out, n=None: [torch.empty_like(x), x.new_empty(x.shape[:-1])],
    lib=_VLLM_LIKE,
)


def test_schemas_that_name_no_aliases(device: torch.device) -> None:
    register("existing_test_vllm::scale")
    x = torch.randn(4, 6)

    def scaled(x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        torch.ops.existing_test_vllm.scale(result, x, 3.0)
        return result + 1

    expected = x * 3 + 1
    torch.testing.assert_close(scaled(x.to(device)).cpu(), expected)
    compiled = torch.compile(scaled, backend="openxla", fullgraph=True)
    torch.testing.assert_close(compiled(x.to(device)).cpu(), expected)
    result = torch.empty(4, 6, device=device)
    run("existing_test_vllm::scale", result, x.to(device), 2.0)
    torch.testing.assert_close(result.cpu(), x * 2)


@pytest.mark.parametrize("has_out", [True, False])
def test_an_optional_argument_without_an_alias_name(has_out: bool, device: torch.device) -> None:
    register("existing_test_vllm::sums")
    x = torch.randn(4, 6)
    expected_total, expected_out = torch.ones(()), torch.zeros(4, 6) if has_out else None
    expected = _sums(expected_total, x, expected_out, 2)
    total, out = torch.ones((), device=device), torch.zeros(4, 6, device=device)
    found = torch.ops.existing_test_vllm.sums(total, x.to(device), out if has_out else None, 2)
    for mine, other in zip((*found, total), (*expected, expected_total), strict=True):
        torch.testing.assert_close(mine.cpu(), other)
    torch.testing.assert_close(out.cpu(), expected_out if has_out else torch.zeros(4, 6))


def test_compile(device: torch.device) -> None:
    compiled = torch.compile(lambda x: scaled(x, 0.5) + 1, backend="openxla", fullgraph=True)
    for size in (3, 5):
        x = torch.randn(size)
        assert torch.equal(compiled(x.to(device)).cpu(), x * 0.5 + 1)


class Model(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled(x, 0.5) + 1


def test_export_and_stablehlo(device: torch.device) -> None:
    from torch_xla.stablehlo import exported_program_to_stablehlo

    x = torch.randn(3)
    exported = torch.export.export(Model(), (x,))
    assert torch.equal(exported.module()(x.to(device)).cpu(), x * 0.5 + 1)
    text = exported_program_to_stablehlo(exported).get_stablehlo_text()
    assert "@XlaGpuTorchOperator" in text


def test_eager_mode(device: torch.device) -> None:
    torch_xla.experimental.eager_mode(True)
    try:
        assert scaled(torch.ones(2).to(device), 3.0).tolist() == [3, 3]
    finally:
        torch_xla.experimental.eager_mode(False)


def test_registering_a_name_registers_its_overloads() -> None:
    overloads = [overload._overloadname for overload in register("aten::hardshrink")]
    assert "default" in overloads
    assert register("aten::hardshrink") == register("aten::hardshrink")


def test_random_numbers_are_not_merged(device: torch.device) -> None:
    x = torch.ones(64).to(device)
    first, second = (run("aten::rand_like", x) for _ in range(2))
    torch_xla.sync()
    assert not torch.equal(first.cpu(), second.cpu())
