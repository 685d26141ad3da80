"""count.py: CI's last line counts the tests that passed, failed and were skipped."""

import json
import subprocess
import sys
from pathlib import Path

import count
import pytest

CASES = {
    "passed": "<testcase/>",
    "failed": "<testcase><failure/></testcase>",
    "error": "<testcase><error/></testcase>",
    "skipped": "<testcase><skipped/></testcase>",
}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events.json"


def result(tmp_path: Path, status: str, *cases: str) -> dict:
    """Returns the event of a test whose test.xml has `cases`; without any, it has no test.xml."""
    outputs = [{"name": "test.log", "uri": "file:///nowhere"}]
    if cases:
        xml = tmp_path / f"a b{len(list(tmp_path.iterdir()))}.xml"
        inner = "".join(CASES[case] for case in cases)
        xml.write_text(f"<testsuites><testsuite>{inner}</testsuite></testsuites>")
        outputs.append({"name": "test.xml", "uri": xml.as_uri()})
    return {
        "id": {"testResult": {"label": "//a"}},
        "testResult": {"status": status, "testActionOutput": outputs},
    }


def write(path: Path, *items: dict) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_adds_up_all_tests(events: Path, tmp_path: Path) -> None:
    write(
        events,
        {"id": {"started": {}}},
        {"id": {"targetCompleted": {"label": "//a"}}, "completed": {"success": True}},
        result(tmp_path, "PASSED", "passed", "passed", "skipped"),
        result(tmp_path, "FAILED", "passed", "failed", "error"),
    )
    command = [sys.executable, count.__file__, events]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert out == "3 passed, 2 failed, 1 skipped\n"


@pytest.mark.parametrize("cases", [(), ("passed",)], ids=["no xml", "no failing case"])
def test_a_test_that_crashed_is_one_failure(
    events: Path, tmp_path: Path, cases: tuple[str, ...]
) -> None:
    write(events, result(tmp_path, "TIMEOUT", *cases))
    assert count.count(events)["failed"] == 1


def test_a_target_that_was_not_built_is_one_failure(events: Path) -> None:
    write(
        events,
        {"id": {"targetCompleted": {"label": "//a"}}, "completed": {}},
        {"id": {"targetCompleted": {"label": "//b"}}, "aborted": {"reason": "ANALYSIS_FAILURE"}},
    )
    assert count.count(events)["failed"] == 2
