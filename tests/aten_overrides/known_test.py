"""The list of known faults: read, written, compared, and shown in docs/debugging.md."""

from pathlib import Path

import pytest

from aten_overrides import cases, known, sweep
from aten_overrides.known import Fault, Place
from aten_overrides.sweep import Outcome

ADD, SUB = Place("add", "lazy", "float32"), Place("sub", "specials", "bfloat16")
WRONG = Fault("wrong", "It adds one.")
FAULTS = {ADD: {0: WRONG, 1: WRONG, 2: WRONG, 5: Fault("error", "No kernel.")}, SUB: {3: WRONG}}
BOOL = {Place("add", "lazy", "bool"): {0: WRONG, 1: WRONG, 2: WRONG}}
RIGHT = Outcome("right", "")


def test_read_and_write(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    known.write(FAULTS | BOOL, file)
    assert '"add" = ["lazy bool/float32: 0-2"]' in file.read_text()
    assert known.read(file) == FAULTS | BOOL


def test_refused(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    for what, where, text in (
        ("slow", ["lazy float32: 1"], "what must be one of"),
        ("wrong", ["lazy float32: 1", "lazy float32: 0-1"], "listed twice: lazy float32: 1"),
    ):
        file.write_text(f'[[fault]]\nwhat="{what}"\nreason="r"\nwhere={{a={where}}}')
        with pytest.raises(ValueError, match=text):
            known.read(file)


def test_surprises() -> None:
    wrong, error = Outcome("wrong", "1 instead of 2"), Outcome("error", "no kernel")
    found = {ADD: {0: wrong, 1: RIGHT, 2: error, 3: RIGHT, 4: wrong, 5: error}}
    assert sweep.surprises(found, FAULTS) == [
        "fixed: add, lazy, float32, sample 1: it is right; the list says: wrong",
        "changed: add, lazy, float32, sample 2: error, not wrong: no kernel",
        "new: add, lazy, float32, sample 4: wrong: 1 instead of 2",
    ]


def test_update_keeps_reasons() -> None:
    found = {ADD: {1: RIGHT, 2: Outcome("wrong", ""), 6: Outcome("wrong", ""), 7: RIGHT}}
    found[ADD] |= {8: Outcome("crash", "Check failed")}
    assert sweep.updated(found, FAULTS) == {
        ADD: {2: WRONG, 6: WRONG, 8: Fault("crash", "Not examined: Check failed")},
        SUB: {3: WRONG},
    }


def test_varying_faults_may_pass(tmp_path: Path) -> None:
    faults = {ADD: {0: Fault("wrong", "It adds one.", varies=True), 1: WRONG}}
    known.write(faults, tmp_path / "faults.toml")
    assert known.read(tmp_path / "faults.toml") == faults
    found = {ADD: {0: RIGHT, 1: Outcome("wrong", "")}}
    assert sweep.surprises(found, faults) == []
    assert sweep.updated(found, faults) == faults
    assert sweep.surprises({ADD: {0: Outcome("error", "no kernel")}}, faults) != []


def test_each_fault_has_a_reason() -> None:
    reasons = {fault.reason for samples in known.read().values() for fault in samples.values()}
    assert [reason for reason in reasons if not reason.endswith(".")] == []
    assert [reason for reason in reasons if reason.startswith(known.UNEXAMINED)] == []


def test_each_fault_is_of_something_that_is_run() -> None:
    assert sorted({*known.read()} - {*sweep.places()}) == []


def test_few_tasks() -> None:
    faults = {ADD: {7: WRONG, 9: WRONG, 10: Fault("error", "No kernel.")}}
    tasks = {task.place: task for task in sweep.few_tasks(sweep.places(), faults)}
    assert tasks[ADD].samples == (7, 10)
    first = {}
    for place in sweep.places():
        first.setdefault(place.operator, place)
    assert {*first.values()} <= {*tasks}
    assert {place.mode for place in tasks} == {*cases.MODES}


def test_page() -> None:
    """docs/debugging.md shows the list; `python -m aten_overrides.known` updates the page."""
    page = Path("docs/debugging.md").read_text()
    assert known.with_table(page, known.read()) == page
