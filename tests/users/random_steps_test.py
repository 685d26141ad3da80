"""Random functions, captured and under torch.compile(backend="openxla"), called three times each.

They read and write the same tensors in each call. Results and tensors must be those of the CPU.

RANDOM_STEPS and RANDOM_SEED choose how many, and which.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch_xla
from testing.random_programs import Program

import torch_xla_ext

COUNT = int(os.environ.get("RANDOM_STEPS", "0"))
SEED = int(os.environ.get("RANDOM_SEED", "0"))


def compare(way: str, program: Program, device: torch.device) -> bool:
    """Whether the function could be called. Raises an AssertionError for a wrong number."""
    on_cpu, cpu_state = program.step(torch.device("cpu"))
    step, state = program.step(device)
    torch_xla.sync()
    if way == "captured":
        step = torch_xla_ext.capture(step)
    else:
        torch._dynamo.reset()
        step = torch.compile(step, backend="openxla")
    for call in range(3):
        try:
            expected = [*on_cpu(*cpu_state), *cpu_state]
        except (RuntimeError, IndexError):  # what the first call wrote is no argument for a second
            return call > 0
        if any(not t.double().isfinite().all() or t.double().abs().max() > 1e5 for t in expected):
            return call > 0
        # The next call writes to what is compared here.
        expected = [t.clone() for t in expected]
        try:
            results = step(*state)
        except torch_xla_ext.CaptureError:  # operations that torch_xla runs on the host
            return False
        for name, value, wanted in zip(
            [*program.results, *"abcij"], [*results, *state], expected, strict=True
        ):
            torch.testing.assert_close(
                value.cpu(),
                wanted,
                rtol=2e-3,
                atol=2e-3,
                equal_nan=True,
                msg=f"call {call}: {name}",
            )
    return True


@pytest.mark.parametrize("way, count", [("captured", 400), ("openxla", 60)])
def test_random_steps(way: str, count: int, device: torch.device) -> None:
    count = COUNT or count
    failures, called = [], 0
    for seed in range(SEED, SEED + count):
        program = Program(seed)
        try:
            called += compare(way, program, device)
        except (AssertionError, RuntimeError, IndexError, TypeError, ValueError) as error:
            failures.append(f"# seed {seed}\n{program}\n# {error}")
    assert not failures, f"{len(failures)} of {count}:\n" + "\n\n".join(failures[:10])
    assert called > count // 2, "most of them could not be called"
