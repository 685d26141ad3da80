"""Run an example with the built wheel, in a virtual environment that is made once and kept.

The rule in bazel/example.bzl runs this. The environment is in ~/.cache/torch_xla_ext, or in
TORCH_XLA_EXT_ENV. It has torch's CPU build if the package index has one: 200 MB instead of 7.4 GB.
With PJRT_DEVICE=CUDA, a second environment has CUDA's libraries. Errors are one sentence on stderr.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pip"))
import fetch

TORCH = "torch==2.8.0"
CPU_BUILD = TORCH + "+cpu"
PROGRAM = "example"  # prefix of messages
# The disk space that the environment needs while pip unpacks the wheels, in GB.
CPU_GB, FULL_GB = 3, 12
# pip's messages if the index has no CPU build, without and with constraints.
_NOT_THERE = ("No matching distribution found", "ResolutionImpossible")


class ExampleError(Exception):
    """An error whose text is the only sentence that the user sees."""


def say(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def environment_folder(device: str, environ: dict[str, str]) -> Path:
    """Return the environment for PJRT_DEVICE=`device` and the Python that runs this."""
    if chosen := environ.get("TORCH_XLA_EXT_ENV"):
        return Path(chosen)
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~"), ".cache"))
    tag = "cp{}{}".format(*sys.version_info[:2])
    return cache.expanduser() / "torch_xla_ext" / f"examples-{tag}-{device.lower()}"


def check_room(folder: Path, gigabytes: int) -> None:
    """Raise ExampleError if the disk of `folder` has less free space."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise ExampleError(
            f"{folder} needs {gigabytes} GB but its disk has {free:.1f} GB left: free some space, "
            "or name a folder on another disk with TORCH_XLA_EXT_ENV"
        )


class Environment:
    """A virtual environment, with a record of what was installed into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._record = folder / "installed.json"

    def installed(self) -> dict[str, str]:
        try:
            return json.loads(self._record.read_text())
        except (OSError, ValueError):
            return {}

    def _remember(self, key: str, value: str) -> None:
        self._record.write_text(json.dumps(self.installed() | {key: value}))

    def pip(self, *arguments: str) -> str | None:
        """Install packages while showing pip's progress; return pip's output if it failed."""
        process = subprocess.Popen(
            [self.python, "-m", "pip", "install", "--only-binary=:all:", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONNOUSERSITE="1"),
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.lstrip().startswith(
                ("Collecting", "Downloading", "Installing", "Successfully")
            ):
                print(line, end="", file=sys.stderr, flush=True)
        return "".join(lines) if process.wait() else None

    def _install(self, what: str, *arguments: str) -> None:
        if output := self.pip(*arguments):
            raise ExampleError(fetch.explain(output, what))

    def _make(self) -> None:
        say(f"making {self.folder}, once")
        shutil.rmtree(self.folder, ignore_errors=True)
        command = [sys.executable, "-m", "venv", str(self.folder)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            if "No space left" in result.stdout + result.stderr:
                raise ExampleError("the disk is full: free some space, then run again")
            raise ExampleError(
                f"{sys.executable} cannot make a virtual environment: install its venv module "
                "(Debian: `apt-get install python3-venv`)"
            )

    def _install_torch(self, device: str) -> None:
        if device == "CPU":
            check_room(self.folder, CPU_GB)
            output = self.pip(CPU_BUILD)
            if output is None:
                return
            is_missing = any(sign in output for sign in _NOT_THERE)
            if not is_missing or any(sign in output for sign in fetch.NETWORK_SIGNS):
                raise ExampleError(fetch.explain(output, TORCH))
            say(f"the package index has no {CPU_BUILD}: downloading torch with CUDA's libraries")
        check_room(self.folder, FULL_GB)
        self._install(TORCH, TORCH)

    def run(self, script: Path) -> int:
        """Run a Python script in the environment; return its exit status."""
        return subprocess.run([self.python, script]).returncode

    def prepare(
        self, device: str, wheel: Path, locks: Sequence[Path] = (), setup: Path | None = None
    ) -> None:
        """Install what is missing; raise ExampleError if that fails.

        Args:
            device: PJRT_DEVICE.
            wheel: the built wheel.
            locks: files that list packages with their SHA-256, installed without requirements.
            setup: a script that installs the rest, once for each wheel.
        """
        self.prepare_torch(device)
        if self.installed().get("wheel") != wheel.name:
            say(f"installing {wheel.name}")
            extra = "[cuda12]" if device == "CUDA" else ""
            self._install("the wheel", f"{wheel}{extra}")
            self._remember("wheel", wheel.name)
        if setup is not None and self.installed().get(str(setup)) != wheel.name:
            say(f"running {setup}")
            if self.run(setup):
                raise ExampleError(f"{setup} failed: see above")
            self._remember(str(setup), wheel.name)
        self.install_locks(locks)  # after the setup, whose packages they may require

    def prepare_torch(self, device: str) -> None:
        """Make the environment with torch, once; raise ExampleError if that fails."""
        if "torch" not in self.installed():
            self._make()
            self._install_torch(device)
            self._remember("torch", TORCH)

    def install_requirements(self, requirements: Sequence[str]) -> None:
        """Install packages and their requirements, once; raise ExampleError if that fails."""
        for requirement in requirements:
            if requirement not in self.installed():
                self._install(requirement, requirement)
                self._remember(requirement, "")

    def install_locks(self, locks: Sequence[Path]) -> None:
        """Install the packages of changed lock files; raise ExampleError if that fails."""
        for lock in locks:
            content = hashlib.sha256(lock.read_bytes()).hexdigest()
            if self.installed().get(lock.name) != content:
                self._install(lock.name, "--no-deps", "--require-hashes", "-r", str(lock))
                self._remember(lock.name, content)


def only_wheel(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel.resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel-dir", type=Path, required=True)
    parser.add_argument("--lock", type=Path, action="append", default=[])
    parser.add_argument("--setup", type=Path)
    parser.add_argument("example", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    device = os.environ.setdefault("PJRT_DEVICE", "CPU")
    environment = Environment(environment_folder(device, dict(os.environ)))
    try:
        environment.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{environment.folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            wheel = only_wheel(args.wheel_dir)
            environment.prepare(device, wheel, args.lock, args.setup)
    except ExampleError as error:
        sys.exit(f"example: {error}")
    except OSError as error:
        sys.exit(f"example: {error}; name another folder with TORCH_XLA_EXT_ENV")
    command = [str(environment.python), str(args.example), *args.arguments]
    say(f"{' '.join(command)}  (PJRT_DEVICE={device})")
    os.environ.pop("PYTHONPATH", None)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
