"""Make torch_xla count the processes on all hosts, not only on this one.

torch_xla reads only LOCAL_WORLD_SIZE: with one GPU on each of several hosts, `xm.all_reduce`
returned each process's own value.
"""

import os
from collections.abc import Callable

import torch_xla


def initialize_singleprocess(original: Callable[[], None]) -> Callable[[], None]:
    def initialize() -> None:
        from torch_xla._internal import pjrt

        from xla_kernels.plugin import options

        is_one_of_several = (
            os.environ.get("PJRT_DEVICE") == "CUDA"
            and options.Processes.from_environ(os.environ).count > 1
            and not torch_xla.runtime.is_spmd()
        )
        if is_one_of_several:
            pjrt.initialize_multiprocess(0, 1)
        else:
            original()

    return initialize
