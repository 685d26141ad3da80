"""Runs each test file in a process of its own, forked from one that has imported what all need.

forked.py [--preload=MODULE ...] -- [PYTEST OPTION ...] FILE.py...

Importing torch and torch_xla takes longer than most test files. A forked process has them already,
and shares nothing else with the other files: no device, registration, metric or compiled program.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

NOTHING_RAN = int(pytest.ExitCode.NO_TESTS_COLLECTED)


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Returns the options, and the files."""
    files = [each for each in arguments if each.endswith("_test.py") and not each.startswith("-")]
    return [each for each in arguments if each not in files], files


def own_paths(options: list[str], number: int) -> list[str]:
    """Gives a file's process a folder and an XML file of its own."""
    for name in ("--basetemp=", "--junitxml="):
        options = [f"{each}.{number}" if each.startswith(name) else each for each in options]
    return options


def run(file: str, options: list[str]) -> int:
    """Runs pytest in a forked process, and returns its exit status, 128 + n for a signal n."""
    start = time.monotonic()
    print(f"=== {file}", flush=True)
    sys.stderr.flush()
    child = os.fork()
    if not child:
        # Not os._exit: what the modules do when a process ends belongs to the test.
        sys.exit(pytest.main([*options, file]))
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    end = f"exit status {code}" if code >= 0 else f"the process ended by signal {-code}"
    seconds = time.monotonic() - start, used.ru_utime + used.ru_stime
    print("=== {}: {}, {:.1f} s, processor time {:.1f} s".format(file, end, *seconds), flush=True)
    return code if code >= 0 else 128 - code


def merge(xml: Path, files: list[str]) -> None:
    """Writes all suites into one XML file, with a failed case for a process that died."""
    root = ElementTree.Element("testsuites")
    for number, file in enumerate(files):
        part = xml.with_name(f"{xml.name}.{number}")
        if part.exists():
            root.extend(ElementTree.parse(part).getroot().iter("testsuite"))
            part.unlink()
        else:
            suite = ElementTree.SubElement(root, "testsuite", name=file, tests="1", errors="1")
            case = ElementTree.SubElement(suite, "testcase", classname=file, name="the whole file")
            ElementTree.SubElement(case, "error", message="the process ended before pytest did")
    ElementTree.ElementTree(root).write(xml, encoding="utf-8", xml_declaration=True)


def status(codes: list[int]) -> int:
    """The first failure's; NOTHING_RAN if no file had a test, as with a filter."""
    failed = [code for code in codes if code not in (0, NOTHING_RAN)]
    return failed[0] if failed else min(codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preload", action="append", default=[], help="module to import once")
    parser.add_argument("arguments", nargs="+", help="for pytest")
    args = parser.parse_args()
    for module in args.preload:
        importlib.import_module(module)
    options, files = split(args.arguments)
    codes: list[int] = []
    for number, file in enumerate(files):
        codes.append(run(file, own_paths(options, number)))
        if "--exitfirst" in options and codes[-1] not in (0, NOTHING_RAN):
            break
    for option in options:
        if option.startswith("--junitxml="):
            merge(Path(option.partition("=")[2]), files[: len(codes)])
    sys.exit(status(codes))


if __name__ == "__main__":
    main()
