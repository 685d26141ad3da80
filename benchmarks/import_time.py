"""Compares the time of `import torch_xla` of the custom wheel and of the stock wheel.

    python benchmarks/import_time.py --stock STOCK_PYTHON --custom CUSTOM_PYTHON

Each argument is the Python of a virtual environment with that torch_xla. Every import runs in its
own process. The time of `import torch` in the same environment is subtracted.
"""

import argparse
import os
import statistics
import subprocess
import sys

PROGRAM = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import torch_xla
end = time.perf_counter()
print(end - middle, torch_xla.__version__)
"""


def measure(python: str) -> tuple[float, str]:
    """Returns the seconds that `import torch_xla` took after `import torch`, and its version."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    output = subprocess.run(
        [python, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True
    ).stdout.split()
    return float(output[0]), output[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", required=True, help="Python with the stock torch_xla")
    parser.add_argument("--custom", required=True, help="Python with the custom wheel")
    parser.add_argument("--rounds", type=int, default=15, help="imports of each (default: 15)")
    args = parser.parse_args()

    seconds: dict[str, list[float]] = {"stock": [], "custom": []}
    versions: dict[str, str] = {}
    for number in range(args.rounds + 1):
        for name in seconds:
            elapsed, versions[name] = measure(getattr(args, name))
            if number > 0:  # the first round fills the page cache
                seconds[name].append(elapsed)
        print(f"\rround {number} of {args.rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)

    stock = statistics.median(seconds["stock"])
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"{name:7} {versions[name]:16} median {median:.3f} s, "
            f"fastest {min(values):.3f} s, {median / stock:.1%} of stock"
        )


if __name__ == "__main__":
    main()
