"""apply.py on small checkouts: it applies, or says why not and changes nothing."""

from __future__ import annotations

from pathlib import Path

import apply
import pytest
from fake_xla import AFTER, FakeXla, commit, git, write


def run(fake: FakeXla, tree: Path | None = None) -> int:
    return apply.main([str(tree or fake.tree), "--patches", str(fake.patches)])


def state(tree: Path) -> tuple[str, str, dict[str, str]]:
    """What must be as it was: the commit, git's view of the files, and the files."""
    files = {
        str(path.relative_to(tree)): path.read_text()
        for path in sorted(tree.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }
    return git(tree, "rev-parse", "HEAD"), git(tree, "status", "--porcelain"), files


def assert_refused(
    fake: FakeXla, capsys: pytest.CaptureFixture[str], *reasons: str, tree: Path | None = None
) -> None:
    before = state(fake.tree)
    assert run(fake, tree) == 1
    error = capsys.readouterr().err
    for reason in reasons:
        assert reason in error
    assert state(fake.tree) == before
    assert not (fake.tree / ".git" / "rebase-apply").exists()


def test_applies(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fake) == 0
    subjects = git(fake.tree, "log", "--reverse", "--format=%s", "v1.2.3..HEAD").splitlines()
    assert subjects == ["Name the target", "Test the target"]
    assert git(fake.tree, "status", "--porcelain") == ""
    name = "torch_xla/csrc/tensor_methods.cpp"
    assert (fake.tree / name).read_text() == AFTER[name]
    output = capsys.readouterr().out
    assert "python setup.py bdist_wheel" in output
    assert f"git -C {fake.tree} reset --hard v1.2.3" in output


def test_path_is_the_callers(fake: FakeXla, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bazel run` starts the program in its runfiles."""
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(fake.tree.parent))
    assert run(fake, Path(fake.tree.name)) == 0


def test_needs_no_identity(fake: FakeXla, monkeypatch: pytest.MonkeyPatch) -> None:
    git(fake.tree, "config", "--unset", "user.name")
    git(fake.tree, "config", "--unset", "user.email")
    git(fake.tree, "config", "user.useConfigOnly", "true")
    assert run(fake) == 0
    assert git(fake.tree, "log", "-1", "--format=%cn") == "Someone"


def test_chooses_the_release_by_its_commit(fake: FakeXla) -> None:
    """A clone of one commit has no tags."""
    git(fake.tree, "tag", "--delete", "v1.2.3")
    assert run(fake) == 0


def test_no_work_tree(fake: FakeXla, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert_refused(fake, capsys, "is not a git work tree", tree=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert_refused(fake, capsys, "is not a git work tree", tree=tmp_path / "empty")


def test_folder_below_the_top(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(fake, capsys, "is inside the git work tree", tree=fake.tree / "torch_xla")


def test_other_release(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    write(fake.tree, {"more": "more\n"})
    commit(fake.tree, "After the release")
    assert_refused(fake, capsys, "series for v1.2.3", "checkout v1.2.3")


def test_twice(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fake) == 0
    assert_refused(fake, capsys, "has the series for v1.2.3 already")


@pytest.mark.parametrize("staged", [False, True])
def test_changed_file(fake: FakeXla, capsys: pytest.CaptureFixture[str], staged: bool) -> None:
    write(fake.tree, {"torch_xla/csrc/xla_lower_util.h": "#pragma twice\n"})
    if staged:
        git(fake.tree, "add", "--all")
    assert_refused(fake, capsys, "has changes (torch_xla/csrc/xla_lower_util.h)")


def test_untracked_file(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    write(fake.tree, {"mine.txt": "mine\n"})
    assert_refused(fake, capsys, "has changes (mine.txt)")


def test_ignored_files_are_no_change(fake: FakeXla) -> None:
    (fake.tree / ".git" / "info" / "exclude").write_text("build/\n")
    write(fake.tree, {"build/out": "out\n"})
    assert run(fake) == 0


def test_unfinished_operation(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    (fake.tree / ".git" / "MERGE_HEAD").write_text(fake.release_commit + "\n")
    assert_refused(fake, capsys, "in the middle of another git operation")


def test_conflict(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    """The first patch fits, the second does not: not even the first stays."""
    patch = fake.patch(2)
    patch.write_text(patch.read_text().replace("-# 0", "-# another test"))
    assert_refused(fake, capsys, patch.name, "does not fit")


def test_git_am_fails(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    """Every patch fits, but a hook of the user's stops at the second."""
    hook = fake.tree / ".git" / "hooks" / "applypatch-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text('#!/bin/sh\n! grep -q "Test the target" "$1"\n')
    hook.chmod(0o755)
    assert_refused(fake, capsys, "git am failed", "is as it was")


def test_unreadable_series(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    (fake.series / "series").unlink()
    assert_refused(fake, capsys, "series is missing")
