"""The `cuda` entry point of the group `torch_xla.plugins`.

torch_xla imports this module and makes a CudaPlugin at its own import, on every machine: nothing
here may fail or look at the machine before a client is made.
"""

from __future__ import annotations

import os

import torch_xla
from torch_xla.experimental import plugins


class CudaPlugin(plugins.DevicePlugin):
    """PJRT_DEVICE=CUDA through a PJRT CUDA plugin of JAX, behind the bridge in _XLAC."""

    def library_path(self) -> str:
        """Finds and loads the plugin, and returns the path of the bridge in front of it.

        torch_xla calls this once, when it makes its client.

        Raises:
            CudaRuntimeError: CUDA can not be used; the text says why, and the remedy.
        """
        from torch_xla_ext.cuda import discovery
        from torch_xla_ext.cuda.errors import CudaRuntimeError

        runtime = discovery.prepare(discovery.System.current())
        try:
            torch_xla._XLAC._xla_load_pjrt_plugin(runtime.plugin.path)
        except RuntimeError as error:
            raise CudaRuntimeError(str(error)) from None
        return torch_xla._XLAC.__file__

    def client_create_options(self) -> dict[str, object]:
        from torch_xla_ext.cuda import options

        return options.client_create_options(os.environ)

    def requires_xla_coordinator(self) -> bool:
        """Whether the processes have to find each other before they make their clients."""
        from torch_xla_ext.cuda import options

        return options.Processes.from_environ(os.environ).count > 1

    def physical_chip_count(self) -> int:
        """How many processes xmp.spawn starts: GPU_NUM_DEVICES, else one for each visible GPU."""
        from torch_xla_ext.cuda import discovery

        return discovery.gpu_count(discovery.System.current())

    def configure_single_process(self) -> None:
        pass
