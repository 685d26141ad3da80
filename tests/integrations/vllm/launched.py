"""One of several processes with the same engine: `launched.py MODEL HOW`.

HOW: `right`, or `settings` or `prompts`, which then differ in rank 1. On CPUs each process computes
everything with its own devices; on GPUs all processes compute together, with a GPU each.
"""

import json
import os
import sys

import families
from vllm import LLM, SamplingParams
from vllm.sampling_params import GuidedDecodingParams


def run(model: str, how: str) -> None:
    is_other = os.environ["RANK"] == "1"
    on_gpus = os.environ.get("PJRT_DEVICE") == "CUDA"
    llm = LLM(
        model,
        tensor_parallel_size=int(os.environ["WORLD_SIZE"]) if on_gpus else families.DEVICES,
        distributed_executor_backend="external_launcher",
        max_model_len=128,
        max_num_seqs=16 if is_other and how == "settings" else 8,
        max_num_batched_tokens=32,
        seed=0,
        gpu_memory_utilization=0.7 if is_other else 0.6,  # may differ
    )
    families.check_tokens(llm, model)
    pages = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    prompts = [{"prompt_token_ids": prompt} for prompt in families.prompts()]
    all_options = [
        SamplingParams(temperature=1, max_tokens=8),  # without a seed
        SamplingParams(temperature=1, seed=3, max_tokens=8, repetition_penalty=1.2),
        SamplingParams(max_tokens=8, guided_decoding=GuidedDecodingParams(choice=["w7", "w9"])),
    ]
    requests = [all_options[i % len(all_options)] for i in range(len(prompts))]
    answers = llm.generate(prompts, requests, use_tqdm=False)
    print("TOLD", json.dumps([pages, [answer.outputs[0].token_ids for answer in answers]]))
    if how == "prompts":
        if is_other:
            prompts[-1]["prompt_token_ids"][0] += 1
        llm.generate(prompts, all_options[0], use_tqdm=False)


if __name__ == "__main__":
    run(*sys.argv[1:])
