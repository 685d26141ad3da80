"""Writes the lock files in bazel/pip/locks: every package by version and SHA-256.

Run by hand after a `.in` file has changed, with any Python that has pip 23.1 or newer:

    python3 bazel/pip/update_locks.py [NAME ...]

For `NAME.in`, pip resolves the requirements for the oldest supported Python; the versions that
result are then looked up for the other supported Pythons too, and `NAME.lock` gets the hash of
each file that one of them would install.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LOCKS = Path(__file__).parent / "locks"
PYTHONS = ("3.11", "3.12", "3.13")
# `.in` files whose packages are wanted without what they require.
WITHOUT_DEPENDENCIES = {"torch", "torch_xla", "xla_headers", "cuda"}


def resolve(requirements: list[str], python: str, with_deps: bool) -> dict[str, tuple[str, str]]:
    """Returns {name: (version, sha256)} of what pip would install for `python`."""
    with tempfile.TemporaryDirectory() as tmp:
        report = Path(tmp, "report.json")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"),
                *("--ignore-installed", "--report", str(report), "--target", tmp),
                *("--python-version", python, "--only-binary=:all:"),
                *([] if with_deps else ["--no-deps"]),
                *requirements,
            ],
            check=True,
        )
        packages = json.loads(report.read_text())["install"]
    return {
        package["metadata"]["name"].lower().replace("_", "-"): (
            package["metadata"]["version"],
            package["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for package in packages
    }


def lock(source: Path) -> None:
    """Writes the lock file that belongs to `source`."""
    lines = source.read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    resolved = resolve(wanted, PYTHONS[0], with_deps=source.stem not in WITHOUT_DEPENDENCIES)
    pins = sorted(f"{name}=={version}" for name, (version, _) in resolved.items())
    hashes = {pin: set[str]() for pin in pins}
    for python in PYTHONS:
        for name, (version, sha256) in resolve(pins, python, with_deps=False).items():
            hashes[f"{name}=={version}"].add(sha256)
    text = f"# Made by update_locks.py from {source.name}; do not edit.\n"
    for pin in pins:
        text += pin + "".join(f" \\\n    --hash=sha256:{h}" for h in sorted(hashes[pin])) + "\n"
    source.with_suffix(".lock").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="lock files to write; all when none is named")
    names = parser.parse_args().names
    for source in sorted(LOCKS.glob("*.in")):
        if not names or source.stem in names:
            print(f"locking {source.name}", file=sys.stderr)
            lock(source)


if __name__ == "__main__":
    main()
