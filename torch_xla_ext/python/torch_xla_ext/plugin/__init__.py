"""The processes of a program with ``PJRT_DEVICE=CUDA``; xla_kernels.plugin finds the plugin.

This module is public: integrations use it to start and watch processes.
"""

import torch_xla

from torch_xla_ext.plugin.rendezvous import connect

__all__ = ["connect", "lost_process"]


def lost_process() -> str:
    """Return a sentence that names the lost process of the program; "" while there is none."""
    return torch_xla._XLAC._xla_lost_process()
