"""Write the lock files in bazel/pip/locks: every package by version and SHA-256.

Run this by hand after a `.in` file has changed, with a Python that has pip 23.1 or newer, and the
oldest Python of each lock (`python3.11`, `python3.12`) in PATH:

    python3 bazel/pip/update_locks.py [NAME ...]

For `NAME.in`, pip resolves the requirements in the oldest supported Python; the resulting versions
are then looked up for the other supported Pythons, and the hash of each file that one of them would
install is written to `NAME.lock`. A requirement marked `# alone` is locked without its own
requirements.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LOCKS = Path(__file__).parent / "locks"
PYTHONS = ("3.11", "3.12", "3.13")
# `.in` files whose packages are installed without their requirements.
WITHOUT_DEPENDENCIES = {*("torch", "torch_xla", "xla_headers", "cuda", "smollm2", "vllm_cuda")}
# Locks whose packages are installed beside those of another lock. They use the other lock's
# versions, and leave out its packages unless the `.in` file names them.
BESIDE = dict.fromkeys(("huggingface", "huggingface5", "jax", "vllm"), "test_env")
# Locks for fewer Pythons. torch-tpu 0.2.0 has one wheel for each, and is tested with 3.12.
FEWER_PYTHONS = {"torch_tpu": ("3.12",), **dict.fromkeys(("vllm", "vllm_cuda"), ("3.11", "3.12"))}


def interpreter(python: str) -> str:
    """Return the path of a Python of this version."""
    if sys.version_info[:2] == tuple(map(int, python.split("."))):
        return sys.executable
    return shutil.which(f"python{python}") or sys.exit(f"python{python} is not in PATH")


def resolve(
    requirements: list[str], python: str, oldest: str, with_deps: bool
) -> dict[str, tuple[str, str]]:
    """Return {name: (version, sha256)} of the packages that pip would install for `python`.

    pip runs in the oldest Python of the lock: whatever `--python-version` says, `pip install`
    compares a package's Requires-Python and its requirements' markers with the Python that runs it.
    """
    with tempfile.TemporaryDirectory() as tmp:
        report = Path(tmp, "report.json")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", interpreter(oldest)),
                *("install", "--quiet", "--dry-run"),
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


def read_pins(lock_file: Path) -> dict[str, str]:
    """Return {name: version} of a lock file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lock_file.read_text(), re.MULTILINE))


def resolve_all(source: Path, python: str) -> dict[str, str]:
    """Return {name: version} of the resolved requirements of `source` for `python`."""
    lines = [line for line in source.read_text().splitlines() if line and line[0] != "#"]
    alone = [line.split("#")[0].strip() for line in lines if line.endswith("# alone")]
    whole = [line for line in lines if not line.endswith("# alone")]
    named = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines}
    other = {}
    if beside := BESIDE.get(source.stem):
        other = read_pins(source.with_name(f"{beside}.lock"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{n}=={v}\n" for n, v in other.items() if n not in named)
        constraints.flush()
        with_deps = source.stem not in WITHOUT_DEPENDENCIES
        whole += ["--constraint", constraints.name]
        resolved = resolve(whole, python, python, with_deps)
    if alone:
        resolved |= resolve(alone, python, python, with_deps=False)
    return {n: v for n, (v, _) in resolved.items() if n in named or n not in other}


def lock(source: Path) -> None:
    """Write the lock file that belongs to `source`."""
    pythons = FEWER_PYTHONS.get(source.stem, PYTHONS)
    resolved = resolve_all(source, pythons[0])
    pins = sorted(f"{name}=={version}" for name, version in resolved.items())
    hashes = {pin: set[str]() for pin in pins}
    for python in pythons:
        for name, (version, sha256) in resolve(pins, python, pythons[0], False).items():
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
