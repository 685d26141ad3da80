"""When the engine schedules the next step."""

from __future__ import annotations

import pytest
from vllm_xla_gpu.step_clock import StepClock


class Time:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_the_next_step_is_scheduled_before_the_end_of_a_long_one() -> None:
    time = Time()
    clock = StepClock(time)

    def end(seconds: float) -> str:
        time.seconds += seconds
        return clock.wait(lambda: "tokens")

    assert clock.seconds_until_needed() == 0  # nothing runs
    clock.start(540)
    assert clock.seconds_until_needed() == 0  # of a size that is not known
    assert end(0.020) == "tokens"
    clock.start(32)
    end(0.005)
    clock.start(550)
    time.seconds += 0.004
    assert clock.seconds_until_needed() == pytest.approx(0.020 - 0.004 - 0.005)
    clock.start(32)  # runs behind it
    end(0.012)
    assert clock.seconds_until_needed() == 0  # it is short
    end(0.005)
    clock.start(545)  # the shortest has taken 16 ms
    assert clock.seconds_until_needed() == pytest.approx(0.016 - 0.005)
    time.seconds += 1
    assert clock.seconds_until_needed() == 0
