"""Samples of each operator of the wheel; the tests of this folder run for all of them.

Each kernel's folder defines its samples in samples.py.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from testing.samples import Arguments, OperatorSamples

__all__ = [
    "DEVICES",
    "OPERATORS",
    "Arguments",
    "OperatorSamples",
    "for_each_device",
    "for_each_differentiable_operator",
    "for_each_operator",
    "for_each_operator_and_dtype",
    "to",
]


def _collect() -> list[OperatorSamples]:
    samples = []
    for file in sorted(Path(__file__).parents[2].glob("kernels/*/samples.py")):
        spec = importlib.util.spec_from_file_location(f"samples_of_{file.parent.name}", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where torch.compile looks for a function's globals
        spec.loader.exec_module(module)
        samples += module.SAMPLES
    return samples


OPERATORS = {op.name: op for op in _collect()}
_DIFFERENTIABLE = {name: op for name, op in OPERATORS.items() if op.differentiable}

for_each_operator = pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
for_each_differentiable_operator = pytest.mark.parametrize(
    "op", _DIFFERENTIABLE.values(), ids=_DIFFERENTIABLE
)
for_each_operator_and_dtype = pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(op, dtype, id=f"{name}-{dtype}")
        for name, op in OPERATORS.items()
        for dtype in op.dtypes
    ],
)
# "cuda" are torch's own tensors, without XLA.
DEVICES = ["cpu", "xla", *(["cuda"] if torch.cuda.is_available() else [])]
for_each_device = pytest.mark.parametrize("device_type", DEVICES)


def to(device: str | torch.device, tensors: Arguments) -> Arguments:
    return tuple(tensor.to(device) for tensor in tensors)
