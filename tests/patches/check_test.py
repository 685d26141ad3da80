"""check.py finds each thing that can be wrong with a series."""

from __future__ import annotations

from collections.abc import Callable

import check
import pytest
from fake_xla import AFTER, DEFAULT, MESSAGES, FakeXla, git

SOURCE = "torch_xla/csrc/"


def problems(
    fake: FakeXla, capsys: pytest.CaptureFixture[str], source: bool = False
) -> tuple[int, str]:
    arguments = ["--patches", str(fake.patches)] + ([str(fake.tree)] if source else [])
    status = check.main(arguments)
    return status, capsys.readouterr().err


def edit(fake: FakeXla, number: int, old: str, new: str) -> None:
    patch = fake.patch(number)
    text = patch.read_text()
    assert old in text
    patch.write_text(text.replace(old, new, 1))


def test_good_series(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(fake, capsys) == (0, "")
    assert problems(fake, capsys, source=True) == (0, "")


def test_source_is_not_changed(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    before = git(fake.tree, "rev-parse", "HEAD"), git(fake.tree, "for-each-ref")
    problems(fake, capsys, source=True)
    assert (git(fake.tree, "rev-parse", "HEAD"), git(fake.tree, "for-each-ref")) == before
    assert git(fake.tree, "status", "--porcelain") == ""


def remove_listed(fake: FakeXla) -> None:
    fake.patch(2).unlink()


def leave_unlisted(fake: FakeXla) -> None:
    (fake.series / "0003-more.patch").write_text(fake.patch(2).read_text())


def rename(fake: FakeXla) -> None:
    fake.patch(1).rename(fake.series / "1-name.patch")
    fake.write_list()


def name_another_release(fake: FakeXla) -> None:
    fake.series.rename(fake.patches / "torch_xla-3.2.1")


def remove_everything(fake: FakeXla) -> None:
    for path in fake.series.glob("*"):
        path.unlink()
    fake.series.rmdir()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (remove_listed, "names no patch or missing ones: 0002"),
        (leave_unlisted, "the folder has"),
        (rename, "does not begin with 000"),
        (name_another_release, "is not `# pytorch/xla TAG COMMIT`"),
        (remove_everything, "there is no folder torch_xla-"),
    ],
)
def test_folder(
    fake: FakeXla, capsys: pytest.CaptureFixture[str], spoil: Callable[[FakeXla], None], reason: str
) -> None:
    spoil(fake)
    status, errors = problems(fake, capsys)
    assert status == 1
    assert reason in errors


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Mon Sep 17 00:00:00 2001", "", "does not begin as `git format-patch`"),
        ("[PATCH 1/2]", "[PATCH 1/3]", "the subject has 1/3, not 1/2"),
        ("[PATCH 1/2]", "", "the subject is not `[PATCH n/m]"),
        ("Name the target", "Name the target" * 6, "longer than 72"),
        ("Name the target", "Name the target.", "ends with a full stop"),
        ("Date:", "Dated:", "From, Date or text is missing"),
        ("Test plan:", "Tests:", "no test plan"),
        ("- python test\n", "", "no test plan"),
        ("\nIt has one.\n", "", "both what was wrong and what changes"),
        ("It had no name.", "It had no name. " * 6, "more than 79 characters"),
        (" test/test_custom_call.py ", " test/another.py ", "diffstat and diff differ"),
        ("+# a test", "+# a test ", "whitespace error"),
        ("+# a test", "+\t# a test", "whitespace error"),
        ("\n---\n", "\n", "no `---` line"),
    ],
)
def test_form(
    fake: FakeXla, capsys: pytest.CaptureFixture[str], old: str, new: str, reason: str
) -> None:
    edit(fake, 1, old, new)
    status, errors = problems(fake, capsys)
    assert status == 1
    assert reason in errors
    assert fake.patch(1).name in errors


def test_patch_without_a_test(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        text = fake.patch(number).read_text()
        fake.patch(number).write_text(text.replace("test/test_custom_call.py", "doc/text.md"))
    status, errors = problems(fake, capsys)
    assert status == 1
    assert errors.count("it has no test") == 2


def test_python_of_the_wheel(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    text = fake.patch(2).read_text()
    fake.patch(2).write_text(text.replace("test/test_custom_call.py", "torch_xla/a/test_b.py"))
    assert "torch_xla/a/test_b.py, which the wheel's build does not" in problems(fake, capsys)[1]


def test_does_not_apply(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    edit(fake, 2, "-# 0", "-# another test")
    status, errors = problems(fake, capsys, source=True)
    assert status == 1
    assert f"{fake.patch(2)} does not apply" in errors


def test_applies_with_an_offset(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    text = fake.patch(1).read_text()
    begin = text.index("+++ b/torch_xla/csrc/xla_lower_util.cpp")
    hunk = text.index("@@ -", begin)
    line = int(text[hunk + 4 :].split(",")[0])
    fake.patch(1).write_text(
        text[:hunk]
        + text[hunk:].replace(f"-{line},", f"-{line - 3},").replace(f"+{line},", f"+{line - 3},", 1)
    )
    status, errors = problems(fake, capsys, source=True)
    assert status == 1
    assert "applies only with an offset" in errors


def test_unknown_commit(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    path = fake.series / "series"
    path.write_text(path.read_text().replace(fake.release_commit, "1" * 40))
    status, errors = problems(fake, capsys, source=True)
    assert status == 1
    assert "cannot be used for v1.2.3" in errors


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("xla_lower_util.cpp", "=*/target", f"=*/{DEFAULT}"),
        ("xla_lower_util.h", DEFAULT, '"my_kernel"'),
        ("ops/gpu_custom_call.cpp", "MHash(payload, target)", "MHash(payload)"),
        ("ops/gpu_custom_call.cpp", "(operands, payload_, target_)", "(operands, payload_)"),
        ("ops/gpu_custom_call.cpp", "(inputs, payload_, target_)", "(inputs, payload_)"),
        ("tensor_methods.cpp", "(inputs, payload, target)", "(inputs, payload)"),
        ("init_python_bindings.cpp", "(payload, target)", "(payload)"),
        ("init_python_bindings.cpp", "= kDefaultGpuCustomCallTarget", '= "x"'),
    ],
)
def test_target_gets_lost(
    fake: FakeXla, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str
) -> None:
    assert old in AFTER[SOURCE + name]
    fake.write_series(AFTER | {SOURCE + name: AFTER[SOURCE + name].replace(old, new)})
    assert problems(fake, capsys) == (0, "")
    status, errors = problems(fake, capsys, source=True)
    assert status == 1
    assert SOURCE + name in errors


def test_old_name_stands_elsewhere(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    fake.write_series(AFTER | {SOURCE + "other.cpp": f"auto* name = {DEFAULT};\n"})
    status, errors = problems(fake, capsys, source=True)
    assert status == 1
    assert "stands not only as the default" in errors


def test_old_name_may_stand_in_tests(fake: FakeXla, capsys: pytest.CaptureFixture[str]) -> None:
    fake.write_series(AFTER | {SOURCE + "other_test.cpp": f"auto* name = {DEFAULT};\n"})
    assert problems(fake, capsys, source=True) == (0, "")


def test_message_without_a_second_paragraph(
    fake: FakeXla, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.write_series(AFTER, ("Name the target\n\nTest plan:\n- none\n", MESSAGES[1]))
    assert "both what was wrong" in problems(fake, capsys)[1]
