"""Measures how fast vLLM serves on this wheel, and checks answers while requests are aborted.

  PJRT_DEVICE=CUDA python benchmarks/serving.py --json=serving.json      # an 8B-shaped Llama
  PJRT_DEVICE=CPU python benchmarks/serving.py --shape=tiny --loads=4x16+8 --aborts=20

Weights are random. They are created on the device, or with --tensor-parallel on the host, where
the same numbers repeat. Two parts:

  loads   SEQSxPROMPT+NEW: that many sequences with that many prompt and new tokens; with one new
          token, the time is that of the prompts. Prints tokens per second and, for the steps that
          decode all sequences, medians in milliseconds of the step, of the host's work, and of its
          wait for the device.
  aborts  requests of random lengths, served once completely and once with some of them aborted
          after a random number of tokens. If an answer differs, the engine is asked for logprobs
          there. The answer is correct if both tokens equal the best one within rounding.

The engine runs in this process. The exit status is 1 if a request is lost or wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
os.environ |= {"HF_HUB_OFFLINE": "1"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import psutil
import torch
import torch_xla
from torch_xla.debug import metrics
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.model_executor.model_loader import dummy_loader
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm_xla_gpu import memory, model_runner

SHAPES = {
    "8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
SPREAD = 0.05  # of the weights' uniform numbers
POOL = 2**24 - 3  # of numbers on the host; no multiple of a width
# Two log probabilities as near as this are equal but for rounding: in bfloat16, each one of the 8b
# shape varies by up to 0.25 with what else is in the batch.
TIE = 0.5


def make_weights(model: torch.nn.Module) -> None:
    """Fills them with random numbers."""
    numbers = torch.empty(POOL).uniform_(-SPREAD, SPREAD)
    for name, weight in model.state_dict().items():
        if "norm" in name:
            weight.fill_(1)
        elif weight.device.type == "cpu":  # it takes a minute to draw 8 billion numbers
            numbers = numbers.to(weight.dtype)
            for part in weight.view(-1).split(POOL):
                part.copy_(numbers[: len(part)])
        else:
            weight.uniform_(-SPREAD, SPREAD)
        torch_xla.sync()


class StepTimes:
    """Looks at the clock where the engine begins to wait for a step's tokens, and has them."""

    def __init__(self, runner: model_runner.XlaGpuModelRunner) -> None:
        self.steps: list[tuple[int, float, float]] = []
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


def make_engine(args: argparse.Namespace) -> tuple[LLM, dict[str, float]]:
    shape = SHAPES[args.shape]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        LlamaConfig(
            **shape,
            max_position_embeddings=max(8192, args.max_model_len),
            torch_dtype="bfloat16",
            bos_token_id=None,
            eos_token_id=0,
        ).save_pretrained(folder)
        config = Path(folder, "config.json")
        config.write_text(
            json.dumps(json.loads(config.read_text()) | {"architectures": ["LlamaForCausalLM"]})
        )
        dummy_loader.initialize_dummy_weights = make_weights
        llm = LLM(
            folder,
            dtype="bfloat16",
            load_format="dummy",
            skip_tokenizer_init=True,
            tensor_parallel_size=args.tensor_parallel,
            max_model_len=args.max_model_len,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            gpu_memory_utilization=args.memory,
            kv_cache_dtype=args.kv_cache_dtype,
            seed=0,
        )
    compiled = metrics.metric_data("CompileTime") or (0, 0)
    loaded = metrics.metric_data("PersistentCacheLoad") or (0, 0)
    return llm, {
        "start_s": round(time.perf_counter() - begin, 1),
        "programs": compiled[0],
        "compiling_s": round(compiled[1] / 1e9, 1),
        "from_cache": metrics.counter_value("PersistentCacheHit") or 0,
        "loading_s": round(loaded[1] / 1e9, 1),
    }


def prompt(vocabulary: int, length: int, seed: int) -> dict[str, list[int]]:
    numbers = random.Random(seed)
    return {"prompt_token_ids": [numbers.randrange(2, vocabulary) for _ in range(length)]}


def run_load(llm: LLM, load: str, vocabulary: int, times: StepTimes) -> dict[str, object]:
    seqs, rest = load.split("x")
    length, new = map(int, rest.split("+"))
    prompts = [prompt(vocabulary, length, seed) for seed in range(int(seqs))]
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    times.steps.clear()
    begin = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    whole = time.perf_counter() - begin
    if any(len(answer.outputs[0].token_ids) != new for answer in answers):
        sys.exit(f"{load}: an answer is too short")
    return {
        "load": load,
        "seconds": round(whole, 3),
        "new_tokens_a_second": round(int(seqs) * new / whole, 1),
        "steps": len(times.steps),
        **times.medians(int(seqs)),
        "digest_of_tokens": hashlib.sha256(
            json.dumps([list(answer.outputs[0].token_ids) for answer in answers]).encode()
        ).hexdigest()[:16],
    }


def serve(
    llm: LLM, prompts: list[dict], params: list[SamplingParams], aborted_at: list[int | None]
) -> list[list[int] | None]:
    """The answers; None for those that were aborted, when they had so many tokens."""
    engine = llm.llm_engine
    answers: list[list[int] | None] = [None] * len(prompts)
    for i, (text, wish) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(i), text, wish)
    while engine.has_unfinished_requests():
        for output in engine.step():
            i, tokens = int(output.request_id), output.outputs[0].token_ids
            if aborted_at[i] is not None and len(tokens) >= aborted_at[i]:
                engine.abort_request([output.request_id])
            elif output.finished:
                answers[i] = list(tokens)
    return answers


def is_tie(llm: LLM, text: dict[str, list[int]], one: list[int], other: list[int]) -> bool:
    """Whether two answers part at tokens whose logits are equal but for rounding."""
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5, detokenize=False)
    asked = {"prompt_token_ids": text["prompt_token_ids"] + one[:at]}
    (answer,) = llm.generate([asked], params, use_tqdm=False)
    (found,) = answer.outputs[0].logprobs
    best = max(token.logprob for token in found.values())
    return all(
        token in found and found[token].logprob > best - TIE for token in (one[at], other[at])
    )


def memory_in_use() -> tuple[int, int]:
    """Bytes of this process, and of the device."""
    info = memory.allocator_info(torch_xla.device())
    return psutil.Process().memory_info().rss, info["bytes_used"] if info else 0


def run_aborts(llm: LLM, count: int, vocabulary: int, longest: int) -> dict[str, object]:
    numbers = random.Random(1)
    prompts = [
        prompt(vocabulary, numbers.randrange(1, longest // 2), 1000 + i) for i in range(count)
    ]
    wanted = [numbers.randrange(1, longest // 2) for _ in range(count)]
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False)
        for n in wanted
    ]
    aborted_at = [numbers.randrange(1, n + 1) if numbers.random() < 1 / 3 else None for n in wanted]
    whole = serve(llm, prompts, params, [None] * count)
    host, device = memory_in_use()
    begin = time.perf_counter()
    answers = serve(llm, prompts, params, aborted_at)
    seconds = time.perf_counter() - begin
    host_after, device_after = memory_in_use()
    kept = [i for i in range(count) if aborted_at[i] is None]
    lost = [i for i in kept if answers[i] is None or len(answers[i]) != wanted[i]]
    different = [i for i in kept if i not in lost and answers[i] != whole[i]]
    return {
        "requests": count,
        "aborted": count - len(kept),
        "lost": len(lost),
        "equal": len(kept) - len(lost) - len(different),
        "different_at_a_tie": sum(is_tie(llm, prompts[i], whole[i], answers[i]) for i in different),
        "different": len(different),
        "seconds": round(seconds, 1),
        "host_memory_grew_mb": round((host_after - host) / 1e6, 1),
        "device_memory_grew_mb": round((device_after - device) / 1e6, 1),
        "unfinished": llm.llm_engine.get_num_unfinished_requests(),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument(
        "--loads", default="16x16+128,1x16+64,64x1024+256", help="see above; may be empty"
    )
    parser.add_argument("--aborts", type=int, default=0, help="number of requests (default: 0)")
    parser.add_argument(
        "--longest", type=int, default=256, help="longest prompt and answer of --aborts"
    )
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs that share the model")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=1024)
    parser.add_argument("--kv-cache-dtype", default="auto", choices=("auto", "fp8"))
    parser.add_argument("--memory", type=float, default=0.85, help="gpu_memory_utilization")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    results: list[dict[str, object]] = []

    def report(result: dict[str, object]) -> None:
        results.append(result)
        print(json.dumps(result), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")

    llm, start = make_engine(args)
    report(start)
    vocabulary = SHAPES[args.shape]["vocab_size"]
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    times = StepTimes(runner)
    for load in filter(None, args.loads.split(",")):
        report(run_load(llm, load, vocabulary, times))
    right = True
    if args.aborts:
        result = run_aborts(llm, args.aborts, vocabulary, args.longest)
        report(result)
        right = not (
            result["lost"]
            or result["unfinished"]
            or result["different"] != result["different_at_a_tie"]
        )
    compiled = (metrics.metric_data("CompileTime") or (0, 0))[0]
    report({"programs_after_the_start": compiled - start["programs"]})
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
