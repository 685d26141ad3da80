"""PyTorch's samples of its operators are right on the XLA device, except for known faults.

Runs a few samples, or all with SWEEP=all.
"""

import os

import pytest

from aten_overrides import cases, known, sweep


@pytest.fixture(scope="module")
def found() -> dict[known.Place, sweep.Outcomes]:
    choose = sweep.all_tasks if os.environ.get("SWEEP") == "all" else sweep.few_tasks
    return sweep.run(choose(sweep.places(), known.read()))


@pytest.mark.parametrize("mode", cases.MODES)
def test_only_known_faults(found: dict[known.Place, sweep.Outcomes], mode: str) -> None:
    """After a fix, `--write-known` takes a fault off the list (known_faults.toml says how)."""
    its_own = {place: outcomes for place, outcomes in found.items() if place.mode == mode}
    print(sweep.counts(its_own))
    lines = sweep.surprises(its_own, known.read())
    assert not lines, "\n".join([f"{len(lines)} samples are not as known_faults.toml says", *lines])


def test_each_operator_is_run(found: dict[known.Place, sweep.Outcomes]) -> None:
    """The CPU's operators: PyTorch also lists jiterators, but cannot run them on the CPU."""
    compared = {place.operator for place, outcomes in found.items() if outcomes}
    missing = {place.operator for place in sweep.places()} - compared
    assert sorted(name for name in missing if not name.startswith("jiterator_")) == []
