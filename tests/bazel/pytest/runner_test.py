"""runner.py: Bazel's test protocol reaches pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import runner

TESTS = """
import os

def test_good():
    assert os.environ["HOME"].startswith(os.environ["TEST_TMPDIR"])

def test_bad():
    import helper
    assert helper.VALUE == 2
"""


def run(tmp_path: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    tests = tmp_path / "inner_test.py"
    tests.write_text(TESTS)
    helper = tmp_path / "packages" / "helper.py"
    helper.parent.mkdir()
    helper.write_text("VALUE = 1\n")
    environment = {
        "PATH": os.environ["PATH"],
        "TEST_TMPDIR": str(tmp_path / "tmp"),
        "XML_OUTPUT_FILE": str(tmp_path / "out.xml"),
        **variables,
    }
    command = [sys.executable, runner.__file__, f"--path={helper.parent}", "--", str(tests)]
    return subprocess.run(
        [*command, *options], env=environment, cwd=tmp_path, capture_output=True, text=True
    )


def cases(tmp_path: Path) -> dict[str, bool]:
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    return {case.get("name"): case.find("failure") is None for case in root.iter("testcase")}


def test_all_cases_run_and_are_in_the_xml(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert cases(tmp_path) == {"test_good": True, "test_bad": False}
    assert "assert 1 == 2" in result.stdout


def test_filter(tmp_path: Path) -> None:
    result = run(tmp_path, TESTBRIDGE_TEST_ONLY="good")
    assert result.returncode == 0, result.stdout + result.stderr
    assert cases(tmp_path) == {"test_good": True}


def test_a_filter_that_matches_nothing_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, TESTBRIDGE_TEST_ONLY="nothing").returncode == 5


def test_arguments_reach_pytest(tmp_path: Path) -> None:
    result = run(tmp_path, "--deselect=inner_test.py::test_bad")
    assert result.returncode == 0, result.stdout + result.stderr
