"""Start and watch the processes of a program with ``PJRT_DEVICE=CUDA``.

This module is public. (xla_kernels.plugin finds the PJRT plugin.)
"""

import torch_xla

from torch_xla_ext.plugin.rendezvous import connect

__all__ = ["connect", "lost_process"]


def lost_process() -> str:
    """Return a sentence that names a process that the program has lost; "" if it lost none."""
    return torch_xla._XLAC._xla_lost_process()
