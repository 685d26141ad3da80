"""The sweep goes on after a crash and a hang, and names the sample that caused it."""

from aten_overrides import sweep
from aten_overrides.known import Place

# Uses worker.py's protocol: sample 1 crashes the process, 3 does not end, and 4 is wrong.
WORKER = """
import json, os, socket, sys, time
tasks = socket.socket(fileno=1).makefile("rw")
for line in tasks:
    task = json.loads(line)
    chosen = task["samples"] if task["count"] == 0 else list(range(5))
    if task.get("only_list"):
        print(json.dumps({"outcomes": {}, "chosen": chosen}), file=tasks, flush=True)
        continue
    if {1, 3} & {*chosen} and task["operator"] == "bad":
        if 1 in chosen:
            print("F1124 file.cc:7] Check failed: a == b", file=sys.stderr, flush=True)
            os.abort()
        time.sleep(100)
    outcomes = {i: ("wrong", "6 instead of 7") if i == 4 else ("right", "") for i in chosen}
    print(json.dumps({"outcomes": outcomes}), file=tasks, flush=True)
"""


def examine(operator: str, worker: sweep.Worker) -> dict[int, tuple[str, str]]:
    task = sweep.Task(Place(operator, "lazy", "float32"), None)
    outcomes = sweep.examine(worker, task, seconds=20, seconds_alone=2)
    return {sample: (outcome.what, outcome.message) for sample, outcome in outcomes.items()}


def test_crash_and_hang() -> None:
    worker = sweep.Worker(WORKER)
    try:
        for _ in range(2):
            assert examine("bad", worker) == {
                0: ("right", ""),
                1: ("crash", "Check failed: a == b"),
                2: ("right", ""),
                3: ("hang", "no answer in 2 s"),
                4: ("wrong", "6 instead of 7"),
            }
            assert examine("good", worker)[1] == ("right", "")
    finally:
        worker.stop()


def test_a_worker_that_cannot_start() -> None:
    worker = sweep.Worker("raise SystemExit('no torch_xla')")
    outcomes = examine("good", worker)
    assert outcomes == {0: ("crash", "exit status 1: no torch_xla")}
