"""examples/own_kernel_dynamic, compiled with the command of its README."""

import re
import subprocess
from pathlib import Path

from testing.scripts import run_program

import torch_xla_ext

EXAMPLE = Path("examples/own_kernel_dynamic").resolve()


def test_on_the_cpu(tmp_path: Path) -> None:
    readme = (EXAMPLE / "README.md").read_text()
    command = re.search(r"^\$ (g\+\+ .*)$", readme, re.MULTILINE)[1]
    library = tmp_path / "libscale_host.so"
    words = command.replace("$INCLUDE", torch_xla_ext.include_dir()).split()
    subprocess.run([*words[:-1], str(library)], cwd=EXAMPLE, check=True)
    result = run_program(EXAMPLE / "scale.py", library)
    assert result.returncode == 0, result.stderr
    assert "XlaGpuScale (API version 4)" in result.stdout
    assert "factor = 2.5" in result.stdout
