"""The plug-in that torch_xla loads at its own import: the entry point `cuda`.

Programs that never import torch_xla_ext need PJRT_DEVICE=CUDA, ``torch.ops.xla_gpu``, torch_xla's
operators for TPUs on other devices, its module for Triton, its backend for torch.compile
(dynamo_bridge), modules that move to a device (module_parameters), torch.utils.checkpoint
(activation_checkpoint), torch.inference_mode(), torch.autocast, what torch_xla replaces of PyTorch
(patched_functions), operators without kernels (decompositions), optimizers with fused=True
(fused_optimizers), and Hugging Face's libraries (torch_xla_huggingface.upstream_fixes).
They are arranged here. A function here that needs the package torch_xla_ext imports it when it is
called.

torch_xla makes a CudaPlugin on every machine: nothing here may fail or look at the machine before a
client is made.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
import torch.utils.checkpoint
import torch_xla
from torch_xla.experimental import plugins

from torch_xla_ext_startup import lazy_dynamo, module_alias
from torch_xla_ext_startup.upstream_fixes import (
    activation_checkpoint,
    autocast,
    decompositions,
    fused_optimizers,
    inference_mode,
    loading,
    module_parameters,
    patched_functions,
    root_logger,
    strided_views,
    training_steps,
)
from torch_xla_huggingface import upstream_fixes as huggingface

_KERNELS = "torch_xla.experimental.custom_kernel"
_BRIDGE = "torch_xla._dynamo.dynamo_bridge"
_BACKEND = "torch._dynamo.backends.torchxla"
_TRITON = "torch_xla.experimental.triton"
_PROCESSES = "torch_xla._internal.pjrt"
_AUTOCAST = "torch_xla.amp.autocast_mode"
_NAMESPACE = "xla_gpu"


class CudaPlugin(plugins.DevicePlugin):
    """PJRT_DEVICE=CUDA through a PJRT CUDA plugin of JAX, behind the bridge in _XLAC."""

    def library_path(self) -> str:
        """Finds and loads the plugin, and returns the path of the bridge in front of it.

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
        """Whether the processes have to find each other before they make their clients.

        torch_xla asks this first of all, when it makes its client: what is wrong with them is said
        here (torch_xla_ext.plugin.rendezvous).

        Raises:
            CudaRuntimeError: ranks and counts do not fit together, or a port is taken.
        """
        from torch_xla_ext.plugin import rendezvous
        from xla_kernels.plugin import options

        rendezvous.prepare(os.environ)
        return options.Processes.from_environ(os.environ).count > 1

    def physical_chip_count(self) -> int:
        """How many processes xmp.spawn starts: GPU_NUM_DEVICES, else one for each visible GPU."""
        from xla_kernels.plugin import discovery

        return discovery.gpu_count(discovery.System.current())

    def configure_single_process(self) -> None:
        pass


class _Operators(torch._ops._OpNamespace):
    """``torch.ops.xla_gpu``, until an operator is asked for that only the package defines."""

    def __getattr__(self, name: str) -> torch._ops.OpOverloadPacket:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
        import torch_xla_ext  # noqa: F401

        self.__class__ = torch._ops._OpNamespace
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds five modules of torch_xla, one of torch, and some of Hugging Face's libraries.

    All but one are found where they are, and changed when they have run. In the place of that for
    Triton, which needs jaxlib and launches every kernel with four warps, is one of ours.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == _TRITON:
            return module_alias.spec(name, "torch_xla_ext.launchers.triton.upstream")
        replace = _replacement(name)
        if replace is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_replace(module: ModuleType) -> None:
                run(module)
                replace(module)

            spec.loader.exec_module = run_and_replace
        return spec


def _replace_kernels(module: ModuleType) -> None:
    from torch_xla_ext.custom_kernel import install

    install.replace(module)


def _replace_bridge(module: ModuleType) -> None:
    from torch_xla_ext_startup.upstream_fixes import dynamo_bridge

    dynamo_bridge.replace_bridge(module)


def _replace_backend(module: ModuleType) -> None:
    from torch_xla_ext_startup.upstream_fixes import dynamo_bridge

    dynamo_bridge.replace_backend(module)


def _replace_processes(module: ModuleType) -> None:
    """A process that is alone on its host may be one of several.

    torch_xla looks at LOCAL_WORLD_SIZE only: with one GPU on each of several hosts
    `xm.all_reduce` returned each process's own value.
    """
    alone = module.initialize_singleprocess

    def initialize() -> None:
        from xla_kernels.plugin import options

        is_one_of_several = (
            os.environ.get("PJRT_DEVICE") == "CUDA"
            and options.Processes.from_environ(os.environ).count > 1
            and not torch_xla.runtime.is_spmd()
        )
        if is_one_of_several:
            module.initialize_multiprocess(0, 1)
        else:
            alone()

    module.initialize_singleprocess = initialize


_REPLACED = {
    _PROCESSES: _replace_processes,
    _KERNELS: _replace_kernels,
    _BRIDGE: _replace_bridge,
    _BACKEND: _replace_backend,
    _AUTOCAST: autocast.replace_module,
    **huggingface.BY_MODULE,
}


def _replacement(name: str) -> Callable[[ModuleType], None] | None:
    """What changes this module."""
    return huggingface.fix_model if huggingface.is_model(name) else _REPLACED.get(name)


def install() -> None:
    """Arranges what does not wait for the package. A second call does nothing."""
    if _NAMESPACE not in torch.ops.__dict__:
        setattr(torch.ops, _NAMESPACE, _Operators(_NAMESPACE))
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    root_logger.restore()
    for name, module in list(sys.modules.items()):
        if replace := _replacement(name):
            lazy_dynamo.when_run(module, replace)
    sys.meta_path.insert(0, _Finder())
    module_parameters.keep()
    loading.enable()
    fused_optimizers.enable()
    activation_checkpoint.replace(torch.utils.checkpoint)
    autocast.replace()
    inference_mode.replace()
    patched_functions.replace()
    strided_views.replace()
    training_steps.replace()
    decompositions.register()


install()
