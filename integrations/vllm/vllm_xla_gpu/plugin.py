"""The entry points that vLLM loads, in each of its processes."""

import logging
import os

from vllm_xla_gpu import overrides


def platform_class() -> str | None:
    """Return the platform's class if PJRT_DEVICE is CPU or CUDA, else None.

    vLLM interprets an exception here as "not this platform". So errors of the machine are raised
    when the class is imported (environment.py).
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


def general() -> None:
    """Install the replacements; vLLM calls this before it reads a model's configuration."""
    if _is_chosen():
        overrides.apply("start")


def _is_chosen() -> bool:
    return os.environ.get("PJRT_DEVICE") in ("CUDA", "CPU")
