"""PyTorch's OpInfo database on the XLA device, against PyTorch's on the CPU.

    export PYTHONPATH=tests PJRT_DEVICE=CPU
    python -m aten_overrides.sweep [--all] [--operator NAME] [--mode MODE] [--dtype DTYPE]
        [--write-known]

Worker processes run the cases (worker.py). A worker that ends, or that does not answer, is
replaced, and the samples of its task are run one at a time, to find the ones at fault.

Without --all, it runs a few samples: of each operator in float32, and with one of its other modes
and dtypes; and one sample of each known fault.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import queue
import re
import select
import signal
import socket
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable

from testing.scripts import start_script

from aten_overrides import cases, known
from aten_overrides.known import Fault, Place

SECONDS = 180.0  # for a task
SECONDS_ALONE = 60.0  # for one sample
DEATHS = 4  # after so many dead workers, a place's other samples have the last one's outcome
QUICK = "--xla_backend_optimization_level=0"
TASKS_OF_A_WORKER = 250  # then a new one starts: programs that were compiled keep their memory


@dataclasses.dataclass(frozen=True)
class Task:
    place: Place
    count: int | None  # how many samples, None for all of them
    samples: tuple[int, ...] = ()  # samples that run besides


@dataclasses.dataclass(frozen=True)
class Outcome:
    what: str  # "right", or one of known.KINDS
    message: str


Outcomes = dict[int, Outcome]


@dataclasses.dataclass(frozen=True)
class Death:
    """The end of a worker: a crash or a hang."""

    what: str
    message: str


class Worker:
    """A process that runs tasks, and is started again when a task has ended it."""

    def __init__(self, code: str) -> None:
        """Starts a worker that runs a script like worker.py's main()."""
        self._code = code
        self._tasks: socket.socket | None = None
        self._count = 0

    def ask(self, task: dict, seconds: float) -> dict | Death:
        if self._count >= TASKS_OF_A_WORKER:
            self.stop()
        tasks = self._tasks or self._start()
        self._count += 1
        # The caller notices a worker that has ended when it does not answer.
        with contextlib.suppress(ConnectionError):
            tasks.sendall(json.dumps(task).encode() + b"\n")
        ready, _, _ = select.select([tasks], [], [], seconds)
        line = ""
        with contextlib.suppress(ConnectionError):
            line = self._outcomes.readline() if ready else ""
        if line:
            return json.loads(line)
        if not ready:
            self.stop()
            return Death("hang", f"no answer in {seconds:.0f} s")
        code = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read()
        self.stop()
        return Death("crash", _last_words(code, text))

    def stop(self) -> None:
        if self._tasks is not None:
            self._process.kill()
            self._process.wait()
            self._outcomes.close()
            self._tasks.close()
            self._errors.close()
        self._tasks, self._count = None, 0

    def _start(self) -> socket.socket:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._tasks, theirs = socket.socketpair()
        self._outcomes = self._tasks.makefile()
        with theirs:
            self._process = start_script(
                self._code,
                theirs,
                self._errors,
                OMP_NUM_THREADS="1",
                # A small cache, so that programs that are not needed any more free memory and
                # mappings.
                XLA_COMPILATION_CACHE_SIZE="64",
                # Most of the time is spent in XLA's compiler. LLVM's optimizations change no
                # outcome: tried with the few samples of float32, lazy and specials.
                XLA_FLAGS=f"{QUICK} {os.environ.get('XLA_FLAGS', '')}",
            )
        return self._tasks


WORKER = "from aten_overrides import worker; worker.main()"


def examine(
    worker: Worker, task: Task, seconds: float = SECONDS, seconds_alone: float = SECONDS_ALONE
) -> Outcomes:
    """Runs a task, also if it crashes the worker or does not end."""
    request = dataclasses.asdict(task.place) | {
        "count": task.count,
        "samples": task.samples,
        "alone": False,
    }
    reply = worker.ask(request, seconds)
    if isinstance(reply, dict):
        return _outcomes(reply)
    together = reply
    listing = worker.ask(request | {"only_list": True}, seconds)
    if isinstance(listing, Death):  # The samples themselves cannot be made.
        return {0: Outcome(listing.what, listing.message)}
    if "failed" in listing:
        return _outcomes(listing)
    outcomes: Outcomes = {}
    deaths: list[Outcome] = []
    for sample in listing["chosen"]:
        if len(deaths) == DEATHS:
            outcomes[sample] = deaths[-1]
            continue
        alone = request | {"count": 0, "samples": [sample], "alone": True}
        reply = worker.ask(alone, seconds_alone)
        if isinstance(reply, Death):
            deaths.append(Outcome(reply.what, reply.message))
            outcomes[sample] = deaths[-1]
        else:
            outcomes |= _outcomes(reply)
    if not deaths and together.what == "crash":
        first = listing["chosen"][0]
        outcomes[first] = Outcome("crash", f"only in a program of all samples: {together.message}")
    return outcomes


def _outcomes(reply: dict) -> Outcomes:
    if "failed" in reply:
        return {0: Outcome("error", f"the sweep itself failed: {reply['failed']}")}
    return {int(sample): Outcome(*pair) for sample, pair in reply["outcomes"].items()}


def _last_words(code: int, text: str) -> str:
    """Returns why a process ended: the line of its failed check, or the signal."""
    for line in text.splitlines():
        if found := re.match(r"F\d{4} .*?\] (.*)", line):
            return found[1][:300]
    lines = [line for line in text.splitlines() if line.strip()]
    if code < 0:
        reason = signal.Signals(-code).name
        what = [line for line in lines if "terminate" in line or "what()" in line]
        return f"{reason} {' '.join(what)}".strip()[:300]
    return f"exit status {code}: {lines[-1] if lines else ''}"[:300]


def places(
    modes: Iterable[str] = (), names: Iterable[str] = (), dtypes: Iterable[str] = ()
) -> list[Place]:
    """Returns the selected places; an empty selection stands for everything."""
    modes, names, dtypes = set(modes), set(names), set(dtypes)
    return [
        Place(name, mode, dtype)
        for mode in cases.MODES
        if not modes or mode in modes
        for name in cases.names(mode)
        if not names or name in names
        for dtype in cases.dtypes(mode, name)
        if not dtypes or dtype in dtypes
    ]


def all_tasks(where: Iterable[Place], faults: known.Faults) -> list[Task]:
    return [Task(place, None, tuple(faults.get(place, ()))) for place in where]


def few_tasks(where: Iterable[Place], faults: known.Faults) -> list[Task]:
    """Returns tasks that take a few minutes, the same ones at each call."""
    by_operator: dict[str, list[Place]] = defaultdict(list)
    for place in where:
        by_operator[place.operator].append(place)
    counts: dict[Place, int] = {}
    samples: dict[Place, list[int]] = defaultdict(list)
    for i, (_, its_places) in enumerate(sorted(by_operator.items())):
        first, *others = its_places  # The first place is lazy, in float32 if the operator has it.
        counts[first] = 4
        if others:
            counts[others[i % len(others)]] = 2
        # One sample of each entry in the list of known faults.
        entries: dict[Fault, tuple[Place, int]] = {}
        for place in its_places:
            for sample, fault in sorted(faults.get(place, {}).items()):
                entries.setdefault(fault, (place, sample))
        for place, sample in entries.values():
            samples[place].append(sample)
    return [
        Task(place, counts.get(place, 0), tuple(samples[place]))
        for place in where
        if place in counts or place in samples
    ]


def run(tasks: list[Task], jobs: int = 2, save: str | None = None) -> dict[Place, Outcomes]:
    """Runs tasks in `jobs` processes at once; appends the outcomes of each to a file, as JSON."""
    workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    everyone = [Worker(WORKER) for _ in range(jobs)]
    for worker in everyone:
        workers.put(worker)

    def one(task: Task) -> Outcomes:
        worker = workers.get()
        start = time.monotonic()
        try:
            outcomes = examine(worker, task)
        finally:
            workers.put(worker)
        if save is not None:
            record = dataclasses.asdict(task.place) | {
                "seconds": round(time.monotonic() - start, 2),
                "outcomes": {i: dataclasses.astuple(outcome) for i, outcome in outcomes.items()},
            }
            with open(save, "a") as file:
                file.write(json.dumps(record) + "\n")
        return outcomes

    try:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            outcomes = list(pool.map(one, tasks))
    finally:
        for worker in everyone:
            worker.stop()
    return {task.place: found for task, found in zip(tasks, outcomes, strict=True)}


def surprises(found: dict[Place, Outcomes], faults: known.Faults) -> list[str]:
    """Returns the differences from the list of known faults, one line each."""
    lines = []
    for place, outcomes in found.items():
        listed = faults.get(place, {})
        for sample, outcome in outcomes.items():
            fault = listed.get(sample)
            where = f"{place}, sample {sample}"
            if fault is None and outcome.what != "right":
                lines.append(f"new: {where}: {outcome.what}: {outcome.message}")
            elif fault is not None and outcome.what == "right":
                if fault.varies:
                    continue
                lines.append(f"fixed: {where}: it is right; the list says: {fault.what}")
            elif fault is not None and outcome.what != fault.what:
                lines.append(
                    f"changed: {where}: {outcome.what}, not {fault.what}: {outcome.message}"
                )
    return lines


def updated(found: dict[Place, Outcomes], faults: known.Faults) -> known.Faults:
    """Returns the faults that a sweep of all samples found, with the list's reasons."""
    result = {place: dict(samples) for place, samples in faults.items() if place not in found}
    reasons: dict[tuple[str, str], dict[Place, str]] = defaultdict(dict)
    for place, samples in faults.items():
        for fault in samples.values():
            reasons[place.operator, fault.what].setdefault(place, fault.reason)
    for place, outcomes in found.items():
        for sample, outcome in outcomes.items():
            old = faults.get(place, {}).get(sample)
            if outcome.what == "right":
                if old is not None and old.varies:
                    result.setdefault(place, {})[sample] = old
                continue
            if old is not None and old.what == outcome.what:
                fault = old
            else:
                others = reasons[place.operator, outcome.what]
                reason = others.get(place) or next(iter(others.values()), None)
                fault = Fault(outcome.what, reason or known.UNEXAMINED + outcome.message)
            result.setdefault(place, {})[sample] = fault
    return result


def counts(found: dict[Place, Outcomes]) -> str:
    """Returns a table of how many samples were right, wrong and so on, by mode and dtype."""
    totals: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for place, outcomes in found.items():
        totals[place.mode, place.dtype].update(outcome.what for outcome in outcomes.values())
    kinds = ("right", *known.KINDS)
    lines = [f"{'mode':20}{'dtype':12}{'samples':>9}" + "".join(f"{kind:>8}" for kind in kinds)]
    for (mode, dtype), counter in totals.items():
        numbers = "".join(f"{counter[kind]:8}" for kind in kinds)
        lines.append(f"{mode:20}{dtype:12}{counter.total():9}{numbers}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all samples, modes and dtypes")
    parser.add_argument("--operator", action="append", default=[])
    parser.add_argument("--mode", action="append", default=[], choices=list(cases.MODES))
    parser.add_argument("--dtype", action="append", default=[], choices=list(cases.DTYPES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", help="a file that gets all outcomes, one JSON object a line")
    parser.add_argument(
        "--write-known", action="store_true", help="update known_faults.toml; implies --all"
    )
    args = parser.parse_args()
    faults = known.read()
    where = places(args.mode, args.operator, args.dtype)
    is_all = args.all or args.write_known
    tasks = all_tasks(where, faults) if is_all else few_tasks(where, faults)
    found = run(tasks, args.jobs, save=args.save)
    print(counts(found))
    for line in surprises(found, faults):
        print(line)
    if args.write_known:
        known.write(updated(found, faults))


if __name__ == "__main__":
    main()
