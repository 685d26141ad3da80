"""Checks vLLM's answers on this wheel while requests are aborted.

  PJRT_DEVICE=CUDA python benchmarks/serving_aborts.py --requests=1000
  PJRT_DEVICE=CPU python benchmarks/serving_aborts.py --shape=tiny --requests=20

Requests of random lengths are served once completely, and once with some of them aborted after a
random number of tokens. If an answer differs, the engine is asked for logprobs there. The answer
is correct if both tokens equal the best one within rounding. The engine runs in this process. The
exit status is 1 if a request is lost or wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

import psutil
import serving
import serving_engine
import torch_xla
from serving_engine import SHAPES, prompt
from vllm import LLM, SamplingParams
from vllm_xla_gpu import memory

# Two log probabilities as near as this are equal but for rounding: in bfloat16, each one of the 8b
# shape varies by up to 0.25 with what else is in the batch.
TIE = 0.5


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


def run_aborts(llm: LLM, count: int, vocabulary: int, longest: int) -> dict[str, Any]:
    numbers = random.Random(1)
    prompts = [
        {"prompt_token_ids": prompt(vocabulary, numbers.randrange(1, longest // 2), 1000 + i)}
        for i in range(count)
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000, help="default: %(default)s")
    parser.add_argument(
        "--longest", type=int, default=256, help="longest prompt and answer (default: %(default)s)"
    )
    serving_engine.add_arguments(parser)
    args = parser.parse_args()
    report = serving.reporter(args.json)
    llm, start = serving.make_engine(args)
    report(start)
    result = run_aborts(llm, args.requests, SHAPES[args.shape]["vocab_size"], args.longest)
    report(result)
    wrong = result["different"] != result["different_at_a_tie"]
    return 1 if result["lost"] or result["unfinished"] or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
