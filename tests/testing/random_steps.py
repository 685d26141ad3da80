"""Random functions that are called several times, and compared with the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch_xla

import torch_xla_ext
from testing.random_programs import Program, State


def compare(
    way: str, program: Program, device: torch.device, place: Callable[[State], None] | None = None
) -> bool:
    """Calls a program's function three times, and compares with the CPU.

    Args:
        way: how it is called: "lazy", "captured" or "openxla".
        program: of which it is the step.
        device: XLA's.
        place: what is done with its tensors before, such as sharding them.

    Returns:
        Whether the function could be called.

    Raises:
        AssertionError: a wrong number.
    """
    on_cpu, cpu_state = program.step(torch.device("cpu"))
    step, state = program.step(device)
    if place is not None:
        place(state)
    torch_xla.sync()
    if way == "captured":
        step = torch_xla_ext.capture(step)
    elif way == "openxla":
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
