"""examples/paged_decode.py gives the tokens of plain PyTorch, and compiles nothing once warm."""

import re
import subprocess

import pytest
from testing.scripts import run_program

SIZES = (
    "--layers=2 --width=64 --heads=4 --kv-heads=2 --vocabulary=128 --prompts=4 --longest=24 "
    "--new-tokens=18 --seed=4"
)


def run(*options: str) -> subprocess.CompletedProcess:
    result = run_program("examples/paged_decode.py", *SIZES.split(), *options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def check(output: str) -> None:
    """Nearly all choices of tokens are clear, and the clear ones are the reference's."""
    clear, count, equal = re.search(
        r"^choices: (\d+) of (\d+) are clear; equal the reference's: (\w+)$", output, re.M
    ).groups()
    assert int(count) == 72
    assert int(clear) > 60
    assert equal == "True"


def test_paged_decode() -> None:
    result = run("--page-size=8")
    lines = result.stdout.splitlines()
    assert "programs compiled: 3 in the warm-up, 0 in the run" in lines
    check(result.stdout)
    assert re.search(r"^run: step 16 of 17, compilations so far \d+$", result.stdout, re.M)
    assert re.search(r"^run: prefill \d+ tokens of 4 prompts: \d+ tokens/s", result.stdout, re.M)
    assert re.search(r"^run: decode 68 tokens, 4 a step: \d+ tokens/s$", result.stdout, re.M)


@pytest.mark.parametrize("way", ["captured", "openxla"])
def test_tensor_parallel(way: str) -> None:
    """Two devices give the same tokens, and each computes with its own heads."""
    result = run("--tensor-parallel=2", f"--way={way}")
    check(result.stdout)
    if way == "captured":
        assert re.search(r"^programs compiled: \d+ in the warm-up, 0 in", result.stdout, re.M)
    assert "is gathered" not in result.stderr
