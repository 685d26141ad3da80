"""Measures `./bazelw build //:wheel`: a clean build, after an edit, and with nothing to do.

    python3 benchmarks/build_time.py [--warm]

The clean build has empty folders for Bazel, pip's cache and Bazel's output and caches, so
everything is downloaded; --warm skips it. The edit adds a line to a kernel in a copy of this work
tree and builds again. Needs 8 GB of disk under --folder while it runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNEL = "kernels/simple_add/simple_add.cu"


def own_files() -> list[str]:
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.splitlines() if Path(ROOT, name).exists()]


def copy_tree(target: Path) -> None:
    for name in own_files():
        Path(target, name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(ROOT, name), Path(target, name))


class Builder:
    """Builds the wheel of a copy of the work tree, with caches of its own or the user's."""

    def __init__(self, folder: Path, *, cold: bool) -> None:
        self.tree = folder / "tree"
        self.output = folder / "output"
        self.environment = dict(os.environ)
        if cold:
            self.environment["BAZELW_HOME"] = str(folder / "bazelw")
            self.environment["PIP_CACHE_DIR"] = str(folder / "pip")
        copy_tree(self.tree)

    def bazel(self, *arguments: str) -> None:
        command = ["./bazelw", f"--output_user_root={self.output}", *arguments]
        subprocess.run(command, cwd=self.tree, env=self.environment, check=True)

    def build(self) -> None:
        self.bazel("build", "//:wheel", "--noshow_progress")

    def edit_kernel(self) -> None:
        with open(self.tree / KERNEL, "a") as file:
            file.write(f"__global__ void Edit{time.time_ns()}(int* out) {{ *out = 1; }}\n")

    def stop(self) -> None:
        self.bazel("clean", "--expunge")


def seconds(action: Callable[[], None]) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warm", action="store_true", help="skip the clean build")
    parser.add_argument("--folder", help="working folder (default: a temporary one)")
    args = parser.parse_args()
    rows: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        builder = Builder(Path(folder), cold=not args.warm)
        try:
            first = seconds(builder.build)
            if not args.warm:
                rows.append(("from nothing, downloads included", first, 600))
            builder.edit_kernel()
            rows.append(("after editing one kernel", seconds(builder.build), 60))
            rows.append(("nothing to do", seconds(builder.build), 5))
        finally:
            builder.stop()
    print(f"\n{os.cpu_count()} cores\n{'./bazelw build //:wheel':36}{'measured':>10}{'goal':>8}")
    for name, measured, goal in rows:
        print(f"{name:36}{measured:9.1f}s{goal:7.0f}s")


if __name__ == "__main__":
    main()
