"""pip installs the wheel beside torch, `pip check` finds no conflict, and pip removes all of it."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

(WHEEL,) = Path(os.environ["WHEEL_DIR"]).absolute().glob("*")
VERSION = WHEEL.name.split("-")[1]


class Environment:
    """A virtual environment that sees the packages of the one that the test runs in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)
        (site,) = folder.glob("lib/python*/site-packages")
        Path(site, "test_env.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    def run(self, *arguments: str) -> str:
        result = subprocess.run(
            [str(self.folder / "bin/python"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": ""},
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    def pip(self, *arguments: str) -> str:
        return self.run("-m", "pip", "--disable-pip-version-check", *arguments)

    def files(self) -> set[Path]:
        """Returns all files but byte code, which pip itself leaves when it runs."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("*"))
        return {path for path in paths if path.suffix != ".pyc" and path.name != "__pycache__"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("install") / "venv")


def test_install_check_and_uninstall(environment: Environment) -> None:
    before = environment.files()
    # --no-index: everything that the wheel requires is installed already, which pip must see.
    environment.pip("install", "--no-index", str(WHEEL))
    assert environment.files() > before
    assert "No broken requirements found" in environment.pip("check")
    assert f"Version: {VERSION}\n" in environment.pip("show", "torch_xla")
    out = environment.run("-c", "import torch_xla; print(torch_xla.__version__)")
    assert out.splitlines()[-1] == VERSION
    environment.pip("uninstall", "--yes", "torch_xla")
    assert environment.files() == before
    leftover = [path for path in environment.folder.rglob("*") if "torch_xla" in path.name]
    assert not leftover
