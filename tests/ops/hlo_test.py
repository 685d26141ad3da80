"""The optimized program has a custom call with each operator's target name.

XLA reads XLA_FLAGS once in a process, so each program is compiled in a separate process.
"""

import sys
from pathlib import Path

from samples import OperatorSamples, for_each_differentiable_operator
from testing.scripts import run_script

# The script has `operator`, and `args` for it on the CPU.
SCRIPT = """
import sys, torch, torch_xla
sys.path[:0] = {path!r}
from samples import OPERATORS, to
sample = OPERATORS[{name!r}]
operator, args = sample.function, sample.arguments(torch.float32)
{body}
"""


def optimized_programs(tmp_path: Path, op: OperatorSamples, body: str) -> list[str]:
    """Runs `body`, and returns the optimized HLO of each program that it compiled."""
    script = SCRIPT.format(path=sys.path, name=op.name, body=body)
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    result = run_script(script, XLA_FLAGS=flags)
    assert result.returncode == 0, result.stderr
    files = sorted(tmp_path.glob("*[cg]pu_after_optimizations.txt"))
    assert files, list(tmp_path.iterdir())
    return [file.read_text() for file in files]


def calls(program: str, target: str) -> list[str]:
    pattern = f'custom_call_target="{target}"'
    return [line for line in program.splitlines() if pattern in line]


@for_each_differentiable_operator
def test_the_call_is_in_the_optimized_program(tmp_path: Path, op: OperatorSamples) -> None:
    body = "print(operator(*to('xla', args)).cpu())"
    programs = optimized_programs(tmp_path, op, body)
    (line,) = [line for program in programs for line in calls(program, op.target)]
    assert "api_version=API_VERSION_TYPED_FFI" in line
    assert "custom_call_has_side_effect" not in line


@for_each_differentiable_operator
def test_a_call_of_constants_is_not_folded(tmp_path: Path, op: OperatorSamples) -> None:
    body = (
        "constants = [torch.ones(arg.shape, device='xla') for arg in args]\n"
        "result = operator(*constants).cpu()\n"
        "assert torch.equal(result, sample.reference(*[c.cpu() for c in constants]))"
    )
    programs = optimized_programs(tmp_path, op, body)
    with_call = [program for program in programs if calls(program, op.target)]
    assert len(with_call) == 1
    assert "parameter(0)" not in with_call[0]  # the operands are constants


@for_each_differentiable_operator
def test_a_call_that_nobody_uses_is_removed(tmp_path: Path, op: OperatorSamples) -> None:
    # The traced program has the call, but does not use its result.
    body = (
        "import torch_xla\n"
        "x = to('xla', args)\n"
        "unused = operator(*x)\n"
        "result = torch.stack([x[0], unused])[0] + 1\n"
        "assert sample.target in torch_xla._XLAC._get_xla_tensors_hlo([result])\n"
        "del unused\n"
        "assert torch.equal(result.cpu(), args[0] + 1)"
    )
    programs = optimized_programs(tmp_path, op, body)
    assert [line for program in programs for line in calls(program, op.target)] == []


@for_each_differentiable_operator
def test_equal_calls_are_one(tmp_path: Path, op: OperatorSamples) -> None:
    """Equal pure calls may become one; calls with different operands stay."""
    body = (
        "x = to('xla', args)\n"
        "total = sum(operator(*x) for _ in range(3)) + operator(*[t + 1 for t in x])\n"
        "total.cpu()"
    )
    programs = optimized_programs(tmp_path, op, body)
    assert len([line for program in programs for line in calls(program, op.target)]) == 2
