"""examples/untyped_launcher, compiled with the command of its README."""

import re
import subprocess
from pathlib import Path

from testing.scripts import run_script

EXAMPLE = Path("examples/untyped_launcher").resolve()


def test_on_the_cpu(tmp_path: Path) -> None:
    readme = (EXAMPLE / "README.md").read_text()
    command = re.search(r"^\$ (g\+\+ .*)$", readme, re.MULTILINE)[1]
    library = tmp_path / "libsaxpy_host.so"
    subprocess.run([*command.split()[:-1], str(library)], cwd=EXAMPLE, check=True)
    wrong_call = (
        "import sys\n"
        f"sys.argv.append({str(library)!r})\n"
        f"sys.path.insert(0, {str(EXAMPLE)!r})\n"
        "import torch, saxpy\n"
        "saxpy.main()\n"
        "try:\n"
        "    torch.ops.my_ns.saxpy(torch.ones(2, device='xla'), torch.ones(3, device='xla'), 2.0)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    result = run_script(wrong_call)
    assert result.returncode == 0, result.stderr
    assert "LegacySaxpy (API version 3)" in result.stdout
    assert "[ 8.5000, 11.0000, 13.5000]" in result.stdout
    assert "my_ns::saxpy: x is [2] but y is [3]" in result.stdout
