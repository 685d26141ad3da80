"""The README's example prints what the README shows."""

import re
import subprocess
import sys
from pathlib import Path


def test_simple_add() -> None:
    result = subprocess.run(
        [sys.executable, "examples/simple_add.py"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    readme = Path("README.md").read_text()
    assert "$ PJRT_DEVICE=CPU python examples/simple_add.py\n" + result.stdout + "```\n" in readme


def test_a_kernel_from_a_string() -> None:
    readme = Path("README.md").read_text()
    block = next(b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "cuda_k" in b)
    program = block + "assert torch.equal(y.cpu(), x.cpu() ** 2)\nsquare.compile('sm_90a')\n"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
