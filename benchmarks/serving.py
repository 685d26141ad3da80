"""Measures how fast vLLM serves: on this wheel, or for CUDA, with the same loads and weights.

  PJRT_DEVICE=CUDA python benchmarks/serving.py --json=xla.json   # an 8B-shaped Llama
  python benchmarks/serving.py --json=cuda.json                   # where vLLM for CUDA is installed
  PJRT_DEVICE=CPU python benchmarks/serving.py --shape=tiny --loads=4x16+8

A load is SEQSxPROMPT+NEW: that many sequences, all at once, with that many prompt and new tokens;
with one new token, the time is that of the prompts. Each is run twice: the first time with eight
new tokens, which is not measured. Prompts are random and never repeat. Prints new tokens per
second and, on this wheel, of the steps that decode all sequences, medians in milliseconds of the
step, of the host's work, and of its wait for the device.

The engine runs in this process. benchmarks/pictures.py draws both files as one picture.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import serving_engine
from serving_engine import ON_XLA, SHAPES, prompt
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

if ON_XLA:
    from torch_xla.debug import metrics
    from vllm_xla_gpu import model_runner

LOADS = "1x128+128,16x128+128,64x128+128,16x1024+256,64x1024+256"


class StepTimes:
    """Looks at the clock where our engine begins to wait for a step's tokens, and has them."""

    def __init__(self, llm: LLM) -> None:
        self.steps: list[tuple[int, float, float]] = []
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        execute, result = runner.execute_model, model_runner.StartedStep.result

        def tagged_execute(scheduled: SchedulerOutput) -> model_runner.StartedStep:
            step = execute(scheduled)
            new = scheduled.num_scheduled_tokens.values()
            step.decoding = len(new) if all(count == 1 for count in new) else 0
            return step

        def timed_result(step: model_runner.StartedStep) -> ModelRunnerOutput:
            begin = time.perf_counter()
            output = result(step)
            self.steps.append((step.decoding, begin, time.perf_counter()))
            return output

        runner.execute_model, model_runner.StartedStep.result = tagged_execute, timed_result

    def medians(self, num_seqs: int) -> dict[str, float | None]:
        """Milliseconds, of the steps that decode `num_seqs` sequences one after the other."""
        pairs = [
            (before, step)
            for before, step in zip(self.steps, self.steps[1:], strict=False)
            if before[0] == step[0] == num_seqs
        ]
        columns = {
            "step": [step[2] - before[2] for before, step in pairs],
            "host": [step[1] - before[2] for before, step in pairs],
            "wait": [step[2] - step[1] for _, step in pairs],
        }
        return {
            name: round(1e3 * statistics.median(times), 3) if times else None
            for name, times in columns.items()
        }


def make_engine(args: argparse.Namespace) -> tuple[LLM, dict[str, Any]]:
    """The engine, and how long its start took."""
    serving_engine.use_random_weights()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        serving_engine.write_model(Path(folder), args)
        llm = LLM(folder, skip_tokenizer_init=True, **serving_engine.options(args))
    start = serving_engine.names() | {"start_s": round(time.perf_counter() - begin, 1)}
    if ON_XLA:
        compiled = metrics.metric_data("CompileTime") or (0, 0)
        loaded = metrics.metric_data("PersistentCacheLoad") or (0, 0)
        start |= {
            "programs": compiled[0],
            "compiling_s": round(compiled[1] / 1e9, 1),
            "from_cache": metrics.counter_value("PersistentCacheHit") or 0,
            "loading_s": round(loaded[1] / 1e9, 1),
        }
    return llm, start


def run_load(llm: LLM, load: str, vocabulary: int, times: StepTimes | None) -> dict[str, Any]:
    seqs, rest = load.split("x")
    length, new = map(int, rest.split("+"))

    def run(new: int, turn: str) -> tuple[float, list[list[int]]]:
        seeds = [f"{load} {turn} {i}" for i in range(int(seqs))]
        prompts = [{"prompt_token_ids": prompt(vocabulary, length, seed)} for seed in seeds]
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        answers = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        tokens = [list(answer.outputs[0].token_ids) for answer in answers]
        if any(len(answer) != new for answer in tokens):
            sys.exit(f"{load}: an answer has not {new} tokens")
        return seconds, tokens

    run(min(new, 8), "first")
    if times:
        times.steps.clear()
    seconds, tokens = run(new, "measured")
    measured = {
        "load": load,
        "seconds": round(seconds, 3),
        "new_tokens_a_second": round(int(seqs) * new / seconds, 1),
        "digest_of_tokens": hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16],
    }
    return measured | ({"steps": len(times.steps)} | times.medians(int(seqs)) if times else {})


def reporter(path: Path | None) -> Callable[[dict[str, Any]], None]:
    """Prints each result, and writes all so far to the file."""
    results: list[dict[str, Any]] = []

    def report(result: dict[str, Any]) -> None:
        results.append(result)
        print(json.dumps(result), flush=True)
        if path:
            path.write_text(json.dumps(results, indent=1) + "\n")

    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loads", default=LOADS, help="default: %(default)s")
    serving_engine.add_arguments(parser)
    args = parser.parse_args()
    report = reporter(args.json)
    llm, start = make_engine(args)
    report(start)
    times = StepTimes(llm) if ON_XLA else None
    for load in args.loads.split(","):
        report(run_load(llm, load, SHAPES[args.shape]["vocab_size"], times))
    if ON_XLA:
        compiled = (metrics.metric_data("CompileTime") or (0, 0))[0]
        report({"programs_after_the_start": compiled - start["programs"]})


if __name__ == "__main__":
    main()
