"""Measures the host time to trace a custom call.

    python benchmarks/trace_time.py

Run it in an environment with the custom wheel and in one with the stock torch_xla, whose
_xla_gpu_custom_call takes no target and which has no `custom_call`.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
import torch_xla

XLAC = torch_xla._XLAC


def print_times(calls: Mapping[str, Callable[[], object]], rounds: int, number: int) -> None:
    """Prints the time of each call, measured in turns, `number` in a row.

    Between two rows what was traced is compiled and run, so that graphs stay short.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            torch_xla.sync(wait=True)
            start = time.perf_counter()
            for _ in range(number):
                call()
            elapsed = (time.perf_counter() - start) / number
            if turn > 0:
                times[name].append(elapsed)
    print(f"torch_xla {torch_xla.__version__}, {rounds} rounds of {number} calls")
    for name, values in times.items():
        print(
            f"{name:26} median {statistics.median(values) * 1e6:6.2f} µs, "
            f"fastest {min(values) * 1e6:6.2f} µs"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="rounds (default: 30)")
    parser.add_argument("--calls", type=int, default=500, help="calls a round (default: 500)")
    args = parser.parse_args()

    device = torch_xla.device()
    a, b = torch.randn(16).to(device), torch.randn(16).to(device)
    payload = b"\x01" * 16
    types = [[16]], [torch.float32]

    calls: dict[str, Callable[[], list[torch.Tensor]]] = {
        "_xla_custom_call": lambda: XLAC._xla_custom_call(
            [a, b], "Kernel", *types, False, payload, 3, {}
        ),
        "_xla_gpu_custom_call": lambda: XLAC._xla_gpu_custom_call([a, b], payload, *types),
    }
    if "+" in torch_xla.__version__:
        calls["  with target"] = lambda: XLAC._xla_gpu_custom_call(
            [a, b], payload, *types, "Kernel"
        )
        calls["  with target=, by name"] = lambda: XLAC._xla_gpu_custom_call(
            [a, b], payload, *types, target="Kernel"
        )
        from torch_xla_ext import custom_call

        calls["custom_call"] = lambda: custom_call("XlaGpuSimpleAdd", [a, b], [a])
        calls["  with a pair as output"] = lambda: custom_call(
            "XlaGpuSimpleAdd", [a, b], [((16,), torch.float32)]
        )
        calls["  api='ffi'"] = lambda: custom_call("XlaGpuSimpleAdd", [a, b], [a], api="ffi")
    print_times(calls, args.rounds, args.calls)


if __name__ == "__main__":
    main()
