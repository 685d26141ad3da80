"""Run each test file in its own process, forked from one with the common imports.

forked.py [--preload=MODULE ...] -- [PYTEST OPTION ...] FILE.py...

1. Importing torch and torch_xla takes longer than most test files. This process imports them once,
   and uses no device: a fork of a process with a device would not work.
2. For each file it forks, and the fork runs `pytest.main` on that file only. Files share no device,
   registration, metric or compiled program.
3. Variables that are read when the first device is made, such as CPU_NUM_DEVICES, may still be set
   by the file itself.
4. A file may start further processes in this way: the variable SCRIPT_SERVER has the number of a
   socket that accepts scripts to run (answer(), below; tests/testing/scripts.py sends them).
5. A fork exits without destroying modules and C++ objects, which would take half a second. Only the
   last file's process exits normally.
6. The exit status is that of the first file that failed; a process killed by signal n has 128 + n.
"""

import argparse
import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import re
import select
import socket
import sys
import threading
import time
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

NOTHING_RAN = int(pytest.ExitCode.NO_TESTS_COLLECTED)


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options, and the files or tests (file_test.py::test)."""
    files = [each for each in arguments if re.search(r"^[^-].*_test\.py($|::)", each)]
    return [each for each in arguments if each not in files], files


def own_paths(options: list[str], number: int) -> list[str]:
    """Return the options with a separate folder and XML file for a file's process."""
    for name in ("--basetemp=", "--junitxml="):
        options = [f"{each}.{number}" if each.startswith(name) else each for each in options]
    return options


def run_script(code: str, environment: dict[str, str]) -> None:
    """Run a script as `python -P -c` does, except for existing imports. Does not return."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = builtins
    exec(compile(code, "<string>", "exec"), vars(main))
    sys.exit()


def answer(asked: socket.socket) -> bool:
    """Start one script; return False if the requesting process has ended.

    A request is JSON, the arguments of run_script, with three files: standard output, standard
    error, and a socket for the answers. The answers are the process's ID and, when it has ended,
    its exit status or -signal.
    """
    request, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    if request and not os.fork():  # a process that answers, so that many scripts can run
        asked.close()
        *outputs, answers = files
        script = os.fork()
        if not script:
            os.close(answers)
            for number, file in enumerate(outputs, start=1):
                os.dup2(file, number)
                os.close(file)
            run_script(**json.loads(request))
        answering = socket.socket(fileno=answers)
        with contextlib.suppress(ConnectionError):
            answering.send(b"%d" % script)
        _, status = os.waitpid(script, 0)
        with contextlib.suppress(ConnectionError):
            answering.send(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    for file in files:
        os.close(file)
    return bool(request)


def finish(status: int) -> None:
    """End the process without destroying modules or C++ objects."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(file: str, options: list[str], is_last: bool) -> int:
    """Run pytest in a forked process, and return its exit status, 128 + n for a signal n."""
    start = time.monotonic()
    print(f"=== {file}", flush=True)
    sys.stderr.flush()
    asked, asks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if not child:
        asked.close()
        os.environ["SCRIPT_SERVER"] = str(asks.fileno())
        status = pytest.main([*options, file])
        if is_last:  # The exit handlers of modules are part of the tests.
            sys.exit(status)
        finish(status)  # That would take half a second for each file.
    asks.close()
    ended, asking = 0, True
    while not ended:
        if asking and select.select([asked], [], [], 0.5)[0]:
            asking = answer(asked)
        else:  # a process that the child left behind may keep its end of the socket open
            ended, status, used = os.wait4(child, os.WNOHANG if asking else 0)
    asked.close()
    seconds = used.ru_utime + used.ru_stime
    with contextlib.suppress(ChildProcessError):
        while True:
            _, _, used = os.wait4(-1, 0)  # together with the script that it waited for
            seconds += used.ru_utime + used.ru_stime
    code = os.waitstatus_to_exitcode(status)
    end = f"exit status {code}" if code >= 0 else f"the process ended by signal {-code}"
    print(
        f"=== {file}: {end}, {time.monotonic() - start:.1f} s, processor time {seconds:.1f} s",
        flush=True,
    )
    return code if code >= 0 else 128 - code


def merge(xml: Path, files: list[str]) -> None:
    """Write all suites into one XML file, with a failed case for each process that crashed."""
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
    """Return the status of the first failure; NOTHING_RAN if a filter left no test."""
    failed = [code for code in codes if code not in (0, NOTHING_RAN)]
    return failed[0] if failed else min(codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preload", action="append", default=[], help="module to import once")
    parser.add_argument("arguments", nargs="+", help="for pytest")
    args = parser.parse_args()
    # Imported modules stay alive. Collecting garbage among them would take half a second here, and
    # 0.6 s at the end of each process.
    gc.disable()
    for module in args.preload:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    options, files = split(args.arguments)
    codes: list[int] = []
    for number, file in enumerate(files):
        codes.append(run(file, own_paths(options, number), is_last=file == files[-1]))
        if {"--exitfirst", "-x"} & {*options} and codes[-1] not in (0, NOTHING_RAN):
            break
    failed = [
        file
        for file, code in zip(files[: len(codes)], codes, strict=True)
        if code not in (0, NOTHING_RAN)
    ]
    print(f"=== {len(failed)} of {len(codes)} files failed", *failed, sep="\n    ")
    for option in options:
        if option.startswith("--junitxml="):
            merge(Path(option.partition("=")[2]), files[: len(codes)])
    sys.exit(status(codes))


if __name__ == "__main__":
    main()
