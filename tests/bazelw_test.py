"""Which Bazel bazelw runs, with programs that only say who they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SUITE = "forky-r1"
# What bazelw needs of the machine: its PATH has nothing else, and so no Bazel of the machine's.
TOOLS = ("bash", "cat", "dirname", "env", "g++", "sh", "timeout")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with bazelw, a fake Bazel already unpacked from Debian, and a PATH."""
    for name in ("bazelw", ".bazelversion"):
        shutil.copy(name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        path = shutil.which(tool)
        assert path, f"this machine has no {tool}"
        (tmp_path / "bin" / tool).symlink_to(path)
    unpacked = tmp_path / "home" / SUITE
    program(unpacked / "root/usr/bin/bazel", "debian", "7.7.1")
    (unpacked / "ok").touch()
    return tmp_path


def program(path: Path, name: str, version: str) -> Path:
    """A program that prints its version, or else its name and arguments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "bazel {version}"; '
        f'else echo {name} "$@"; fi\n'
    )
    path.chmod(0o755)
    return path


def run(workspace: Path, **variables: str) -> str:
    environment = {
        "PATH": str(workspace / "bin"),
        "HOME": str(workspace),
        "BAZELW_HOME": str(workspace / "home"),
        **variables,
    }
    command = [str(workspace / "bazelw"), "build", "//:wheel"]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_bazelisk_first(workspace: Path) -> None:
    program(workspace / "bin/bazelisk", "bazelisk", "7.7.1")
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    assert run(workspace) == "bazelisk build //:wheel"


def test_bazel_of_the_right_version(workspace: Path) -> None:
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    assert run(workspace) == "bazel build //:wheel"


@pytest.mark.parametrize("name", ["bazel", "bazelisk"])
def test_another_version_is_passed_over(workspace: Path, name: str) -> None:
    program(workspace / "bin" / name, name, "8.0.0")
    assert run(workspace).startswith("debian ")


def test_a_bazelisk_that_cannot_download_is_passed_over(workspace: Path) -> None:
    path = workspace / "bin/bazelisk"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    assert run(workspace).startswith("debian ")


def test_the_unpacked_bazel_gets_its_own_settings(workspace: Path) -> None:
    output = run(workspace)
    assert output.startswith("debian --nosystem_rc --bazelrc=")
    assert output.endswith(" build //:wheel")


def test_variables_choose(workspace: Path) -> None:
    program(workspace / "bin/bazelisk", "bazelisk", "7.7.1")
    assert run(workspace, BAZELW_FORCE_DEB="1").startswith("debian ")
    mine = program(workspace / "mine", "mine", "7.0.0")
    assert run(workspace, BAZEL_REAL=str(mine)) == "mine build //:wheel"


def test_the_version_is_bazelversions(workspace: Path) -> None:
    (workspace / ".bazelversion").write_text("7.4.1\n")
    program(workspace / "bin/bazel", "bazel", "7.4.1")
    assert run(workspace) == "bazel build //:wheel"
    assert os.access("bazelw", os.X_OK)


# Knows its mirror once it has fetched lists, as apt does, and cannot download packages.
APT_GET = """#!/bin/sh
for argument; do
  case $argument in
    Dir::State::lists=*) lists=${argument#*=};;
    update) echo update >"$lists/fetched";;
    indextargets) if [ -e "$lists/fetched" ]; then echo MIRROR/debian/; fi;;
    install) exit 1;;
  esac
done
"""


def test_the_mirror_is_found_without_apts_lists(workspace: Path) -> None:
    for tool in ("flock", "grep", "mkdir", "rm", "tail", "uname"):
        (workspace / "bin" / tool).symlink_to(shutil.which(tool))
    apt_get = workspace / "bin/apt-get"
    apt_get.write_text(APT_GET)
    apt_get.chmod(0o755)
    (workspace / "home" / SUITE / "ok").unlink()
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(workspace)
    assert "could not fetch Bazel" in error.value.stderr, error.value.stderr
    sources = (workspace / "home" / SUITE / "apt/sources.list").read_text()
    assert " MIRROR/debian/ forky main" in sources


def failure(workspace: Path, *command: str) -> str:
    environment = {"PATH": str(workspace / "bin"), "HOME": str(workspace)}
    result = subprocess.run(
        [str(workspace / "bazelw"), *command], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1, result.stdout
    return result.stderr.strip()


def test_no_compiler(workspace: Path) -> None:
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    (workspace / "bin/g++").unlink()
    error = "bazelw: no C++ compiler: install g++ (Debian: apt-get install g++)"
    assert failure(workspace, "build", "//:wheel") == error
    command = [str(workspace / "bazelw"), "info"]
    environment = {"PATH": str(workspace / "bin"), "HOME": str(workspace)}
    assert subprocess.run(command, env=environment, check=True, capture_output=True)


def test_no_room(workspace: Path) -> None:
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    df = workspace / "bin/df"
    df.write_text(
        "#!/bin/sh\necho Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        "echo /dev/vda 100 100 7000000 93% /\n"
    )
    df.chmod(0o755)
    assert "build needs 8 GB for ~/.cache/bazel but 7 GB are free" in failure(workspace, "build")
    assert "test needs 20 GB" in failure(workspace, "test", "//...")
    (workspace / ".cache/bazel").mkdir(parents=True)
    assert run(workspace) == "bazel build //:wheel"
