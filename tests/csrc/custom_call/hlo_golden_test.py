"""The HLO of traced calls is that of hlo_golden.txt, for the front library and for patches/."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from testing.xla import XLAC, check_calls


def gpu_call(
    inputs: list[torch.Tensor],
    payload: bytes = b"payload",
    shapes: Sequence[Sequence[int]] = ((3,),),
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    **options: object,
) -> list[torch.Tensor]:
    return XLAC._xla_gpu_custom_call(inputs, payload, shapes, dtypes, **options)


def custom_call(
    inputs: list[torch.Tensor],
    api_version: int,
    attributes: dict[str, str],
    shapes: Sequence[Sequence[int]] = ((3,),),
    dtypes: Sequence[torch.dtype] = (torch.float32,),
) -> list[torch.Tensor]:
    return XLAC._xla_custom_call(
        inputs, "Kernel", shapes, dtypes, False, "config", api_version, attributes
    )


def operand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An argument of the program, not a constant in it."""
    return torch.zeros(shape, dtype=dtype).to("xla")


def narrow() -> torch.Tensor:
    """A tensor that is int8 in torch, and s4 on the device."""
    return XLAC._xla_cast_int4(operand(3, dtype=torch.int8), [1, 2, 3])


CASES: dict[str, Callable[[], list[torch.Tensor]]] = {
    "default_target": lambda: gpu_call([operand(3)]),
    "named_target": lambda: gpu_call([operand(3)], target="Kernel"),
    "binary_payload": lambda: gpu_call([operand(3)], b'\x01\0"\\\xff\n', target="Kernel"),
    "empty_payload": lambda: gpu_call([operand(3)], b"", target="Kernel"),
    "scalar": lambda: gpu_call([operand()], shapes=[[]], target="Kernel"),
    "two_operands_two_results": lambda: gpu_call(
        [operand(2, 3), operand(4, dtype=torch.int64)],
        shapes=[[2, 3], [4]],
        dtypes=[torch.bfloat16, torch.int32],
        target="Kernel",
    ),
    "aliases": lambda: gpu_call(
        [operand(3), operand(4), operand(3)],
        shapes=[[3], [4]],
        dtypes=[torch.float32] * 2,
        target="Kernel",
        aliases={0: 0, 1: 1},
    ),
    "result_layouts": lambda: gpu_call(
        [operand(3)],
        shapes=[[2, 3, 4, 5], [2, 3], [0]],
        dtypes=[torch.float16, torch.float32, torch.uint8],
        target="Kernel",
        result_layouts={0: (0, 2, 1, 3), 1: (1, 0)},
        num_hidden_results=1,
    ),
    "operand_of_another_type": lambda: gpu_call([narrow()], target="Kernel"),
    "operand_of_another_type_default_target": lambda: gpu_call([narrow()]),
    "transposed_operand": lambda: gpu_call([operand(2, 3).t()], shapes=[[3, 2]], target="Kernel"),
    "transposed_operand_default_target": lambda: gpu_call([operand(2, 3).t()], shapes=[[3, 2]]),
    "permuted_operand": lambda: gpu_call(
        [operand(2, 3, 4).permute(2, 0, 1)], shapes=[[4, 2, 3]], target="Kernel"
    ),
    "custom_call": lambda: custom_call([operand(3)], 1, {}),
    "custom_call_transposed_operand": lambda: custom_call([operand(2, 3).t()], 1, {}),
    "custom_call_unified": lambda: custom_call([operand(3)], 3, {}),
    "custom_call_attributes": lambda: custom_call([operand(3)], 1, {"b": "2", "a": "1"}),
    "custom_call_two_results": lambda: custom_call(
        [operand(3)], 1, {"a": "1"}, [[3], [4]], [torch.float32, torch.int32]
    ),
}


def test_hlo_of_each_call(device: torch.device) -> None:
    check_calls(Path(__file__).with_name("hlo_golden.txt"), CASES)
