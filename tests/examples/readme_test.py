"""The README's example prints what the README shows."""

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
