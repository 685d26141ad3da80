"""Choose XLA's options for the programs of steps."""

import contextlib
import os

import torch_xla_ext

_FEW_TOKENS = 256
# The operations that XLA:GPU puts into CUDA graphs by default, and collectives.
_IN_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION,COLLECTIVES"


def threads() -> int | None:
    """Return the number of threads that compile programs, if the user has set it."""
    count = os.environ.get("VLLM_XLA_COMPILE_THREADS")
    return None if count is None else int(count)


def step_options(
    num_tokens: int, is_fp8: bool, num_devices: int
) -> contextlib.AbstractContextManager[None]:
    """In a block, compile steps with XLA options that shorten the start of an engine.

    For each matmul, XLA:GPU compiles Triton kernels, and times them beside cuBLASLt's. This is
    worthwhile for memory-bound matmuls. Timing only cuBLASLt's kernels takes less than a second for
    a step: the logits of a step then take 0.5 ms, instead of 0.95 ms with cuBLASLt's default, and
    the matmuls of 8,192 tokens 2% less. In fp8, timing Triton kernels took two seconds or more for
    each matmul on an H200.

    On several devices, each all-reduce would end a CUDA graph, and a step would have more than 60
    graphs.

    Weights and caches fill the memory that XLA grants a program, so XLA would compute norms and
    other results twice to save memory. memory.py has set aside what a step needs.

    Options in XLA_FLAGS take precedence.
    """
    options: dict[str, bool | int | str] = {"xla_disable_hlo_passes": "rematerialization"}
    if num_devices > 1:
        options["xla_gpu_enable_command_buffer"] = _IN_GRAPHS
    if is_fp8 or num_tokens > _FEW_TOKENS:
        options["xla_gpu_enable_triton_gemm"] = False
    flags = os.environ.get("XLA_FLAGS", "")
    return torch_xla_ext.compiler_options(
        **{name: value for name, value in options.items() if f"--{name}=" not in flags}
    )
