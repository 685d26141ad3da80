"""Checks the patch series, with a git repository of pytorch/xla also what they do to its source.

Without SOURCE_TREE it checks the form: the series is complete and numbered, every patch is in the
form of `git format-patch` with a message that names its test plan, its diffstat names the files
that it changes, and no added line has a whitespace error. With SOURCE_TREE it also applies every
series to a copy at the release's commit and checks the result.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import series

_CSRC = "torch_xla/csrc/"
_DEFAULT_TARGET = '"triton_kernel_call"'

# The way of the target from Python to the HLO: in each file, in the code from the first pattern
# to the end of that function, the second has to match.
_WAY_OF_THE_TARGET = [
    (
        "init_python_bindings.cpp",
        r'"_xla_gpu_custom_call",',
        r"gpu_custom_call\([^;]*,\s*target[,)]",
    ),
    (
        "init_python_bindings.cpp",
        r'"_xla_gpu_custom_call",',
        r'py::arg\("target"\) = kDefaultGpuCustomCallTarget[,)]',
    ),
    ("tensor_methods.cpp", r"> gpu_custom_call\(", r"MakeNode<GpuCustomCall>\([^;]*,\s*target[,)]"),
    ("ops/gpu_custom_call.cpp", r"GpuCustomCall::GpuCustomCall\(", r"MHash\([^;]*\btarget\b"),
    ("ops/gpu_custom_call.cpp", r"GpuCustomCall::Clone\(", r"MakeNode<[^;]*,\s*target_[,)]"),
    (
        "ops/gpu_custom_call.cpp",
        r"GpuCustomCall::Lower\(",
        r"BuildGpuCustomCall\([^;]*,\s*target_[,)]",
    ),
    (
        "xla_lower_util.cpp",
        r"> BuildGpuCustomCall\(",
        r"CustomCallWithLayout\(\s*inputs\[0\]\.builder\(\),\s*(/\*\w+=\*/)?target,",
    ),
]


def check_form(checked: series.Series) -> Iterator[str]:
    """Yields what is wrong with the files of a series."""
    listed = [patch.path.name for patch in checked.patches]
    present = sorted(path.name for path in checked.folder.glob("*.patch"))
    if listed != present:
        yield f"{checked.folder}: series lists {listed}, but the folder has {present}"
    for index, patch in enumerate(checked.patches, start=1):
        yield from (
            f"{patch.path}: {problem}"
            for problem in _patch_problems(patch, (index, len(checked.patches)))
        )


def _patch_problems(patch: series.Patch, number: tuple[int, int]) -> Iterator[str]:
    if not re.fullmatch(rf"{number[0]:04}-[\w.-]+\.patch", patch.path.name):
        yield f"the name does not begin with {number[0]:04}-"
    if patch.number != number:
        yield "the subject has {}/{}, not {}/{}".format(*patch.number, *number)
    if len(patch.subject) > 72 or patch.subject.endswith("."):
        yield "the subject is longer than 72 characters or ends with a full stop"
    if max(map(len, patch.message.splitlines()), default=0) > 79:
        yield "the message has a line of more than 79 characters"
    what, found, plan = patch.message.partition("\nTest plan:\n")
    if not found or not plan.strip():
        yield "the message has no test plan"
    if len(what.split("\n\n")) < 2:
        yield "the message does not say both what was wrong and what changes"
    if patch.stat_files != patch.diff_files:
        yield f"diffstat and diff differ in {sorted(patch.stat_files ^ patch.diff_files)}"
    if not any(name.startswith("test/") or "_test." in name for name in patch.diff_files):
        yield "it has no test"
    for name in sorted(patch.diff_files):
        if re.match(r"torch_xla/.*\.py$", name):
            yield f"it changes {name}, which the wheel's build does not patch"
    for line in patch.diff.splitlines():
        if re.match(r"\+(?!\+\+ ).*[ \t]$", line) or re.match(r"\+ *\t", line):
            yield f"whitespace error in the added line {line!r}"


class _Tree:
    """A clone of the source at the commit of a release."""

    def __init__(self, path: Path, source: Path, commit: str) -> None:
        self._path = path
        subprocess.run(
            ["git", "clone", "--quiet", "--shared", "--no-checkout", str(source), str(path)],
            check=True,
            capture_output=True,
            text=True,
        )
        self.git("config", "user.name", "check")
        self.git("config", "user.email", "check@invalid")
        self.git("checkout", "--quiet", "--detach", commit)

    def git(self, *args: str) -> str:
        """Runs git; returns what it prints on both streams, raises CalledProcessError."""
        return subprocess.run(
            ["git", "-C", str(self._path), *args],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ).stdout

    def read(self, name: str) -> str:
        return (self._path / name).read_text(encoding="utf-8")

    def sources(self) -> Iterator[tuple[str, str]]:
        """The C++ files of torch_xla/csrc without its tests, and their text."""
        for path in sorted((self._path / _CSRC).rglob("*")):
            if path.suffix in (".cc", ".cpp", ".h") and not path.stem.endswith("_test"):
                yield str(path.relative_to(self._path)), path.read_text(encoding="utf-8")


def check_source(checked: series.Series, source: Path) -> Iterator[str]:
    """Yields what is wrong with what the series does to the source of its release."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tree = _Tree(Path(folder) / "xla", source, checked.commit)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr or error.stdout).strip()
            yield f"{source} cannot be used for {checked.tag}: {reason}"
            return
        for patch in checked.patches:
            try:
                fit = tree.git(
                    "apply", "--check", "--verbose", "--whitespace=error", str(patch.path)
                )
                tree.git("am", "--quiet", "--no-3way", str(patch.path))
            except subprocess.CalledProcessError as error:
                yield f"{patch.path} does not apply: {error.stdout.strip()}"
                return
            if re.search(r"\b(offset|fuzz)\b", fit):
                yield f"{patch.path} applies only with an offset: {fit.strip()}"
            changed = tree.git("diff", "--name-only", "--no-renames", "HEAD~").split()
            if set(changed) != patch.stat_files:
                wrong = sorted(set(changed) ^ patch.stat_files)
                yield f"{patch.path}: changed and named files differ in {wrong}"
        yield from _target_problems(checked, tree)
        for patch in reversed(checked.patches):
            tree.git("apply", "--reverse", "--index", str(patch.path))
        if difference := tree.git("diff", "--stat", "--cached", checked.commit):
            yield f"{checked.folder}: reversed, the series leaves {difference}"


def _target_problems(checked: series.Series, tree: _Tree) -> Iterator[str]:
    """Follows the target from Python to the HLO in the patched source."""
    for name, begin, pattern in _WAY_OF_THE_TARGET:
        text = tree.read(_CSRC + name)
        function = re.search(begin + r".*?(\n}\n|\n +\.def\(|\n  m\.def\(|\Z)", text, re.DOTALL)
        if not function or not re.search(pattern, function[0]):
            yield f"{checked.folder}: the target does not reach `{pattern}` in {_CSRC}{name}"
    places = [
        (name, line.strip())
        for name, text in tree.sources()
        for line in text.splitlines()
        if _DEFAULT_TARGET in line
    ]
    expected = f"inline constexpr char kDefaultGpuCustomCallTarget[] = {_DEFAULT_TARGET};"
    if places != [(_CSRC + "xla_lower_util.h", expected)]:
        yield (
            f"{checked.folder}: {_DEFAULT_TARGET} stands not only as the default in "
            f"{_CSRC}xla_lower_util.h, but in {places}"
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source_tree",
        nargs="?",
        type=Path,
        metavar="SOURCE_TREE",
        help="a git repository of pytorch/xla, with or without a work tree; it is not changed",
    )
    series.add_option(parser)
    args = parser.parse_args(argv)
    problems = []
    try:
        for checked in series.load_all(args.patches):
            found = list(check_form(checked))
            if args.source_tree:
                found += check_source(checked, args.source_tree.resolve())
            what = "form and source" if args.source_tree else "form"
            count = len(checked.patches)
            print(f"{checked.tag}: {what} of {count} patches: {len(found)} problems")
            problems += found
    except series.SeriesError as error:
        problems.append(str(error))
    for problem in problems:
        print(f"check: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
