"""Apply the patch series for a release of pytorch/xla, as commits, to a checkout of the release.

    ./bazelw run //patches:apply -- CHECKOUT

If this fails, it reports the reason and leaves the checkout unchanged.
"""

import os
import subprocess
import sys
from pathlib import Path

PATCHES = Path(__file__).parent


class ApplyError(Exception):
    """The series was not applied; the message says why."""


def _git(tree: Path, *args: str) -> str:
    """Run git in `tree` and return its output; raise ApplyError with git's message."""
    result = subprocess.run(["git", "-C", str(tree), *args], capture_output=True, text=True)
    if result.returncode:
        raise ApplyError(f"git {args[0]} in {tree}: {(result.stderr or result.stdout).strip()}")
    return result.stdout.strip()


def read(series: Path) -> tuple[str, str, list[Path]]:
    """Return the tag and commit of the release that the file `series` is for, and the patches."""
    first, *names = series.read_text(encoding="utf-8").split("\n")
    tag, commit = first.split()[-2:]
    return tag, commit, [series.parent / name for name in names if name]


def apply(tree: Path, patches: Path = PATCHES) -> list[Path]:
    """Commit the series for the release that is checked out in `tree`; return the patches.

    Raises ApplyError if there is no such series, `tree` has changes, or a patch does not apply.
    """
    all_series = {
        commit: (tag, files)
        for tag, commit, files in map(read, sorted(patches.glob("*/series"), reverse=True))
    }
    head = _git(tree, "rev-parse", "HEAD")
    if head not in all_series:
        known = " and ".join(tag for tag, _ in all_series.values())
        raise ApplyError(
            f"{tree} is at commit {head[:10]}, but there are patches only for {known}; check one "
            "of them "
            "out, without other commits"
        )
    if changed := _git(tree, "status", "--porcelain"):
        raise ApplyError(f"{tree} has changes; commit them elsewhere or stash them:\n{changed}")
    _, files = all_series[head]
    try:
        _git(tree, "am", "--no-3way", "--quiet", *map(str, files))
    except ApplyError:
        subprocess.run(["git", "-C", str(tree), "am", "--abort"], capture_output=True)
        raise
    return files


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    # `bazel run` starts programs elsewhere; a relative path is the caller's.
    tree = Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")) / sys.argv[1]
    try:
        for patch in apply(tree):
            print(patch.name)
    except ApplyError as error:
        print(f"apply: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
