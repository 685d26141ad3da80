"""Random functions that are called several times, and compared with the CPU."""

import functools
import os
from collections.abc import Callable

import torch
import torch_xla

import torch_xla_ext
from testing.random_programs import Program, State
from testing.ways import run_by


def compare(
    way: str,
    program: Program,
    device: torch.device,
    place: Callable[[State], None] | None = None,
    views: bool = False,
    pending: bool = False,
) -> bool:
    """Calls a program's function three times, and compares with the CPU.

    Args:
        way: how it is called: "lazy", "captured", "captured with state" or "openxla".
        program: the program whose step is called.
        device: the XLA device.
        place: a function that prepares the tensors, for example shards them.
        views: whether the tensors are views.
        pending: whether before each call values are computed from its tensors, which are then
            written to, as by an optimizer; the values are read after all calls.

    Returns:
        Whether the function could be called.

    Raises:
        AssertionError: a wrong number.
    """
    keep = way == "captured with state"
    arguments = slice(3 if keep else 0, None)
    on_cpu, cpu_state = program.step(torch.device("cpu"), views, keep)
    step, state = program.step(device, views, keep)
    if place is not None:
        place(state)
    if not views:  # else operations wait for the first call
        torch_xla.sync()
    step = run_by(way.removesuffix(" with state"), step)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for call in range(3):
        if pending:
            kept += zip(_read_and_write(state), _read_and_write(cpu_state), strict=True)
        try:
            expected = [*on_cpu(*cpu_state[arguments]), *cpu_state]
        except (RuntimeError, IndexError):  # the first call's results are not valid arguments
            return call > 0
        if any(not (t.double().abs() <= 1e5).all() for t in expected):
            return call > 0
        # The next call writes to these tensors.
        expected = [t.clone() for t in expected]
        try:
            results = step(*state[arguments])
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
    for number, (value, wanted) in enumerate(kept):
        torch.testing.assert_close(value.cpu(), wanted, msg=f"pending value {number}")
    return True


def _read_and_write(state: State) -> list[torch.Tensor]:
    """Returns pending values that read the tensors, and writes to the tensors at once."""
    values = [tensor * 2 for tensor in state]
    for tensor in state[:3]:
        tensor.mul_(0.5)
    return [*values, values[0] + state[1]]


def check(
    way: str,
    count: int,
    device: torch.device,
    place: Callable[[State, int], None] | None = None,
    limit: str | None = None,
    views: bool = False,
    pending: bool = False,
) -> None:
    """Compares many functions, RANDOM_STEPS of them from RANDOM_SEED on if these are set.

    Args:
        way: as in compare().
        count: the number of functions.
        device: the XLA device.
        place: as in compare(), with the function's seed.
        limit: a part of the text of errors that are expected, because of upstream's limits.
        views: as in compare().
        pending: as in compare().

    Raises:
        AssertionError: wrong numbers or errors, or most functions could not be called.
    """
    count = int(os.environ.get("RANDOM_STEPS", "0")) or count
    first = int(os.environ.get("RANDOM_SEED", "0"))
    failures, called = [], 0
    for seed in range(first, first + count):
        program = Program(seed)
        prepare = None if place is None else functools.partial(place, seed=seed)
        try:
            called += compare(way, program, device, prepare, views, pending)
        except (AssertionError, RuntimeError, IndexError, TypeError, ValueError) as error:
            if limit is None or limit not in str(error):
                failures.append(f"# seed {seed}\n{program}\n# {error}")
    assert not failures, f"{len(failures)} of {count}:\n" + "\n\n".join(failures[:10])
    assert called > count // 2, "most of them could not be called"
