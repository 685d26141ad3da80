"""The README's example prints what the README shows."""

import re
from pathlib import Path

from testing.scripts import run_program, run_script


def test_simple_add() -> None:
    result = run_program("examples/simple_add.py")
    assert result.returncode == 0, result.stderr
    readme = Path("README.md").read_text()
    assert "$ PJRT_DEVICE=CPU python examples/simple_add.py\n" + result.stdout + "```\n" in readme


def test_a_kernel_from_a_string() -> None:
    readme = Path("README.md").read_text()
    block = next(b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "cuda_k" in b)
    program = block + "assert torch.equal(y.cpu(), x.cpu() ** 2)\nsquare.compile('sm_90a')\n"
    result = run_script(program)
    assert result.returncode == 0, result.stderr
