"""runner.py: Bazel's test protocol reaches pytest."""

import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import runner
from testing import scripts

TESTS = """
import os

def test_good():
    assert os.environ["HOME"].startswith(os.environ["TEST_TMPDIR"])
    assert os.environ["OMP_NUM_THREADS"] == "1"

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


def test_the_filter_selects_tests(tmp_path: Path) -> None:
    result = run(tmp_path, TESTBRIDGE_TEST_ONLY="good")
    assert result.returncode == 0, result.stdout + result.stderr
    assert cases(tmp_path) == {"test_good": True}


def test_a_filter_that_matches_nothing_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, TESTBRIDGE_TEST_ONLY="nothing").returncode == 5


def test_hypothesis_is_left_out_if_unused(tmp_path: Path) -> None:
    (tmp_path / "plain_test.py").write_text("def test_plain(): pass")
    (tmp_path / "drawn_test.py").write_text("from hypothesis import given")
    plain, drawn = str(tmp_path / "plain_test.py"), str(tmp_path / "drawn_test.py")
    assert runner.plugins([plain, "--exitfirst"]) == ["-p", "no:hypothesispytest"]
    assert runner.plugins([plain, drawn]) == []


def test_arguments_reach_pytest(tmp_path: Path) -> None:
    result = run(tmp_path, "--deselect=inner_test.py::test_bad")
    assert result.returncode == 0, result.stdout + result.stderr


SECOND = """
import os, sys
import helper

def test_it_is_imported_already():
    assert helper.IMPORTED_BY != os.getpid()

def test_a_process_of_its_own():
    assert helper.VALUE == 1
    helper.VALUE = 3
"""
DEAD = "import os, signal\n\ndef test_dead():\n    os.kill(os.getpid(), signal.SIGKILL)\n"


def run_forked(tmp_path: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs test files that are forked, such as SECOND, each in a separate process."""
    (tmp_path / "second_test.py").write_text(SECOND)
    (tmp_path / "third_test.py").write_text(SECOND)
    (tmp_path / "dead_test.py").write_text(DEAD)
    (tmp_path / "packages").mkdir()
    helper = "import os\nVALUE = 1\nIMPORTED_BY = os.getpid()\n"
    (tmp_path / "packages/helper.py").write_text(helper)
    environment = {
        "PATH": os.environ["PATH"],
        "TEST_TMPDIR": str(tmp_path / "tmp"),
        "XML_OUTPUT_FILE": str(tmp_path / "out.xml"),
        **variables,
    }
    options = [f"--path={tmp_path / 'packages'}", "--preload=helper", "--", *more]
    return subprocess.run(
        [sys.executable, runner.__file__, *options],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def test_forked_files_share_only_imports(tmp_path: Path) -> None:
    result = run_forked(tmp_path, "second_test.py", "third_test.py")
    assert result.returncode == 0, result.stdout + result.stderr
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert [(case.get("classname"), case.get("name")) for case in root.iter("testcase")] == [
        ("second_test", "test_it_is_imported_already"),
        ("second_test", "test_a_process_of_its_own"),
        ("third_test", "test_it_is_imported_already"),
        ("third_test", "test_a_process_of_its_own"),
    ]


def test_a_forked_process_that_dies(tmp_path: Path) -> None:
    result = run_forked(tmp_path, "dead_test.py", "third_test.py")
    assert result.returncode == 128 + signal.SIGKILL, result.stdout + result.stderr
    assert "dead_test.py: the process ended by signal 9" in result.stdout
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    cases = {case.get("name"): case.find("error") is None for case in root.iter("testcase")}
    assert cases == {
        "the whole file": False,
        "test_it_is_imported_already": True,
        "test_a_process_of_its_own": True,
    }


def test_a_filter_may_leave_out_forked_files(tmp_path: Path) -> None:
    only = {"TESTBRIDGE_TEST_ONLY": "third_test"}
    result = run_forked(tmp_path, "second_test.py", "third_test.py", **only)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(cases(tmp_path)) == 2
    nothing = {"TESTBRIDGE_TEST_ONLY": "nothing"}
    shutil.rmtree(tmp_path / "packages")
    assert run_forked(tmp_path, "second_test.py", **nothing).returncode == 5


def test_the_first_failure_of_forked_files_ends_the_run(tmp_path: Path) -> None:
    first = {"TESTBRIDGE_TEST_RUNNER_FAIL_FAST": "1"}
    result = run_forked(tmp_path, "dead_test.py", "third_test.py", **first)
    assert result.returncode == 128 + signal.SIGKILL
    assert "third_test.py" not in result.stdout


ENDS = """
import atexit, threading, time
from pathlib import Path

class Part:
    def __del__(self, print=print):
        print("taken apart", flush=True)

part = Part()

def test_it():
    atexit.register(print, "at exit")
    threading.Thread(target=lambda: time.sleep(0.2) or print("a thread", flush=True)).start()
"""


def test_the_last_forked_file_takes_its_process_apart(tmp_path: Path) -> None:
    """The processes of other files only join threads and run functions of atexit."""
    (tmp_path / "first_test.py").write_text(ENDS)
    (tmp_path / "last_test.py").write_text(ENDS)
    result = run_forked(tmp_path, "first_test.py", "last_test.py")
    assert result.returncode == 0, result.stdout + result.stderr
    first, last = result.stdout.split("=== last_test.py\n")
    for printed in (first, last):
        assert printed.index("a thread") < printed.index("at exit")
    assert ("taken apart" in first, "taken apart" in last) == (False, True)


SCRIPTS = """
import subprocess
import pytest
from testing.scripts import run_script, start_script

def test_a_script():
    done = run_script(
        "import helper, os, sys\\n"
        "print(helper.IMPORTED_BY == os.getpid(), os.environ['ASKED'], sys.argv, __name__)\\n"
        "print('to standard error', file=sys.stderr)\\n"
        "sys.exit(3)",
        ASKED="yes",
    )
    assert done.stdout == "FRESH yes ['-c'] __main__\\n"
    assert done.stderr == "to standard error\\n"
    assert done.returncode == 3

def test_ends():
    assert run_script("raise ValueError('as asked')").stderr.endswith("ValueError: as asked\\n")
    assert run_script("assert False").returncode == 1
    assert run_script("import os; os.kill(os.getpid(), 15)").returncode == -15

def test_a_script_that_takes_too_long():
    with pytest.raises(subprocess.TimeoutExpired):
        run_script("import time; time.sleep(300)", timeout=0.5)
    assert run_script("print(1)").stdout == "1\\n"

def test_several_at_a_time(tmp_path):
    for end in ("kill", "terminate", "a file"):
        wait = f"import os, time\\nfile = {str(tmp_path / end)!r}\\n"
        wait += "while not os.path.exists(file): time.sleep(0.01)"
        with (tmp_path / "out").open("w") as out:
            script = start_script("print('begun', flush=True)\\n" + wait, out, out)
        assert run_script("print(1)").stdout == "1\\n"
        assert script.poll() is None
        if end == "a file":
            (tmp_path / end).touch()
        else:
            getattr(script, end)()
        assert script.wait(60) == script.poll() == {"kill": -9, "terminate": -15, "a file": 0}[end]
        assert (tmp_path / "out").read_text() in ("begun\\n", "")
"""


@pytest.mark.parametrize("preload", [True, False])
def test_scripts_run_in_forked_processes(tmp_path: Path, preload: bool) -> None:
    (tmp_path / "scripts_test.py").write_text(SCRIPTS.replace("FRESH", str(not preload)))
    (tmp_path / "helper.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    options = [f"--path={tmp_path}", f"--path={Path(scripts.__file__).parents[1]}"]
    options += ["--preload=helper"] * preload
    result = subprocess.run(
        [sys.executable, runner.__file__, *options, "--", "scripts_test.py"],
        env={"PATH": os.environ["PATH"], "TEST_TMPDIR": str(tmp_path / "tmp")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout
