"""The plug-in for CUDA, which torch_xla loads at its own import: the entry point `cuda`.

torch_xla makes a CudaPlugin on every machine, so nothing here may fail or inspect the machine
before a client is made. For the same reason, this module runs torch_xla_ext_startup.install.
"""

import os

import torch_xla
from torch_xla.experimental import plugins

from torch_xla_ext_startup import install


class CudaPlugin(plugins.DevicePlugin):
    """PJRT_DEVICE=CUDA through a PJRT CUDA plugin of JAX, behind the shim in _XLAC."""

    def library_path(self) -> str:
        """Find and load the plugin, and return the path of the shim in front of it.

        torch_xla calls this once, when it makes its client.

        Raises:
            CudaRuntimeError: CUDA cannot be used; the text says why, and the remedy.
        """
        from torch_xla_ext.attention import scaled_dot_product
        from xla_kernels.plugin import discovery
        from xla_kernels.plugin.errors import CudaRuntimeError

        scaled_dot_product.install()
        runtime = discovery.prepare(discovery.System.current(), torch_xla.runtime.is_spmd())
        try:
            torch_xla._XLAC._xla_load_pjrt_plugin(runtime.plugin.path)
        except RuntimeError as error:
            raise CudaRuntimeError(str(error)) from None
        return torch_xla._XLAC.__file__

    def client_create_options(self) -> dict[str, object]:
        from xla_kernels.plugin import options

        return options.client_create_options(os.environ)

    def requires_xla_coordinator(self) -> bool:
        """Return whether the processes have to find each other before they make their clients.

        torch_xla asks this first when it makes its client, so this reports errors of the rendezvous
        (torch_xla_ext.plugin.rendezvous).

        Raises:
            CudaRuntimeError: ranks and counts do not fit together, or a port is taken.
        """
        from torch_xla_ext.plugin import rendezvous
        from xla_kernels.plugin import options

        rendezvous.prepare(os.environ)
        return options.Processes.from_environ(os.environ).count > 1

    def physical_chip_count(self) -> int:
        """Return the number of processes of xmp.spawn: GPU_NUM_DEVICES, else the visible GPUs."""
        from xla_kernels.plugin import discovery

        return discovery.gpu_count(discovery.System.current())

    def configure_single_process(self) -> None:
        pass


install.install()
