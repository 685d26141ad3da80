"""The series of patches applies in order, without fuzz or offset, to a reconstructed source.

The source of pytorch/xla is not in this repository. The test makes a tree from the patches: it has
the lines that the hunks show, at their line numbers, and unknown lines between them. A hunk that
contradicts an earlier one fails, and so does a patch out of order.
"""

import dataclasses
import re
import subprocess
from pathlib import Path

import apply
import pytest

PATCHES = Path("patches")
RELEASE = "2.8.1"
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclasses.dataclass
class Line:
    """A line of the source; its text is unknown until a hunk shows it."""

    text: str | None = None


class Source:
    """The files of the release, as far as the patches show them, and as patched so far."""

    def __init__(self) -> None:
        self.released: dict[str, list[Line]] = {}
        self.patched: dict[str, list[Line]] = {}
        self.whole: set[str] = set()

    def apply(self, patch: Path) -> None:
        diff = patch.read_text().split("\n---\n", 1)[1]
        for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE)[1:]:
            head, *hunks = re.split(r"^(?=@@ )", part, flags=re.MULTILINE)
            name = head.split()[1].removeprefix("b/")
            if "\n--- /dev/null\n" in head:
                self.patched[name] = []
            for hunk in hunks:
                self._apply_hunk(name, hunk)

    def _apply_hunk(self, name: str, hunk: str) -> None:
        match = HUNK.match(hunk)
        assert match, hunk
        lines = [line for line in hunk.split("\n")[1:] if line and line[0] in " +-"]
        if name not in self.patched:
            self.patched[name], self.released[name] = [], []
        patched, released = self.patched[name], self.released.get(name)
        # A patch's hunks have line numbers of the old file; earlier hunks have moved the lines.
        begin = max(int(match[3]) - 1, 0)
        end = begin + sum(line[0] != "+" for line in lines)
        while released is not None and len(patched) < end:
            released.append(Line())
            patched.append(released[-1])
        if lines[-1][0] != " ":
            self.whole.add(name)  # without a line of context, the file ends here
        at = begin
        for line in lines:
            if line[0] == "+":
                patched.insert(at, Line(line[1:]))
                at += 1
                continue
            known = patched[at].text
            assert known in (None, line[1:]), f"{name}:{at + 1} is {known!r}, not {line[1:]!r}"
            patched[at].text = line[1:]
            if line[0] == "-":
                del patched[at]
            else:
                at += 1

    def write(self, tree: Path) -> None:
        for name, lines in self.released.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            texts = [f"{n}" if line.text is None else line.text for n, line in enumerate(lines)]
            after = [] if name in self.whole else ["lines", "that no hunk", "shows"]
            (tree / name).write_text("\n".join([*texts, *after, ""]))


def git(tree: Path, *args: str) -> str:
    return subprocess.run(
        ["git", "-C", str(tree), "-c", "user.name=A", "-c", "user.email=a@invalid", *args],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A checkout of a release of which there is no series, and a folder for series."""
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "A")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "a@invalid")
    tree = tmp_path / "xla"
    tree.mkdir()
    git(tree, "init", "--quiet")
    return tree, tmp_path / "patches"


def release(tree: Path, patches: Path) -> list[Path]:
    """Makes `tree` the release, and the series in `patches` one for it."""
    _, _, files = apply.read(PATCHES / f"torch_xla-{RELEASE}" / "series")
    source = Source()
    for patch in files:
        source.apply(patch)
    source.write(tree)
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "The release")
    folder = patches / files[0].parent.name
    folder.mkdir(parents=True)
    for patch in files:
        (folder / patch.name).write_bytes(patch.read_bytes())
    head = git(tree, "rev-parse", "HEAD").strip()
    names = [patch.name for patch in files]
    (folder / "series").write_text("\n".join([f"# v{RELEASE} {head}", *names, ""]))
    return [folder / name for name in names]


def test_every_patch_is_listed() -> None:
    series = PATCHES / f"torch_xla-{RELEASE}" / "series"
    tag, commit, files = apply.read(series)
    assert tag == f"v{RELEASE}" and len(commit) == 40
    assert files == sorted(series.parent.glob("*.patch"))


def test_applies_in_order_without_offset(checkout: tuple[Path, Path]) -> None:
    tree, patches = checkout
    files = release(tree, patches)
    head = git(tree, "rev-parse", "HEAD").strip()
    for patch in files:
        fit = subprocess.run(
            ["git", "-C", str(tree), "apply", "--index", "--verbose", "--whitespace=error", patch],
            capture_output=True,
            text=True,
        )
        assert fit.returncode == 0, fit.stderr
        assert not re.search(r"\b(offset|fuzz)\b", fit.stderr), fit.stderr
    git(tree, "reset", "--hard", "--quiet", head)

    assert apply.apply(tree, patches) == files
    subjects = git(tree, "log", "--format=%s", f"{head}..").splitlines()
    assert len(subjects) == len(files)
    assert subjects[-1] == "Let GPU custom calls name their target"


def test_out_of_order(checkout: tuple[Path, Path]) -> None:
    tree, patches = checkout
    files = release(tree, patches)
    series = files[0].parent / "series"
    lines = series.read_text().splitlines()
    series.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:], ""]))
    head = git(tree, "rev-parse", "HEAD")
    with pytest.raises(apply.ApplyError, match="patch does not apply"):
        apply.apply(tree, patches)
    assert git(tree, "rev-parse", "HEAD") == head
    assert git(tree, "status", "--porcelain") == ""


def test_changes_and_other_commits_are_refused(checkout: tuple[Path, Path]) -> None:
    tree, patches = checkout
    release(tree, patches)
    (tree / "BUILD").write_text("mine\n")
    with pytest.raises(apply.ApplyError, match=r"has changes.*\n.*BUILD"):
        apply.apply(tree, patches)
    git(tree, "commit", "--quiet", "--all", "--message", "mine")
    with pytest.raises(apply.ApplyError, match=r"is at commit .*only for v2\.8\.1"):
        apply.apply(tree, patches)
    with pytest.raises(apply.ApplyError, match="git rev-parse"):
        apply.apply(tree / "nowhere", patches)
