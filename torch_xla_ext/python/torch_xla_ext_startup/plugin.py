"""The entry point `cuda`: the CUDA plugin, which torch_xla loads when it is imported.

torch_xla creates a CudaPlugin on every machine, so nothing here may fail or inspect the machine
before a client is created. Because this module is always loaded, it also runs
torch_xla_ext_startup.install.
"""

import os

import torch_xla
from torch_xla.experimental import plugins

from torch_xla_ext_startup import install


class CudaPlugin(plugins.DevicePlugin):
    """Provides PJRT_DEVICE=CUDA with JAX's PJRT CUDA plugin, behind the shim in _XLAC."""

    def library_path(self) -> str:
        """Find and load the plugin, and return the path of the shim in front of it.

        torch_xla calls this once, when it creates its client.

        Raises:
            CudaRuntimeError: CUDA cannot be used; the message has the reason and the remedy.
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
        """Return whether processes must find each other before they create their clients.

        torch_xla calls this first when it creates its client, so this also raises errors of the
        rendezvous (torch_xla_ext.plugin.rendezvous).

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
