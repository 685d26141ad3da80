"""Runs programs of several kinds, which one process stores and another loads; prints JSON.

    stored_programs.py FOLDER [add|multiply]

The second argument is the operation of the kernel TestCombine, which this process registers.
"""

import ctypes
import json
import os
import sys

import torch
import torch_xla
import torch_xla.debug.metrics as metrics
import torch_xla.distributed.spmd as xs

import torch_xla_ext
from torch_xla_ext import ops

SIZE = 64
# The text that makes a call typed; removed for an untyped call.
PAYLOAD = ", api_version=API_VERSION_TYPED_FFI"
_POINTERS = ctypes.POINTER(ctypes.c_void_p)


@ctypes.CFUNCTYPE(None, _POINTERS, _POINTERS, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
def combine(out: object, operands: object, *others: object) -> None:
    a, b = ((ctypes.c_float * SIZE).from_address(operands[i]) for i in range(2))
    multiply = sys.argv[2] == "multiply"
    (ctypes.c_float * SIZE).from_address(out[0])[:] = [
        x * y if multiply else x + y for x, y in zip(a, b, strict=True)
    ]


def plain(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "twice the first": (a + a) + b,
        "twice the second": (a + b) + b,
        "product": (a @ b).softmax(-1),
        "largest": a.topk(3).values,
        "sorted": b.sort(dim=0).values,
        "compiled": torch.compile(lambda a, b: a.sin() * b, backend="openxla")(a, b),
    }


def in_place(a: torch.Tensor) -> dict[str, torch.Tensor]:
    """Runs a program that gives an operand's buffer to its result, and a captured step."""
    total = torch.zeros_like(a)
    torch_xla.sync()
    for factor in (1, 2, 3):
        total += factor * a
        torch_xla.sync()
    state = torch.zeros_like(a)
    torch_xla.sync()

    @torch_xla_ext.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return state.sum(0)

    sums = [step(a) for _ in range(3)]
    return {"six times": total, "state": state, "sums": torch.stack(sums)}


def kernels(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    results = {"simple_add": ops.simple_add(a, b)}
    pages = torch.zeros(4, 16, 4, 64, dtype=torch.float16).to("xla")
    tokens = a[:16].reshape(4, 4, 64).half()
    numbers = [[0, 1, 2, 17], [3, 2], [[0, 2], [1, 3]], [0, 1, 2], [2]]
    slots, *lengths = (torch.tensor(n, dtype=torch.int32).to("xla") for n in numbers)
    torch.ops.xla_gpu.kv_pages_update(tokens[:, :2], tokens[:, 2:], slots, pages)
    results["attention"] = torch.ops.xla_gpu.ragged_paged_attention(tokens[:2], pages, *lengths)
    results["pages"] = pages
    if len(sys.argv) > 2:
        torch_xla_ext.register_custom_call("TestCombine", combine, platform="Host")
        operands, results_like = [a[0].clone(), b[0].clone()], [a[0]]
        (results["combined"],) = torch_xla_ext.custom_call(
            "TestCombine", operands, results_like, payload=PAYLOAD, api="untyped"
        )
    return results


def on_two_devices(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    mesh = xs.Mesh(range(2), (2,), ("x",))
    xs.mark_sharding(a, mesh, ("x", None))
    torch_xla.sync()
    summed = a.sum(0)
    return {"rows": a * 2 + b, "summed": summed, "product": a @ b}


def main() -> None:
    torch_xla.runtime.initialize_cache(sys.argv[1])
    generator = torch.Generator().manual_seed(3)
    on_host = [torch.randn(SIZE, SIZE, generator=generator) for _ in range(2)]
    if os.environ.get("CPU_NUM_DEVICES") == "2":
        torch_xla.runtime.use_spmd()
        results = on_two_devices(*(tensor.to("xla") for tensor in on_host))
    else:
        a, b = (tensor.to("xla") for tensor in on_host)
        results = plain(a, b) | in_place(a) | kernels(a, b)
    values = {name: value.cpu().double().tolist() for name, value in results.items()}
    a, b = on_host
    if "rows" in values:
        torch.testing.assert_close(results["rows"].cpu(), a * 2 + b)
        torch.testing.assert_close(results["summed"].cpu(), a.sum(0))
    else:
        torch.testing.assert_close(results["twice the second"].cpu(), a + 2 * b)
        torch.testing.assert_close(results["six times"].cpu(), 6 * a)
        torch.testing.assert_close(results["state"].cpu(), 3 * a)
        torch.testing.assert_close(results["simple_add"].cpu(), a + b)
    if "combined" in values:
        expected = a[0] * b[0] if sys.argv[2] == "multiply" else a[0] + b[0]
        torch.testing.assert_close(results["combined"].cpu(), expected)
    compiled = metrics.metric_data("CompileTime")
    print(json.dumps({"compiled": compiled[0] if compiled else 0, "values": values}))


if __name__ == "__main__":
    main()
