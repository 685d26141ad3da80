"""Refuse collectives of threads that each have a CPU device.

XLA:CPU matches the devices of a collective by the run of their program. Each thread runs its own
program, so the devices waited for each other until XLA aborted the process.
"""

import functools
from collections.abc import Callable

from torch_xla import runtime


def refuse(original: Callable[..., object]) -> Callable[..., object]:
    """Replace a function of torch_xla.core.xla_model that adds a collective to the program."""

    @functools.wraps(original)
    def collective(*args: object, **kwargs: object) -> object:
        # Before a launch, and under SPMD, the size is 1.
        if (
            runtime.world_size() > 1
            and runtime.device_type() == "CPU"
            and runtime.addressable_device_count() > 1
        ):
            raise RuntimeError(
                f"{original.__name__}: this process has a thread for each of its "
                f"{runtime.addressable_device_count()} CPU devices, and XLA:CPU has no collectives "
                "among threads: call torch_xla.runtime.use_spmd() instead of torch_xla.launch(), "
                "or unset CPU_NUM_DEVICES"
            )
        return original(*args, **kwargs)

    return collective
