"""Run the test suite on a GPU machine: pack its files, run for some minutes at a time, report.

    python bazel/pytest/gpu_suite.py pack suite.tar.gz --wheel torch_xla-….whl
    python bazel/pytest/gpu_suite.py run --minutes 25 --results 1.jsonl [--done 0.jsonl] [TEST …]
    python bazel/pytest/gpu_suite.py report 0.jsonl 1.jsonl

pack    Here: builds the libraries that tests load, and writes them with the checkout's files, and a
wheel if one is named, into an archive. Unpack it on the machine, and install the wheel. run
There, in the unpacked folder, with a Python that has the wheel and pytest: runs test files, each in
a process of its own, one on each GPU at a time. A file that needs several devices runs on as many
GPUs. Each test's result is written as a line of JSON as soon as it ends. The run stops when the
minutes are over; `--done` with the results so far continues it. report Anywhere with the checkout:
merges results into one text; a test's latest result counts.

Only Python's library and pytest are used. With PJRT_DEVICE=CPU, `run` runs on the CPU.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record_results
import runner

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = ROOT / "tests/gpu/explained.toml"
LIBRARIES = "test_binaries"  # the archive's folder of compiled libraries
# Folders of modules that tests import.
IMPORTS = ("tests", "bazel/pytest", "examples/smollm2", "examples/vllm", "tests/integrations/vllm")
# The GPUs that a file needs, if it does not set CPU_NUM_DEVICES itself.
DEVICES = {
    "tests/gpu/several_gpus_test.py": 2,
    "tests/integrations/vllm/processes_test.py": 2,
    "tests/integrations/vllm/server_test.py": 2,
    "tests/integrations/vllm/tensor_parallel_test.py": 4,
}
FINAL = ("passed", "failed", "skipped")
# Stands for a test's name if something fails outside of tests.
IMPORT, END = record_results.IMPORT, "(end of the process)"


# Test files and their requirements.


def read_explained(path: Path) -> dict[str, Any]:
    """Read tests/gpu/explained.toml: the files to leave out, and failures with known causes."""
    return tomllib.loads(path.read_text()) if path.exists() else {}


def test_files(patterns: Iterable[str] = ()) -> list[str]:
    """Return the files that `patterns` name, and those for a GPU in folders; by default in all."""
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("kernels", "tests")
        for path in sorted((ROOT / folder).rglob("*_test.py"))
    ]
    wanted = [pattern.rstrip("/") for pattern in patterns] or ["kernels", "tests"]
    left_out = read_explained(EXPLAINED).get("not_on_a_gpu", ())

    def is_wanted(file: str) -> bool:
        is_left_out = any(fnmatch.fnmatch(file, each) for each in left_out)
        in_folder = any(file.startswith(each + "/") for each in wanted)
        return file in wanted or (in_folder and not is_left_out)

    return list(filter(is_wanted, found))


def devices_of(file: str) -> int:
    """Return the number of GPUs that a file needs: as many as CPU devices in CI."""
    text = (ROOT / file).read_text()
    numbers = re.findall(r"^os\.environ.*CPU_NUM_DEVICES\D+(\d+)", text, re.MULTILINE)
    return max(map(int, numbers), default=DEVICES.get(file, 1))


def library_targets() -> dict[str, list[str]]:
    """Return the labels of the libraries that tests load, by variable (bazel/test_binaries.bzl)."""
    text = (ROOT / "bazel/test_binaries.bzl").read_text()
    table = ast.literal_eval(re.search(r"^TEST_BINARIES = (\{.*?^\})", text, re.M | re.S)[1])
    return {"GPU_KERNELS": ["//tests/gpu:libgpu_kernels.so"], **table}


def library_variables(folder: Path) -> dict[str, str]:
    """Return the variables of the libraries that are in `folder`."""
    variables = {}
    for variable, labels in library_targets().items():
        files = [folder / label.rpartition(":")[2] for label in labels]
        if all(file.exists() for file in files):
            variables[variable] = " ".join(map(str, files))
    return variables


# pack


def pack(archive: Path, wheel: Path | None, build: bool) -> None:
    labels = [label for each in library_targets().values() for label in each]
    libraries = [label for label in labels if ".so" in label]
    if build:
        subprocess.run([ROOT / "bazelw", "build", *libraries], cwd=ROOT, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for name in listed:
            if (ROOT / name).is_file():
                tar.add(ROOT / name, name)
        for label in libraries:
            built = ROOT / "bazel-bin" / label.removeprefix("//").replace(":", "/")
            if built.exists():
                tar.add(built.resolve(), f"{LIBRARIES}/{built.name}")
            else:
                print(f"not built, its tests will be skipped or fail: {label}")
        if wheel:
            tar.add(wheel, wheel.name)
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")


# Results: lines of record_results.py, and one for the end of each file.


@dataclass
class Results:
    """The results of tests and of test files, read from logs with one result on each line."""

    tests: dict[tuple[str, str], dict] = field(default_factory=dict)
    ended: dict[str, dict] = field(default_factory=dict)  # files with no tests left to run

    @staticmethod
    def read(paths: Iterable[Path]) -> Results:
        results = Results()
        lines = []
        for path in paths:
            for text in path.read_text().splitlines():
                try:
                    lines.append(json.loads(text))
                except ValueError:  # the machine went away during the write
                    continue
        for line in sorted(lines, key=lambda line: line["time"]):
            if "ended" in line:
                results.ended[line["file"]] = line
                results.forget(line)
            elif line["outcome"] in FINAL:
                results.tests[line["file"], line["test"]] = line
        return results

    def forget(self, end: dict) -> None:
        """Drop the results of an earlier process of a file that ran again."""
        for where in (IMPORT, END):
            line = self.tests.get((end["file"], where))
            if line and line["time"] < end["time"] - end["seconds"]:
                del self.tests[end["file"], where]

    def done(self, file: str, without: Iterable[str] = ()) -> list[str]:
        return [
            test
            for (its_file, test), line in self.tests.items()
            if its_file == file and line["outcome"] not in without
        ]


# run


@dataclass
class Machine:
    """The GPUs that are free at the moment."""

    free: list[str]
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, number: int, until: float) -> list[str] | None:
        with self.changed:
            while len(different := [*dict.fromkeys(self.free)]) < number:
                if not self.changed.wait(max(0.0, until - time.time())):
                    return None
            for device in different[:number]:
                self.free.remove(device)
            return different[:number]

    def give(self, devices: list[str]) -> None:
        with self.changed:
            self.free += devices
            self.changed.notify_all()


def find_devices() -> list[str]:
    """Return the indices of the visible GPUs; on the CPU, of one device."""
    if os.environ["PJRT_DEVICE"] != "CUDA":
        return ["0"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return [str(i) for i, _ in enumerate(listed.stdout.splitlines())]


@dataclass
class Runner:
    """Runs test files one after the other, each on its GPUs."""

    results: Path
    until: float
    test_seconds: float
    environment: dict[str, str]
    logs: Path

    def run_file(self, file: str, done: list[str], devices: list[str]) -> str | None:
        """Run the remaining tests of a file; return its summary, or None if time is up.

        A test that crashes the process, or takes too long, fails; the others run without it.
        """
        start, done = time.time(), list(done)
        while True:
            status, lines = self.start(file, done, devices)
            if status is None:
                return None
            ran = {line["test"]: line["outcome"] for line in lines}
            cut = [test for test, outcome in ran.items() if outcome == "begun"]
            if not cut:
                break
            self.record(file, test=cut[-1], outcome="failed", message=describe(status))
            done += [*ran]
        if status not in (0, 1, 5) and "failed" not in ran.values():
            where = END if ran else IMPORT
            self.record(file, test=where, outcome="failed", message=describe(status))
        seconds = round(time.time() - start, 2)
        self.record(file, ended=status, seconds=seconds)
        log = (self.logs / (file.replace("/", ".") + ".log")).read_text().strip()
        return f"{log.splitlines()[-1] if log else describe(status)} [{seconds:.0f} s]"

    def record(self, file: str, **line: object) -> None:
        record_results.append(str(self.results), {"file": file, "time": time.time(), **line})

    def start(self, file: str, done: list[str], devices: list[str]) -> tuple[int | None, list]:
        """Run pytest; return its status (None if time is up), and the lines that it wrote."""
        with tempfile.TemporaryDirectory(prefix="suite-") as tmp:
            folder = Path(tmp)
            (folder / "done").write_text("\n".join(done))
            lines = folder / "lines"
            lines.touch()
            variables = {
                **self.environment,
                "RECORD_RESULTS": str(lines),
                "RECORD_FILE": file,
                "RECORD_DONE": str(folder / "done"),
            }
            if variables["PJRT_DEVICE"] == "CUDA":
                variables["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
            command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command += [*runner.plugins([str(ROOT / file)]), "-p", "record_results"]
            command += [f"--basetemp={folder / 'pytest'}", file]
            with open(self.logs / (file.replace("/", ".") + ".log"), "ab") as log:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=variables,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                status = self.wait(process, lines)
            text = lines.read_text().splitlines(keepends=True)
            own = [json.loads(line) for line in text if line.endswith("\n")]
            with open(self.results, "ab", buffering=0) as results:
                results.write("".join(text).encode())
            return status, own

    def wait(self, process: subprocess.Popen, lines: Path) -> int | None:
        """Wait for pytest, end it with all its children, and return its status."""
        size, since = 0, time.time()
        over = late = False
        while process.poll() is None and not (over or late):
            time.sleep(0.05)
            now = time.time()
            if (written := lines.stat().st_size) != size:
                size, since = written, now
            over, late = now > self.until, now - since > self.test_seconds
        kill_group(process)
        status = process.wait()
        if over:
            return None
        return LATE if late else status


LATE = -1000  # stands for a signal: the time limit


def kill_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def describe(status: int) -> str:
    if status == LATE:
        return "no result within the time limit of one test (--test-seconds)"
    if status < 0:
        return f"the process ended by signal {-status} ({signal.Signals(-status).name})"
    return f"pytest ended with exit status {status}"


def order(files: list[str], results: Results) -> list[str]:
    """Sort files: those for several GPUs first, then by time, or by size if the time is unknown."""

    def weight(file: str) -> tuple[int, float]:
        known = results.ended.get(file, {}).get("seconds")
        return devices_of(file), known or (ROOT / file).stat().st_size / 500

    return sorted(files, key=weight, reverse=True)


def run(options: argparse.Namespace) -> int:
    until = time.time() + options.minutes * 60
    os.environ.setdefault("PJRT_DEVICE", "CUDA")
    before = Results.read([*options.done, *([options.results] if options.results.exists() else [])])
    again = ("failed",) if options.again_failed else ()
    devices = options.gpus.split(",") if options.gpus else find_devices()
    slots = [device for _ in range(options.per_gpu) for device in devices]
    files = test_files(options.tests)
    retried = {file for (file, _), line in before.tests.items() if line["outcome"] in again}
    left = [file for file in files if file not in before.ended or file in retried]
    too_large = [file for file in left if devices_of(file) > len(devices)]
    if os.environ["PJRT_DEVICE"] == "CUDA":
        left = [file for file in left if file not in too_large]
        for file in too_large:
            print(f"not here, it needs {devices_of(file)} GPUs: {file}")
    logs = options.results.with_suffix(".logs")
    logs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gpu-suite-"))
    environment = {**runner.DEFAULTS, **os.environ}
    if environment["PJRT_DEVICE"] == "CUDA":
        del environment["XLA_FLAGS"]  # the defaults are for XLA:CPU's compiler
        environment |= {k: os.environ[k] for k in ("XLA_FLAGS",) if k in os.environ}
        if options.per_gpu > 1:
            environment["PJRT_ALLOCATOR_FRACTION"] = str(round(0.9 / options.per_gpu, 3))
    own = runner.environment([str(ROOT / path) for path in IMPORTS], folder)
    if paths := os.environ.get("PYTHONPATH"):
        own["PYTHONPATH"] = paths + os.pathsep + own["PYTHONPATH"]
    environment |= own | library_variables(options.libraries)
    machine = Machine(slots)
    each = Runner(options.results, until, options.test_seconds, environment, logs)
    print(f"{len(left)} of {len(files)} files, on {len(devices)} device(s), {len(slots)} at a time")
    stopped = threading.Event()
    queue = order(left, before)
    lock = threading.Lock()
    counts = Counter()

    def work() -> None:
        while True:
            with lock:
                if not queue or stopped.is_set():
                    return
                file = queue.pop(0)
            needed = devices_of(file) if environment["PJRT_DEVICE"] == "CUDA" else 1
            taken = machine.take(needed, until)
            if taken is None:
                return
            try:
                summary = each.run_file(file, before.done(file, again), taken)
            finally:
                machine.give(taken)
            if summary is None:
                stopped.set()
                return
            counts["files"] += 1
            print(f"{file}: {summary}", flush=True)

    threads = [threading.Thread(target=work) for _ in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rest = len(left) - counts["files"]
    print(f"{counts['files']} files ran to their end, {rest} are left: run again with --done")
    return 0 if not rest else 3


# report


def explanation(name: str, message: str, failures: dict[str, dict]) -> str | None:
    for reason, texts in failures.items():
        for pattern, contained in texts.items():
            expression = re.escape(pattern).replace(r"\*", ".*")
            parts = [contained] if isinstance(contained, str) else contained
            if re.fullmatch(expression, name) and any(part in message for part in parts):
                return reason
    return None


def last_line(message: str) -> str:
    """Return the line of pytest's text that states the error."""
    errors = [line[1:].strip() for line in message.splitlines() if re.match(r"E\s+\S", line)]
    lines = errors[:1] or [line for line in message.splitlines() if line.strip()][-1:]
    return lines[0][:200] if lines else ""


def report(paths: list[Path], explained: Path) -> tuple[str, bool]:
    """Return the merged report, in Markdown, and whether each failure is explained."""
    results = Results.read(paths)
    known = read_explained(explained).get("failures", {})
    counts = Counter(line["outcome"] for line in results.tests.values())
    failed: dict[str | None, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (file, test), line in sorted(results.tests.items()):
        if line["outcome"] == "failed":
            name, message = f"{file}::{test}", line.get("message", "")
            failed[explanation(name, message, known)][file].append(
                f"- `{test}`: {last_line(message)}"
            )
    files = {file for file, _ in results.tests} | set(results.ended)
    missing = [file for file in test_files() if file not in results.ended]
    unexplained = sum(map(len, failed.get(None, {}).values()))
    text = [
        f"{len(files)} files: {counts['passed']} tests passed, {counts['failed']} failed "
        f"({unexplained} without an explanation), {counts['skipped']} were skipped.",
        f"{len(missing)} files were not run to their end.",
    ]
    for reason, by_file in sorted(failed.items(), key=lambda item: item[0] or ""):
        text += ["", f"## {reason or 'Failures without an explanation'}"]
        for file, lines in by_file.items():
            text += ["", f"{file}: {len(lines)}", *lines]
    skipped: dict[str, Counter] = defaultdict(Counter)
    for (file, _), line in results.tests.items():
        if line["outcome"] == "skipped":
            skipped[last_line(line.get("message", ""))][file] += 1
    if skipped:
        text += ["", "## Skipped"]
        for reason, by_file in sorted(skipped.items()):
            where = ", ".join(f"{file} ({n})" for file, n in sorted(by_file.items()))
            text.append(f"- {reason}: {where}")
    if missing:
        text += ["", "## Not run to their end", *(f"- {file}" for file in missing)]
    return "\n".join(text) + "\n", not unexplained and not missing


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write the archive for a GPU machine")
    packing.add_argument("archive", type=Path)
    packing.add_argument("--wheel", type=Path, help="a wheel to put into it")
    packing.add_argument("--no-build", action="store_true", help="take what bazel-bin has")
    running = commands.add_parser("run", help="run tests for some minutes")
    running.add_argument("tests", nargs="*", help="files or folders; all that run on a GPU")
    running.add_argument("--minutes", type=float, default=25)
    running.add_argument("--results", type=Path, default=Path("results.jsonl"))
    running.add_argument("--done", type=Path, nargs="*", default=[], help="results so far")
    running.add_argument("--again-failed", action="store_true", help="run failed tests again")
    running.add_argument("--gpus", help="numbers, as 0,1; all that are visible")
    running.add_argument("--per-gpu", type=int, default=1, help="files at a time on one GPU")
    running.add_argument("--test-seconds", type=float, default=240, help="limit of one test")
    running.add_argument("--libraries", type=Path, default=ROOT / LIBRARIES)
    reporting = commands.add_parser("report", help="merge results into one text")
    reporting.add_argument("results", type=Path, nargs="+")
    reporting.add_argument("--explained", type=Path, default=EXPLAINED)
    options = parser.parse_args()
    if options.command == "pack":
        pack(options.archive, options.wheel, not options.no_build)
    elif options.command == "run":
        for name in ("results", "libraries"):
            setattr(options, name, getattr(options, name).resolve())
        sys.exit(run(options))
    else:
        text, good = report(options.results, options.explained)
        print(text, end="")
        sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
