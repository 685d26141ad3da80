"""When the engine schedules the next step, and how many tokens the step has."""

from types import SimpleNamespace

import pytest
from vllm_xla_gpu.engine import XlaGpuScheduler
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

    assert clock.seconds_until_needed(40) == 0  # nothing runs
    clock.start(540)
    assert clock.seconds_until_needed(40) == 0  # of a size that is not known
    assert end(0.020) == "tokens"
    clock.start(32)
    end(0.005)
    clock.start(550)
    time.seconds += 0.004
    assert clock.seconds_until_needed(40) == pytest.approx(0.020 - 0.004 - 0.005)
    clock.start(32)  # runs behind it
    end(0.012)
    assert clock.seconds_until_needed(40) == 0  # it is short
    end(0.005)
    clock.start(545)  # the shortest has taken 16 ms
    assert clock.seconds_until_needed(40) == pytest.approx(0.016 - 0.005)
    assert clock.seconds_until_needed(240) == pytest.approx(0.016 - 0.010)
    time.seconds += 1
    assert clock.seconds_until_needed(40) == 0


def request(prompt: int, computed: int = 0, new: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_prompt_tokens=prompt,
        num_computed_tokens=computed,
        num_tokens_with_spec=prompt + new,
        num_output_placeholders=0,
    )


GENERATES = request(512, computed=512, new=1)


@pytest.mark.parametrize(
    ("running", "waiting", "limit"),
    [
        ([GENERATES] * 3, [512] * 3, 1152),  # two of them, and a part of the third
        ([GENERATES] * 3, [1500, 512], 1503),  # the first one is not divided
        ([request(3000, computed=1000), GENERATES], [100], 2001),
        ([GENERATES], [3000, 2000], 8192),  # many tokens
        ([GENERATES], [16] * 9, 8192),  # many prompts
        ([], [512] * 3, 8192),  # nobody waits for a token
        ([GENERATES] * 3, [], 8192),
    ],
)
def test_few_prompts_do_not_share_a_step(
    running: list[SimpleNamespace], waiting: list[int], limit: int
) -> None:
    scheduler = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
        running=running,
        waiting=list(map(request, waiting)),
    )
    assert XlaGpuScheduler._step_limit(scheduler) == limit
