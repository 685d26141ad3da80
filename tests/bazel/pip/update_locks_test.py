"""update_locks.py with a pip of the test, which reports what it was asked for."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import update_locks

RUNNING = "{}.{}".format(*sys.version_info[:2])


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of pip that were run. Each resolves to version 1.0 of its first requirement."""
    ran: list[list[str]] = []

    def run(command: list[str], check: bool) -> None:
        ran.append(command)
        name = command[command.index("--only-binary=:all:") + 1 :]
        name = next(each for each in name if each[0] != "-").partition("==")[0]
        sha256 = str(len(ran)) * 64
        package = {
            "metadata": {"name": name, "version": "1.0"},
            "download_info": {"archive_info": {"hashes": {"sha256": sha256}}},
        }
        Path(command[command.index("--report") + 1]).write_text(json.dumps({"install": [package]}))

    monkeypatch.setattr(subprocess, "run", run)
    return ran


def test_pip_runs_in_the_oldest_python(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_locks, "FEWER_PYTHONS", {"toy": ("3.98", "3.99")})
    monkeypatch.setattr(shutil, "which", "/bin/{}".format)
    (source := tmp_path / "toy.in").write_text("# a comment\ntoy\n")
    update_locks.lock(source)
    pythons = [
        tuple(command[command.index(option) + 1] for option in ("--python", "--python-version"))
        for command in commands
    ]
    assert pythons == [("/bin/python3.98", each) for each in ("3.98", "3.98", "3.99")]
    hashes = "".join(f" \\\n    --hash=sha256:{str(i) * 64}" for i in (2, 3))
    assert (tmp_path / "toy.lock").read_text() == (
        f"# Made by update_locks.py from toy.in; do not edit.\ntoy==1.0{hashes}\n"
    )


def test_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert update_locks.interpreter(RUNNING) == sys.executable
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"python3\.98 is not in PATH"):
        update_locks.interpreter("3.98")
