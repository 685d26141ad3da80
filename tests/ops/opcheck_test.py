"""torch.library.opcheck: schema, fake tensors, autograd registration, tracing."""

import pytest
import torch
from samples import (
    OperatorSamples,
    for_each_device,
    for_each_differentiable_operator,
    for_each_operator_and_dtype,
    to,
)

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
# Traces forward and backward with symbolic inputs and sizes.
TRACED = "test_aot_dispatch_dynamic"


def checks(device_type: str, dtype: torch.dtype) -> tuple[str, ...]:
    # torch's check of autograd supports only CPU and CUDA tensors; the last test replaces it.
    left_out = ["test_autograd_registration"] if device_type == "xla" else []
    if dtype.itemsize == 1:  # torch compares the operands, and multiplies no fp8
        left_out.append("test_schema")
    return tuple(check for check in (*CHECKS, TRACED) if check not in left_out)


@for_each_device
@for_each_operator_and_dtype
def test_opcheck(op: OperatorSamples, dtype: torch.dtype, device_type: str) -> None:
    args = to(device_type, op.arguments(dtype))
    if op.differentiable and dtype.is_floating_point:
        args = tuple(tensor.requires_grad_() for tensor in args)
    names = checks(device_type, dtype)
    results = torch.library.opcheck(op.overload, (*args, *op.others), test_utils=names)
    assert results == dict.fromkeys(names, "SUCCESS")


@for_each_differentiable_operator
def test_the_check_that_is_left_out_does_not_know_xla(op: OperatorSamples) -> None:
    args = tuple(tensor.to("xla").requires_grad_() for tensor in op.arguments(torch.float32))
    with pytest.raises(Exception, match=r"NYI devices other than CPU/CUDA, got {'xla'}"):
        torch.library.opcheck(op.overload, args, test_utils="test_autograd_registration")
