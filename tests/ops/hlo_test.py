"""The optimized program has a custom call with each operator's target name."""

import torch
from samples import OperatorSamples, for_each_differentiable_operator, to
from testing import programs  # before the first computation
from testing.xla import hlo


def calls(compiled: list[str], target: str) -> list[str]:
    pattern = f'custom_call_target="{target}"'
    return [line for program in compiled for line in program.splitlines() if pattern in line]


@for_each_differentiable_operator
def test_the_call_is_in_the_optimized_program(op: OperatorSamples) -> None:
    with programs.compiled() as compiled:
        op.function(*to("xla", op.arguments(torch.float32))).cpu()
    (line,) = calls(compiled, op.target)
    assert "api_version=API_VERSION_TYPED_FFI" in line
    assert "custom_call_has_side_effect" not in line


@for_each_differentiable_operator
def test_a_call_of_constants_is_not_folded(op: OperatorSamples) -> None:
    ones = [torch.ones(arg.shape) for arg in op.arguments(torch.float32)]
    with programs.compiled() as compiled:
        result = op.function(*(torch.ones(one.shape, device="xla") for one in ones)).cpu()
    assert torch.equal(result, op.reference(*ones))
    assert "parameter(0)" not in compiled.with_target(op.target)  # the operands are constants


@for_each_differentiable_operator
def test_a_call_that_nobody_uses_is_removed(op: OperatorSamples) -> None:
    args = op.arguments(torch.float32)
    x = to("xla", args)
    unused = op.function(*x)
    result = torch.stack([x[0], unused])[0] + 1
    assert op.target in hlo(result)  # the traced program has the call
    del unused
    with programs.compiled() as compiled:
        assert torch.equal(result.cpu(), args[0] + 1)
    assert len(compiled) == 1
    assert calls(compiled, op.target) == []


@for_each_differentiable_operator
def test_equal_calls_are_one(op: OperatorSamples) -> None:
    """Equal pure calls may become one; calls with different operands stay."""
    x = to("xla", op.arguments(torch.float32))
    total = sum(op.function(*x) for _ in range(3)) + op.function(*(tensor + 1 for tensor in x))
    with programs.compiled() as compiled:
        total.cpu()
    assert len(calls(compiled, op.target)) == 2
