"""vLLM's XLA backend on torch_xla's GPUs and CPU, with the kernels of torch_xla_ext.

vLLM finds it by the entry point `xla_gpu`. docs/vllm.md describes set-up and use.
"""

import logging
import os

# The vLLM whose classes for TPUs are subclassed here, and the torch_xla that has the operators.
VLLM_VERSION = "0.10.1.1"
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
    import torch
    from vllm import config
    from vllm.engine import arg_utils
    from vllm.model_executor.models import registry

    from vllm_xla_gpu import checks

    # vLLM falls back to its engine V0, which does not run here, for what V1 cannot do, and also for
    # what V1 may do if VLLM_USE_V1=1 says so, such as an engine in a background thread.
    arg_utils._raise_or_fallback = checks.refuse_engine_v0
    arg_utils._warn_or_fallback = lambda feature_name: False

    create_config = arg_utils.EngineArgs.create_engine_config

    def create_engine_config(arguments: object, *others: object, **options: object) -> object:
        checks.check_executor(arguments, os.environ)
        return create_config(arguments, *others, **options)

    arg_utils.EngineArgs.create_engine_config = create_engine_config

    # vLLM imports a model's class in a process of its own first, lest CUDA be initialized in this
    # one. Here that does not happen, and another process takes some ten seconds.
    registry._run_in_subprocess = lambda inspect: inspect()

    resolve = config._resolve_auto_dtype

    def resolve_auto_dtype(model_type: str, own: torch.dtype, **options: object) -> torch.dtype:
        """dtype="auto": vLLM rounds float32 models. Here they are served as they are."""
        return own if own == torch.float32 else resolve(model_type, own, **options)

    config._resolve_auto_dtype = resolve_auto_dtype
