"""The test kernels of gather_host.cc, registered."""

import os

import torch

from torch_xla_ext import register_kernel

LIBRARY = os.environ["GATHER_KERNELS"]
PARAMETERS = {"window": 7, "offset": 1, "factor": 0.5, "bias": 1.5, "negate": False}
# Attributes for TestOptions, one of each type.
OPTIONS = {
    "mode": 'same "é"',
    "shifts": (1, -2, 2**62),
    "flag": True,
    "range": {"low": 3, "unit": "mm"},
    "weights": (0.1, -1e300),
    "halves": (0.5,),
    "steps": (),
}


def described(values: object) -> str:
    """Parameters as tests/kernel_api/describe.h writes them."""

    def one(value: object) -> str:
        if isinstance(value, dict):
            return "{" + described(value) + "}"
        if isinstance(value, str):
            return f"'{value}'"
        if isinstance(value, (tuple, list)):
            return "[" + "".join(one(item) + "," for item in value) + "]"
        return f"{value:.17g}" if isinstance(value, float) else str(int(value))

    return " ".join(map(one, values.values()))


def register() -> None:
    for name in ("TestGather", "TestOptions", "TestIncrement", "TestThrow"):
        register_kernel(name, LIBRARY)


def gathered(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The result of TestGather with PARAMETERS."""
    return table[index.long() + 1] * 0.5 + 1.5
