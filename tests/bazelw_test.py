"""bazelw runs the right Bazel, here programs that print their names, or says what is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SUITE = "forky-r1"
# The machine's programs that bazelw needs. The PATH has no others, and so no installed Bazel.
TOOLS = ("bash", "cat", "dirname", "env", "g++", "python3", "sh", "timeout")


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


# Like apt, it knows its mirror once it has fetched lists. It cannot download packages.
APT_GET = """#!/bin/sh
for argument; do
  case $argument in
    Dir::State::lists=*) lists=${argument#*=};;
    update) echo update >"$lists/fetched_Packages";;
    indextargets) if [ -e "$lists/fetched_Packages" ]; then echo MIRROR/debian/; fi;;
    install) exit 1;;
  esac
done
"""


def debian(workspace: Path, apt_get: str) -> None:
    """A machine where bazelw must fetch Bazel with this apt-get."""
    for tool in ("flock", "grep", "mkdir", "rm", "tail", "uname"):
        (workspace / "bin" / tool).symlink_to(shutil.which(tool))
    for name, text in (("apt-get", apt_get), ("dpkg-deb", "#!/bin/sh\n")):
        (workspace / "bin" / name).write_text(text)
        (workspace / "bin" / name).chmod(0o755)
    (workspace / "home" / SUITE / "ok").unlink()


def test_the_mirror_is_found_without_apts_lists(workspace: Path) -> None:
    debian(workspace, APT_GET)
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(workspace)
    assert "could not fetch Bazel" in error.value.stderr, error.value.stderr
    sources = (workspace / "home" / SUITE / "apt/sources.list").read_text()
    assert " MIRROR/debian/ forky main" in sources


def test_without_a_network_the_error_names_the_mirror(workspace: Path) -> None:
    """apt-get update succeeds without a network, and fetches nothing."""
    debian(workspace, "#!/bin/sh\n")
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(workspace, BAZELW_DEBIAN_MIRROR="MIRROR/debian/")
    first, last = error.value.stderr.splitlines()
    assert first.startswith("bazelw: fetching Bazel into ")
    assert "no package lists from MIRROR/debian/" in last
    assert "check the network and apt's proxy" in last


def failure(workspace: Path, *command: str, **variables: str) -> str:
    environment = {"PATH": str(workspace / "bin"), "HOME": str(workspace), **variables}
    result = subprocess.run(
        [str(workspace / "bazelw"), *command], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1, result.stdout
    return result.stderr.strip()


def test_no_compiler(workspace: Path) -> None:
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    error = "bazelw: CC names clang-99, which is not there: set CC to a C++ compiler, or unset it "
    assert failure(workspace, "build", CC="clang-99") == error + "to use g++"
    (workspace / "bin/g++").unlink()
    error = "bazelw: no C++ compiler: install g++ (Debian: apt-get install g++)"
    assert failure(workspace, "build", "//:wheel") == error
    command = [str(workspace / "bazelw"), "info"]
    environment = {"PATH": str(workspace / "bin"), "HOME": str(workspace)}
    assert subprocess.run(command, env=environment, check=True, capture_output=True)


def test_no_python(workspace: Path) -> None:
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    (workspace / "bin/python3").unlink()
    assert failure(workspace, "build").startswith("bazelw: no python3: install Python 3.11 (")
    error = failure(workspace, "test", PYTHON_BIN_PATH="/nowhere/python")
    assert error.startswith("bazelw: no /nowhere/python: install ")


def test_no_headers(workspace: Path) -> None:
    """bazelw shows the sentence of bazel/python/probe.py; probe_test.py tests the sentences."""
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    python = workspace / "mine"
    python.write_text('#!/bin/sh\n[ "$3" = "$PROBE" ] && echo "python: no Python.h" >&2\nexit 1\n')
    python.chmod(0o755)
    probe = {"PROBE": str(workspace / "bazel/python/probe.py")}
    error = failure(workspace, "build", PYTHON_BIN_PATH=str(python), **probe)
    assert error == "bazelw: no Python.h"
    chosen = [f"--repo_env=PYTHON_BIN_PATH={shutil.which('python3')}", "//:wheel"]
    command = [str(workspace / "bazelw"), "build", *chosen]
    environment = {"PATH": str(workspace / "bin"), "HOME": str(workspace)}
    environment |= {"PYTHON_BIN_PATH": str(python), **probe}
    assert subprocess.run(command, env=environment, check=True, capture_output=True)


def test_no_room(workspace: Path) -> None:
    program(workspace / "bin/bazel", "bazel", "7.7.1")
    df = workspace / "bin/df"
    df.write_text(
        "#!/bin/sh\necho Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        f'[ "$2" = {workspace}/large ] && free=90000000 || free=7000000\n'
        'echo /dev/vda 100 100 "$free" 93% /\n'
    )
    df.chmod(0o755)
    cache = workspace / ".cache/bazel"
    assert f"build needs 8 GB for {cache} but 7 GB are free" in failure(workspace, "build")
    assert "test needs 20 GB" in failure(workspace, "test", "//...")
    (workspace / "large").mkdir()
    assert run(workspace, XDG_CACHE_HOME=str(workspace / "large")) == "bazel build //:wheel"
    # After another build, most repositories that this build needs are there, but none for tests.
    (cache / "_bazel_me/0f3/external/torch").mkdir(parents=True)
    assert run(workspace) == "bazel build //:wheel"
    assert "test needs 20 GB" in failure(workspace, "test", "//...")
    (cache / "_bazel_me/0f3/external/test_env").mkdir()
    command = [str(workspace / "bazelw"), "test", "//..."]
    environment = {"PATH": str(workspace / "bin"), "HOME": str(workspace)}
    assert subprocess.run(command, env=environment, check=True, capture_output=True)
