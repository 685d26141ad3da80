"""Choose the fastest of a kernel's configurations on this device, for given arrays."""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from xla_kernels import front_end
from xla_kernels.cuda_source import cache, device_timer
from xla_kernels.launch import Launch
from xla_kernels.signature.schema import ArrayType

# If "0", the first configuration is used without timing any.
VARIABLE = "TORCH_XLA_EXT_TUNING"
# Configurations that are slower than the best by this factor are not timed again.
_NEAR = 1.15
_ROUNDS = 4
_log = logging.getLogger(__name__)


class Arrays(NamedTuple):
    """The arrays of a call.

    Attributes:
        aliases: {result: operand} for results in an operand's buffer.
    """

    operands: Sequence[ArrayType]
    results: Sequence[ArrayType]
    aliases: Mapping[int, int]

    def __str__(self) -> str:
        return ", ".join(map(str, self.operands))


# Makes a launch and its parameters, as kernel_calls does; raises if it cannot be launched.
Prepared = Callable[[], tuple[Launch, Sequence[str]]]


def choose(
    where: str,
    configs: Sequence[Mapping[str, object]],
    source: object,
    arrays: Arrays,
    prepared: Sequence[Prepared],
) -> int:
    """Return the index of the fastest configuration.

    The configurations are timed once, and the choice is kept on disk with the compiled kernels. All
    processes of a program use the choice of the one that asks first.

    Args:
        where: prefix of messages.
        source: the kernel and the numbers of its launches, JSON-serializable, for the key.
        prepared: makes the launch of each configuration.

    Raises:
        RuntimeError: no configuration can be launched.
    """
    if os.environ.get(VARIABLE) == "0":
        return 0
    described = [
        [str(array) for array in (*arrays.operands, *arrays.results)],
        sorted(arrays.aliases.items()),
    ]
    device = device_timer.device_name()
    key = cache.key_of(["tuning", device, source, described, list(map(dict, configs))])

    def chosen() -> str:
        number = _load(key, len(configs))
        if number is None:
            number = _timed(where, configs, arrays, prepared, key, device)
        return str(number)

    return int(front_end.current().agreed(key, chosen))


def _timed(
    where: str,
    configs: Sequence[Mapping[str, object]],
    arrays: Arrays,
    prepared: Sequence[Prepared],
    key: str,
    device: str,
) -> int:
    """Return the index of the fastest configuration, and store it; 0 if none is timed."""
    candidates, errors = _candidates(where, configs, prepared)
    try:
        times = _times(where, configs, arrays, candidates, errors)
    except (device_timer.NoMemoryError, NotImplementedError) as error:
        number = next(iter(candidates))
        _log.warning("%s: %s, without timing any: %s", where, _text(configs[number]), error)
        return number
    number = min(times, key=times.__getitem__)
    _store(key, {"config": number, "milliseconds": times, "device": device})
    print(
        f"torch_xla_ext: {where}: {_text(configs[number])} takes {times[number]:.4g} ms "
        f"for {arrays} on {device}; the slowest of {len(times)} configurations takes "
        f"{max(times.values()):.4g} ms",
        file=sys.stderr,
    )
    return number


def _text(config: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items())


def _candidates(
    where: str, configs: Sequence[Mapping[str, object]], prepared: Sequence[Prepared]
) -> tuple[dict[int, device_timer.Launcher], list[Exception]]:
    """Return the configurations that can be launched, by index, and the others' errors.

    Raises:
        RuntimeError: no configuration can be launched.
    """
    candidates: dict[int, device_timer.Launcher] = {}
    errors: list[Exception] = []
    for number, prepare in enumerate(prepared):
        try:
            candidates[number] = _launcher(*prepare())
        except (RuntimeError, TypeError, ValueError) as error:
            # For instance, a static_assert failed, or there are too many threads.
            errors.append(error)
            _leave_out(where, configs[number], error)
    if not candidates:
        raise _none_can_be_launched(where, errors)
    return candidates, errors


def _times(
    where: str,
    configs: Sequence[Mapping[str, object]],
    arrays: Arrays,
    candidates: Mapping[int, device_timer.Launcher],
    errors: list[Exception],
) -> dict[int, float]:
    """Return the milliseconds of each candidate, by index.

    Args:
        errors: the errors of the other configurations.

    Raises:
        NoMemoryError: there is too little memory for the arrays.
        NotImplementedError: the front end cannot launch kernels.
        RuntimeError: no configuration can be launched, or one fails while it runs.
    """
    times: dict[int, float] = {}
    with device_timer.timer(arrays.operands, arrays.results, arrays.aliases) as timer:
        for number, launch in candidates.items():
            try:
                times[number] = timer.milliseconds(launch)
            except NotImplementedError:
                raise
            except device_timer.LostContextError as error:
                raise device_timer.LostContextError(
                    f"{where}: it failed with {_text(configs[number])}, and this process can no "
                    f"longer use the GPU: {error}"
                ) from error
            except RuntimeError as error:
                # For instance, the kernel needs too much shared memory.
                errors.append(error)
                _leave_out(where, configs[number], error)
        # Time the candidates again in turn, because the GPU's clock may have changed since the
        # first one.
        for _ in range(_ROUNDS):
            best = min(times.values(), default=0)
            for number in [each for each, time in times.items() if time <= _NEAR * best]:
                times[number] = min(times[number], timer.milliseconds(candidates[number]))
    if not times:
        raise _none_can_be_launched(where, errors)
    return times


def _leave_out(where: str, config: Mapping[str, object], error: Exception) -> None:
    _log.warning("%s: %s is skipped: %s", where, _text(config), error)


def _none_can_be_launched(where: str, errors: Sequence[Exception]) -> RuntimeError:
    return RuntimeError(f"{where}: none of its configurations can be launched: {errors[0]}")


def _launcher(launch: Launch, words: Sequence[str]) -> device_timer.Launcher:
    run = front_end.current().launch_now
    return lambda operands, results, stream: run(launch, words, operands, results, stream)


def _folder() -> Path | None:
    kernels = cache.folder()
    return None if kernels is None else kernels / "tuned"


def _load(key: str, count: int) -> int | None:
    if (folder := _folder()) is None:
        return None
    try:
        number = json.loads((folder / key).read_text())["config"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("the choice %s cannot be read: %s", folder / key, error)
        return None
    return number if isinstance(number, int) and 0 <= number < count else None


def _store(key: str, choice: Mapping[str, object]) -> None:
    if (folder := _folder()) is None:
        return
    try:
        cache.write(folder / key, json.dumps(choice).encode())
    except OSError as error:
        _log.warning("the choice cannot be written to %s: %s", folder, error)
