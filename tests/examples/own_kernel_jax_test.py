"""examples/own_kernel_dynamic: JAX calls the library that torch_xla_ext calls."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from testing.scripts import run_program

import torch_xla_ext

EXAMPLE = Path("examples/own_kernel_dynamic").resolve()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    readme = (EXAMPLE / "README.md").read_text()
    command = re.search(r"^\$ (g\+\+ .*)$", readme, re.MULTILINE)[1]
    path = tmp_path_factory.mktemp("library") / "libscale_host.so"
    words = command.replace("$INCLUDE", torch_xla_ext.include_dir()).split()
    subprocess.run([*words[:-1], str(path)], cwd=EXAMPLE, check=True)
    return path


def run(program: Path, library: Path) -> subprocess.CompletedProcess:
    environ = os.environ | {"JAX_PLATFORMS": "cpu"}
    words = [sys.executable, str(program), str(library)]
    return subprocess.run(words, env=environ, capture_output=True, text=True)


def test_jax(library: Path) -> None:
    result = run(EXAMPLE / "scale_jax.py", library)
    assert result.returncode == 0, result.stderr
    (version,) = re.findall(r"^JAX (\S+) on cpu$", result.stdout, re.MULTILINE)
    assert f"Tested with JAX {version} on the CPU" in (EXAMPLE / "README.md").read_text()
    assert "[[ 0.   2.5  5. ]" in result.stdout


def test_the_kernels_checks_are_errors_in_jax(library: Path, tmp_path: Path) -> None:
    program = (EXAMPLE / "scale_jax.py").read_text()
    for change, text in (
        (("dtype=jnp.float32", "dtype=jnp.int32"), "operand 0 (x): expected dtype F32 but got S32"),
        (("np.float64(2.5)", "np.float32(2.5)"), "attribute factor: expected f64"),
        (("factor=", "facto="), "attribute factor: f64 is missing"),
    ):
        changed = tmp_path / "changed.py"
        assert change[0] in program
        changed.write_text(program.replace(*change))
        result = run(changed, library)
        assert result.returncode != 0
        assert f"XlaGpuScale: {text}" in result.stderr


def test_the_same_library_in_torch_xla(library: Path) -> None:
    result = run_program(EXAMPLE / "scale.py", library)
    assert result.returncode == 0, result.stderr
