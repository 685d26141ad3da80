"""Applies the patch series to a checkout of pytorch/xla.

The checkout has to stand on the commit of a release that there is a series for, with nothing
changed in it. Otherwise, or if a patch does not fit, the program says so and changes nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import series


class ApplyError(Exception):
    """Why the series was not applied, for the person who asked for it."""


def _git(tree: Path, *args: str, env: dict[str, str] | None = None) -> str:
    """Runs git in `tree`; returns its output without the last newline."""
    return subprocess.run(
        ["git", "-C", str(tree), *args],
        check=True,
        capture_output=True,
        text=True,
        env=None if env is None else {**os.environ, **env},
    ).stdout.rstrip("\n")


def check_checkout(tree: Path, all_series: list[series.Series]) -> series.Series:
    """Returns the series for the release that `tree` stands on, if it can be applied there."""
    try:
        top = _git(tree, "rev-parse", "--show-toplevel")
    except (subprocess.CalledProcessError, NotADirectoryError):
        raise ApplyError(f"{tree} is not a git work tree") from None
    if Path(top).resolve() != tree.resolve():
        raise ApplyError(f"{tree} is inside the git work tree {top}; name that one")
    for state in ("rebase-apply", "rebase-merge", "MERGE_HEAD", "CHERRY_PICK_HEAD"):
        if (tree / _git(tree, "rev-parse", "--git-path", state)).exists():
            raise ApplyError(f"{tree} is in the middle of another git operation ({state})")

    head = _git(tree, "rev-parse", "HEAD")
    found = [s for s in all_series if s.commit == head]
    if not found:
        known = ", ".join(f"{s.tag} ({s.commit[:10]})" for s in all_series)
        for candidate in all_series:
            subjects = _subjects_after(tree, candidate.commit)
            if subjects and subjects == [p.subject for p in candidate.patches]:
                raise ApplyError(f"{tree} has the series for {candidate.tag} already")
        raise ApplyError(
            f"{tree} stands on {head[:10]}, but there are series for {known} only; "
            f"check one of them out: git -C {tree} checkout {all_series[-1].tag}"
        )

    changed = _git(tree, "status", "--porcelain").splitlines()
    if changed:
        names = ", ".join(line[3:] for line in changed[:5]) + (", …" if changed[5:] else "")
        raise ApplyError(
            f"{tree} has changes ({names}); commit them elsewhere, stash them or use a new clone"
        )
    return found[0]


def _subjects_after(tree: Path, commit: str) -> list[str]:
    """The subjects of the commits from `commit` to HEAD; none if it is not an ancestor."""
    try:
        _git(tree, "merge-base", "--is-ancestor", commit, "HEAD")
        return _git(tree, "log", "--reverse", "--format=%s", f"{commit}..HEAD").splitlines()
    except subprocess.CalledProcessError:
        return []


def check_fit(tree: Path, to_apply: series.Series) -> None:
    """Raises ApplyError unless every patch fits; works on a copy of the index alone."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(tree, "read-tree", "HEAD", env=env)
        for patch in to_apply.patches:
            try:
                _git(tree, "apply", "--cached", str(patch.path), env=env)
            except subprocess.CalledProcessError as error:
                raise ApplyError(
                    f"{patch.path.name} does not fit {tree}: {error.stderr.strip()}"
                ) from None


def apply_series(tree: Path, to_apply: series.Series) -> None:
    """Commits the patches on top of HEAD; leaves `tree` as it was if that fails."""
    head = _git(tree, "rev-parse", "HEAD")
    # Who applies need not have told git a name: the author's stands in for it.
    author, email = to_apply.patches[0].author
    env = {}
    try:
        _git(tree, "var", "GIT_COMMITTER_IDENT")
    except subprocess.CalledProcessError:
        env = {"GIT_COMMITTER_NAME": author, "GIT_COMMITTER_EMAIL": email}
    paths = [str(patch.path) for patch in to_apply.patches]
    try:
        _git(tree, "am", "--no-3way", "--quiet", *paths, env=env)
    except subprocess.CalledProcessError as error:
        subprocess.run(["git", "-C", str(tree), "am", "--abort"], capture_output=True)
        if _git(tree, "rev-parse", "HEAD") != head:
            _git(tree, "reset", "--hard", "--quiet", head)
        raise ApplyError(
            f"git am failed, {tree} is as it was: {(error.stderr or error.stdout).strip()}"
        ) from None


def _next_steps(tree: Path, applied: series.Series) -> str:
    patches = "\n".join(f"  {p.path.name}: {p.subject}" for p in applied.patches)
    return f"""{tree} now has, on top of {applied.tag}:
{patches}
Next, with the PyTorch checkout that pytorch/xla's CONTRIBUTING.md asks for beside it:
  cd {tree}
  python setup.py bdist_wheel
  python test/test_custom_call.py
To link kernels into _XLAC.so as well, from a folder that is laid out as bazel/no_kernels is:
  bazel build //:_XLAC.so --override_repository=torch_xla_ext=FOLDER
To take the patches away again:
  git -C {tree} reset --hard {applied.tag}"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./bazelw run //patches:apply --", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("checkout", type=Path, help="a git work tree of pytorch/xla")
    series.add_option(parser)
    args = parser.parse_args(argv)
    # `bazel run` starts programs elsewhere; a relative path is the caller's.
    tree = Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")) / args.checkout
    try:
        to_apply = check_checkout(tree, series.load_all(args.patches))
        check_fit(tree, to_apply)
        apply_series(tree, to_apply)
    except (ApplyError, series.SeriesError) as error:
        print(f"apply: {error}", file=sys.stderr)
        return 1
    print(_next_steps(tree, to_apply))
    return 0


if __name__ == "__main__":
    sys.exit(main())
