"""Each operator on eager, lazy, CPU and meta tensors: the same result, the same errors."""

import doctest
import importlib
import subprocess
import sys

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from samples import (
    OPERATORS,
    OperatorSamples,
    for_each_device,
    for_each_differentiable_operator,
    for_each_operator,
    for_each_operator_and_dtype,
    to,
)
from testing.xla import compilations, custom_call_lines
from torch_xla.debug import metrics
from torch_xla.experimental import eager_mode_context

from torch_xla_ext import ops


def test_every_operator_has_samples() -> None:
    without_samples = [
        "all_reduce",  # of several devices; kernels/all_reduce has its tests
        "all_reduce_rms_norm",
        # compositions of torch's operations and of other operators here
        *("fused_experts", "gather_rows", "group_ranges"),
        *("merge_attention_states", "quantize_inputs", "rows_of_groups"),
    ]
    assert sorted([*OPERATORS, *without_samples]) == sorted(ops.__all__)


def test_importing_the_package_registers_them() -> None:
    script = (
        "import torch, torch_xla_ext\n"
        "print(torch.ops.xla_gpu.simple_add(torch.ones(2), torch.ones(2)).tolist())"
    )
    # Without a device: CPU tensors need no XLA client.
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "[2.0, 2.0]\n", result.stderr


def test_importing_the_package_imports_no_compiler() -> None:
    script = (
        "import sys, torch, torch_xla\n"
        "before = set(sys.modules)\n"
        "import torch_xla_ext\n"
        "print([m for m in set(sys.modules) - before if not m.startswith('torch_xla_ext')])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    imported = result.stdout
    assert "torch._inductor" not in imported
    assert "torch._dynamo" not in imported


@for_each_operator
def test_the_documented_example(op: OperatorSamples) -> None:
    module = importlib.import_module(op.documented.__module__)
    examples = doctest.DocTestFinder().find(op.documented, globs=vars(module))
    assert sum(len(example.examples) for example in examples) > 0
    for example in examples:
        assert doctest.DocTestRunner().run(example).failed == 0


@for_each_device
@for_each_operator_and_dtype
def test_result(op: OperatorSamples, dtype: torch.dtype, device_type: str) -> None:
    args = op.arguments(dtype)
    result = op.function(*to(device_type, args))
    assert result.device.type == device_type
    op.check(result.cpu(), args)


@for_each_operator
def test_lazy_call_is_one_custom_call_by_name(op: OperatorSamples) -> None:
    (line,) = custom_call_lines(op.function(*to("xla", op.arguments(op.dtypes[0]))))
    assert f'custom_call_target="{op.target}"' in line


@for_each_operator
def test_eager_mode_runs_at_once_and_compiles_once(op: OperatorSamples) -> None:
    args = op.arguments(op.dtypes[0])
    with eager_mode_context(True):
        tensors = to("xla", args)
        torch_xla.sync()
        results = [op.function(*tensors)]
        xm.wait_device_ops()
        before = compilations()
        executed = metrics.metric_data("EagerOpExecuteTime")[0]
        results += [op.function(*tensors) for _ in range(3)]
        xm.wait_device_ops()
        assert metrics.metric_data("EagerOpExecuteTime")[0] >= executed + 3
        assert compilations() == before
        for result in results:
            op.check(result.cpu(), args)


VIEWS = {
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[1:, 1:3],
    "strided": lambda x: x[::2, ::2],
    "expanded": lambda x: x[:1].expand(5, 4),
    "empty": lambda x: x[:0],
    "negated": torch._neg_view,
    "lazily cloned": torch._lazy_clone,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_cpu_tensors_that_are_views(view: object) -> None:
    a, b = (view(torch.randn(3, 4)) for _ in range(2))
    result = ops.simple_add(a, b)
    assert torch.equal(result, a + b)
    assert result.is_contiguous()


@for_each_device
@for_each_operator
def test_result_is_no_alias(op: OperatorSamples, device_type: str) -> None:
    args = op.arguments(op.dtypes[0])
    tensors = to(device_type, tuple(tensor.clone() for tensor in args))
    op.function(*tensors).zero_()
    assert all(torch.equal(tensor.cpu(), arg) for tensor, arg in zip(tensors, args, strict=True))


@for_each_device
def test_operands_updated_in_place_before_the_call(device_type: str) -> None:
    a = torch.randn(3, 4)
    x = a.to(device_type, copy=True)
    view = x.t()
    x.mul_(2)
    assert torch.equal(ops.simple_add(view, view).cpu(), (a * 4).t())


@for_each_operator
def test_meta_tensors(op: OperatorSamples) -> None:
    args = op.arguments(op.dtypes[0])
    result = op.function(*to("meta", args))
    expected = op.reference(*args)
    assert (result.device.type, result.shape, result.dtype) == (
        "meta",
        expected.shape,
        expected.dtype,
    )


def test_meta_tensors_have_the_resulting_strides() -> None:
    x = torch.empty(3, 4, device="meta").t()
    assert ops.simple_add(x, x).stride() == (3, 1)


@for_each_differentiable_operator
def test_kinds_of_tensors_without_a_kernel(op: OperatorSamples) -> None:
    args = tuple(tensor.to_sparse() for tensor in op.arguments(torch.float32))
    with pytest.raises(NotImplementedError, match=rf"'xla_gpu::{op.name}' .* 'SparseCPU' backend"):
        op.function(*args)
