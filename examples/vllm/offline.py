"""Generate text offline with vLLM, with a small random model that the script creates.

    PJRT_DEVICE=CPU python offline.py            # less than a minute
    PJRT_DEVICE=CUDA python offline.py MODEL     # your own model

On several GPUs, with one process for each (docs/vllm.md):

    PJRT_DEVICE=CUDA torchrun --nproc-per-node=2 offline.py --tensor-parallel-size=2 MODEL

Set up the environment with integrations/vllm/install.py.
"""

import argparse
import os
import tempfile
from pathlib import Path

# The engine runs in this process, so that its compilations can be counted.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch_xla.debug.metrics as metrics
from random_model import small_llama, write_model
from vllm import LLM, SamplingParams


def compilations() -> int:
    data = metrics.metric_data("CompileTime")
    return data[0] if data else 0


def run(model: str, devices: int) -> None:
    # Each number of tokens and sequences is a program: small limits shorten the start.
    llm = LLM(
        model,
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        tensor_parallel_size=devices,
        # torchrun's processes run the same engine together, each with all prompts.
        distributed_executor_backend="external_launcher" if "WORLD_SIZE" in os.environ else None,
        seed=0,
    )
    compiled = compilations()
    prompts = ["w5 w6 w7", "w100", "w5 w6 w7 w8 w9 w10 w11 w12", "w300 w301"]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers = llm.generate(prompts, params, use_tqdm=False)
    if os.environ.get("RANK", "0") != "0":
        return  # all processes have the same answers
    for answer in answers:
        print(f"{answer.prompt} -> {answer.outputs[0].text.strip()}")
    tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
    since = compilations() - compiled
    print(f"{tokens} tokens of {len(prompts)} prompts; programs compiled since: {since}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a folder or a name (default: a random model)")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs in all")
    options = parser.parse_args()
    model = options.model
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            model = folder
            write_model(small_llama(), Path(folder))
        run(model, options.tensor_parallel_size)


if __name__ == "__main__":
    main()
