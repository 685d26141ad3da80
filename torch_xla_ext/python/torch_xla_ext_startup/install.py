"""Install the fixes at ``import torch_xla``, for programs that never import torch_xla_ext.

A function here that needs the package torch_xla_ext imports it when it is called.
"""

import functools
import os

from torch_xla_ext_startup import thread_pool
from torch_xla_ext_startup.upstream_fixes import (
    decompositions,
    fused_optimizers,
    grouped_products,
    loading,
    root_logger,
    table,
    training_steps,
)
from torch_xla_huggingface import upstream_fixes as huggingface
from xla_kernels import import_hooks, replacement

_KERNELS = "torch_xla.experimental.custom_kernel"
_TRITON = "torch_xla.experimental.triton"
_WHILE_LOOP = "torch._higher_order_ops.while_loop"


@functools.cache
def install() -> None:
    """Install the hooks; a second call does nothing."""
    # Reads release the GIL in csrc/interpose/waiting.cc. torch_xla would not take it again when a
    # read fails, and x[i] would end the process.
    os.environ.setdefault("XLA_RELEASE_GIL_DURING_TRANSFER", "0")
    root_logger.remove_handlers()
    thread_pool.end_before_forks()
    replacement.install([*table.FIXES, *huggingface.FIXES])
    loading.register()
    fused_optimizers.register()
    training_steps.register()
    decompositions.register()
    grouped_products.register()
    import_hooks.when_imported([_KERNELS], _register_kernels)
    import_hooks.when_imported(["torch_xla", _WHILE_LOOP], _register_while_loop)
    # Replaces torch_xla's module, which needs jaxlib and launches every kernel with four warps.
    import_hooks.alias(_TRITON, "torch_xla_ext.launchers.upstream_triton")


def _register_kernels() -> None:
    from torch_xla_ext.custom_kernel import install

    install.register()


def _register_while_loop() -> None:
    """Register torch's while_loop for XLA tensors, which would otherwise run as a Python loop."""
    import torch_xla.experimental.fori_loop  # noqa: F401
