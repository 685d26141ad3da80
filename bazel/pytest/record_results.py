"""A pytest plugin: writes a line of JSON as each test begins and as it ends (see gpu_suite.py).

RECORD_RESULTS is the file that it appends to, RECORD_FILE the test file's name in the lines, and
RECORD_DONE names a file with the tests to skip, one on each line.
"""

import json
import os
import time
from pathlib import Path

import pytest

MESSAGE = 4000  # characters
IMPORT = "(import)"  # stands for a test's name


def append(path: str, line: dict[str, object]) -> None:
    """Append in one write, so that lines of several processes do not mix."""
    with open(path, "ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def record(**line: object) -> None:
    header = {"file": os.environ["RECORD_FILE"], "time": time.time()}
    append(os.environ["RECORD_RESULTS"], header | line)


def name_in_file(nodeid: str) -> str:
    """Return `Class::test[parameters]` of pytest's name, which begins with the file."""
    return nodeid.partition("::")[2]


class Outcome:
    """The running test's result so far: setup, call and teardown are reported separately."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.outcome = "passed"
        self.message = ""

    def add(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if report.failed:
            self.outcome = "failed"
            self.message += f"[{report.when}]\n{report.longreprtext}\n"
        elif report.skipped and self.outcome == "passed":
            self.outcome = "skipped"
            reason = report.longrepr
            self.message = str(reason[2] if isinstance(reason, tuple) else reason)


running = Outcome()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = set(Path(os.environ["RECORD_DONE"]).read_text().splitlines())
    left = [item for item in items if name_in_file(item.nodeid) not in done]
    if left != items:
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        record(test=IMPORT, outcome="failed", message=report.longreprtext[-MESSAGE:])
    elif report.skipped:
        reason = report.longrepr
        text = str(reason[2] if isinstance(reason, tuple) else reason)
        record(test=IMPORT, outcome="skipped", message=text[-MESSAGE:])


def pytest_runtest_logstart(nodeid: str) -> None:
    global running
    running = Outcome()
    record(test=name_in_file(nodeid), outcome="begun")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    running.add(report)
    if report.when == "teardown":
        record(
            test=name_in_file(report.nodeid),
            outcome=running.outcome,
            seconds=round(running.seconds, 2),
            message=running.message[-MESSAGE:],
        )
