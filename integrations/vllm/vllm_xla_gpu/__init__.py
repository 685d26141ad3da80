"""vLLM's XLA backend on torch_xla's GPUs and CPU, with the kernels of torch_xla_ext.

vLLM finds it by the entry point `xla_gpu`. docs/vllm.md describes set-up and use.
"""

import logging
import os

# That has the operators. overrides.py has the versions of vLLM.
TORCH_XLA_VERSION = "2.8.1"


def platform_class() -> str | None:
    """The platform's class, if PJRT_DEVICE asks for one of its devices.

    vLLM takes an exception in here for "not this platform". What is wrong with the machine is
    therefore said when the class is imported (checks.py).
    """
    if _is_chosen():
        return "vllm_xla_gpu.platform.XlaGpuPlatform"
    device = os.environ.get("PJRT_DEVICE")
    # A child of vLLM's logger, which has the handler and the level.
    logging.getLogger("vllm.xla_gpu").warning(
        "vllm-xla-gpu is not used: PJRT_DEVICE is %s; set it to CUDA or CPU",
        device if device else "not set",
    )
    return None


def _is_chosen() -> bool:
    return os.environ.get("PJRT_DEVICE") in ("CUDA", "CPU")


def general() -> None:
    """Called by vLLM in each of its processes, before it looks at a model."""
    if not _is_chosen():
        return
    from vllm_xla_gpu import overrides

    overrides.apply("start")
