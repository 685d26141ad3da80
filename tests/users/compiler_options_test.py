"""Options of XLA's compiler for single programs (tests/pjrt_shim has the plugin's side)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as metrics

import torch_xla_ext
from torch_xla_ext.protobuf_wire_format import fields


def current() -> dict[str, str]:
    """The options of this thread, by XLA's compile_options.proto."""
    options = {}
    for number, override in fields(memoryview(torch_xla._XLAC._xla_compile_options())):
        assert number == 7  # CompileOptionsProto.env_option_overrides
        name, value = dict(fields(override)).values()
        ((number, text),) = fields(value)
        assert number == 1  # OptionOverrideProto.string_field
        options[bytes(name).decode()] = bytes(text).decode()
    return options


def test_options_of_a_block() -> None:
    with torch_xla_ext.compiler_options(xla_gpu_autotune_level=0, xla_one=True, xla_long="x" * 300):
        outer = {"xla_gpu_autotune_level": "0", "xla_one": "True", "xla_long": "x" * 300}
        assert current() == outer
        with torch_xla_ext.compiler_options(xla_gpu_autotune_level=2, xla_two=0.5):
            assert current() == outer | {"xla_gpu_autotune_level": "2", "xla_two": "0.5"}
        assert current() == outer
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(current).result() == {}
    assert current() == {}


def test_options_end_with_an_error() -> None:
    with pytest.raises(KeyError), torch_xla_ext.compiler_options(xla_one=True):
        raise KeyError
    assert current() == {}


def test_a_program_with_options_is_another_one(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    torch_xla.sync()

    def compiled() -> int:
        before = metrics.metric_data("CompileTime")[0]
        y = x * 5 + 2
        torch_xla.sync()
        assert y.tolist() == [7] * 3
        return metrics.metric_data("CompileTime")[0] - before

    assert [compiled(), compiled()] == [1, 0]
    with torch_xla_ext.compiler_options(xla_gpu_autotune_level=0):
        assert [compiled(), compiled()] == [1, 0]
    assert compiled() == 0


def test_a_deterministic_program_is_another_one(device: torch.device) -> None:
    """XLA:GPU then adds the values of a scatter up in one order."""
    indices, values = torch.tensor([0, 1, 0], device=device), torch.ones(3, device=device)
    torch_xla.sync()

    def compiled() -> int:
        before = metrics.metric_data("CompileTime")[0]
        y = torch.zeros(2, device=device).index_add(0, indices, values)
        torch_xla.sync()
        assert y.tolist() == [2.0, 1.0]
        return metrics.metric_data("CompileTime")[0] - before

    assert [compiled(), compiled()] == [1, 0]
    torch.use_deterministic_algorithms(True)
    try:
        assert [compiled(), compiled()] == [1, 0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert compiled() == 0


def test_a_captured_step_keeps_its_options(device: torch.device) -> None:
    """The options stay when the step is traced again: in calls 2, 4, 8, …, and for other shapes."""
    programs = []

    @torch_xla_ext.capture(check_python=False, verify=16)
    def step(x: torch.Tensor) -> torch.Tensor:
        programs.append(current())
        return x * 7 + 3

    inputs = [torch.full((4 + n // 8,), float(n), device=device) for n in range(16)]
    torch_xla.sync()
    with torch_xla_ext.compiler_options(xla_gpu_autotune_level=0):
        step(inputs[0])
    results = [step(x) for x in inputs]
    assert [result[0].item() for result in results] == [n * 7 + 3 for n in range(16)]
    assert step.num_captures == 2
    assert len(programs) > 4
    assert all(options == {"xla_gpu_autotune_level": "0"} for options in programs)
