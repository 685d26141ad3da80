"""List the functions of Triton that are replaced."""

from xla_kernels.replacement import Fix

_HOOKS = "xla_kernels.triton.launch_hooks"


def fixes(front_end: str) -> tuple[Fix, ...]:
    """Return the rows for a front end, given its package, which must be imported first."""
    return (
        Fix(
            "triton_launches",
            versions="triton 3.4 and later",
            reason="kernel[grid](...) does not accept XLA tensors",
            test="tests/launchers/triton_launch_test.py",
            replaces={
                "triton.runtime.jit:KernelInterface.__getitem__": f"{_HOOKS}:getitem",
                "triton.runtime.jit:JITFunction.run": f"{_HOOKS}:run",
            },
            after=(front_end,),
        ),
        Fix(
            "triton_driver",
            versions="triton 3.4 and later",
            reason="without CUDA, torch assumes that a Triton kernel writes to all its tensors",
            test="tests/launchers/triton_launch_test.py",
            replaces={
                "triton.runtime.driver:_create_driver": f"{_HOOKS}:create_driver",
                # Before Triton 3.5, this keeps the function above.
                "triton.runtime.driver:LazyProxy._initialize_obj": f"{_HOOKS}:initialize_driver",
            },
            after=(front_end,),
        ),
    )
