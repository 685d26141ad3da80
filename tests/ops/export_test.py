"""Each operator in torch.export and in StableHLO, saved and loaded again."""

from pathlib import Path

import pytest
import torch
import torch_xla
from samples import OperatorSamples, for_each_differentiable_operator, to
from testing.scripts import run_script
from testing.xla import XLAC, register_host_kernels
from torch_xla.core import xla_model
from torch_xla.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo

from torch_xla_ext import ops


class Model(torch.nn.Module):
    """The operator between other operators, and a weight."""

    def __init__(self, function: object, shape: torch.Size) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(shape[-1]))

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return self.function(first * self.weight, *others) * 2


def model_and_arguments(op: OperatorSamples) -> tuple[Model, tuple[torch.Tensor, ...]]:
    args = op.arguments(torch.float32)
    return Model(op.function, args[0].shape), args


@for_each_differentiable_operator
def test_export(op: OperatorSamples) -> None:
    model, args = model_and_arguments(op)
    program = torch.export.export(model, args)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(op.overload) == 1
    assert torch.equal(program.module()(*args), model(*args))
    # It stays one operator in the core set too: there is nothing to decompose it to.
    core = program.run_decompositions()
    assert op.overload in [node.target for node in core.graph.nodes]


@for_each_differentiable_operator
def test_saved_program_is_loaded_by_another_process(op: OperatorSamples, tmp_path: Path) -> None:
    model, args = model_and_arguments(op)
    torch.export.save(torch.export.export(model, args), tmp_path / "model.pt2")
    torch.save((args, model(*args).detach()), tmp_path / "data.pt")
    script = (
        "import torch, torch_xla_ext\n"
        f"program = torch.export.load({str(tmp_path / 'model.pt2')!r})\n"
        f"args, expected = torch.load({str(tmp_path / 'data.pt')!r})\n"
        "assert torch.equal(program.module()(*args), expected)"
    )
    result = run_script(script)
    assert result.returncode == 0, result.stderr


def test_dynamic_dimension() -> None:
    model = Model(ops.simple_add, torch.Size([4]))
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        model, (torch.randn(3, 4), torch.randn(3, 4)), dynamic_shapes=({0: rows}, ({0: rows},))
    )
    # No limit of the dimension comes from the operator.
    (limits,) = program.range_constraints.values()
    assert limits.upper > 2**40
    a, b = torch.randn(7, 4), torch.randn(7, 4)
    assert torch.equal(program.module()(a, b), model(a, b))
    with pytest.raises(Exception, match="8"):
        program.module()(a, torch.randn(8, 4))


@for_each_differentiable_operator
def test_stablehlo(op: OperatorSamples, tmp_path: Path) -> None:
    model, args = model_and_arguments(op)
    exported = exported_program_to_stablehlo(torch.export.export(model, args))
    text = exported.get_stablehlo_text()
    assert text.count(f"stablehlo.custom_call @{op.target}(") == 1
    assert "api_version = 4" in text
    assert "operand_layouts = [dense<[1, 0]>" in text
    exported.save(tmp_path)
    loaded = StableHLOGraphModule.load(tmp_path)
    assert loaded.get_stablehlo_bytecode() == exported.get_stablehlo_bytecode()
    for module in (exported, loaded):
        result = module(*to("xla", args)).cpu()
        torch.testing.assert_close(result, model(*args))


@for_each_differentiable_operator
def test_loaded_stablehlo_runs_in_another_process(op: OperatorSamples, tmp_path: Path) -> None:
    """That process needs the target's registration, and so this wheel, but not the operator."""
    model, args = model_and_arguments(op)
    exported_program_to_stablehlo(torch.export.export(model, args)).save(tmp_path / "model")
    torch.save((args, model(*args).detach()), tmp_path / "data.pt")
    script = (
        "import torch, torch_xla\n"
        "from torch_xla.stablehlo import StableHLOGraphModule\n"
        f"module = StableHLOGraphModule.load({str(tmp_path / 'model')!r})\n"
        f"args, expected = torch.load({str(tmp_path / 'data.pt')!r})\n"
        "result = module(*[arg.to('xla') for arg in args]).cpu()\n"
        "torch.testing.assert_close(result, expected)"
    )
    result = run_script(script)
    assert result.returncode == 0, result.stderr


PAYLOADS = {
    "low bytes": bytes(range(15)),
    "around 127": bytes(range(120, 135)),
    "high bytes": bytes(range(241, 256)),
    "no UTF-8": b"\xff\xfe\x00\x80\xc3(",
    "quotes": b'"\\\n\r\t\0"',
    "empty": b"",
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_any_payload_survives_stablehlo(payload: bytes) -> None:
    """MLIR's strings are bytes: the loaded module's kernel receives the packed ones."""
    register_host_kernels("TestEcho")
    x = torch.randn(3).to(torch_xla.device())
    (traced,) = XLAC._xla_gpu_custom_call([x], payload, [[16]], [torch.int64], target="TestEcho")
    bytecode = xla_model.get_stablehlo_bytecode([traced])
    (result,) = XLAC._run_stablehlo(bytecode, [x])
    assert result.cpu().tolist()[: 1 + len(payload)] == [len(payload), *payload]
