"""Measure vLLM's new tokens per second, on this wheel or for CUDA, under the same loads.

  PJRT_DEVICE=CUDA python benchmarks/serving.py --json=xla.json   # an 8B-shaped Llama
  PJRT_DEVICE=CUDA python benchmarks/serving.py --shape=30b-a3b   # an MoE model
  python benchmarks/serving.py --json=cuda.json                   # where vLLM for CUDA is installed
  PJRT_DEVICE=CPU python benchmarks/serving.py --shape=tiny --loads=4x16+8

A load is SEQSxPROMPT+NEW: that many sequences, all at once, with that many prompt and new tokens;
with one new token, the time is that of the prompts. Each is run twice: the first time with eight
new tokens, which is not measured. Prompts are random and never repeat, but for --shared-tokens.

The engine is vLLM on this wheel if PJRT_DEVICE is set, and vLLM for CUDA if it is not. It runs in
this process. Weights are random; both engines draw them on the device, or, with tensor parallelism,
on the host, where the same numbers repeat. benchmarks/pictures.py draws both files as one picture.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples/vllm"))

import torch
import vllm
from random_model import make_tokenizer
from transformers import LlamaConfig, Qwen3MoeConfig
from vllm.model_executor.model_loader import dummy_loader

ON_XLA = "PJRT_DEVICE" in os.environ
if ON_XLA:
    import torch_xla
    from torch_xla.debug import metrics

LOADS = "1x128+128,16x128+128,64x128+128,16x1024+256,64x1024+256"
_TINY = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SHAPES = {
    "8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "30b-a3b": {  # an MoE model, Qwen3-30B-A3B's
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
    "tiny": _TINY,
    "tiny-moe": _TINY
    | {
        "head_dim": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
}
SPREAD = 0.05  # bound of the weights' uniform distribution
POOL = 2**24 - 3  # count of random numbers on the host; not a multiple of a width


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model and of the engine."""
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of the model")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--kv-cache-dtype", default="auto", choices=("auto", "fp8"))
    parser.add_argument("--quantization", choices=("fp8",), help="of the bfloat16 weights")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.85)
    parser.add_argument("--enable-prefix-caching", action="store_true")
    parser.add_argument("--json", type=Path, help="file to write the results to")


def options(args: argparse.Namespace) -> dict[str, object]:
    """Return vLLM's options by name, except the model."""
    names = ("tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    names += ("kv_cache_dtype", "quantization", "gpu_memory_utilization", "enable_prefix_caching")
    given = {name: getattr(args, name) for name in names}
    return {name: value for name, value in given.items() if value is not None} | {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "seed": 0,
    }


def write_model(folder: Path, args: argparse.Namespace) -> None:
    """Write a model's configuration and a tokenizer of the words w0, w1, ..., but no weights."""
    shape = SHAPES[args.shape]
    is_moe = "num_experts" in shape
    (Qwen3MoeConfig if is_moe else LlamaConfig)(
        **shape,
        max_position_embeddings=max(8192, args.max_model_len),
        torch_dtype="bfloat16",
        bos_token_id=None,
        eos_token_id=0,
    ).save_pretrained(folder)
    config = folder / "config.json"
    found = json.loads(config.read_text())
    architecture = "Qwen3MoeForCausalLM" if is_moe else "LlamaForCausalLM"
    config.write_text(json.dumps(found | {"architectures": [architecture]}))
    make_tokenizer(shape["vocab_size"]).save_pretrained(folder)


def make_weights(model: torch.nn.Module, *_: object) -> None:
    """Fill the weights with random numbers; vLLM's own function would draw them on the host."""
    # Do not write to state_dict's tensors: they are views, which would get new memory. Do not keep
    # them, either: their old values would need memory beside the new ones.
    names = list(model.state_dict())
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name in filter(tensors.__contains__, names):
            _fill(tensors[name])


def _fill(weight: torch.Tensor) -> None:
    if weight.dim() == 0:  # a cache's scale, which the model does not have
        return
    if weight.dim() == 1:  # a norm's weight
        weight.fill_(1)
    elif weight.device.type == "cpu":  # it takes a minute to draw 8 billion numbers
        numbers = _numbers(weight.dtype)
        for part in weight.view(-1).split(POOL):
            part.copy_(numbers[: len(part)])
    elif weight.dtype == torch.float8_e4m3fn:  # PyTorch cannot draw these
        weight.copy_(torch.empty_like(weight, dtype=torch.bfloat16).uniform_(-SPREAD, SPREAD))
    else:
        weight.uniform_(-SPREAD, SPREAD)
    if weight.device.type == "xla":
        # Without waiting, queued draws would need memory for several weights in float32.
        torch_xla.sync(wait=True)


@functools.cache
def _numbers(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)  # any thread may be the first
    numbers = torch.empty(POOL, device="cpu")
    return numbers.uniform_(-SPREAD, SPREAD, generator=generator).to(dtype)


def use_random_weights() -> None:
    """Make vLLM draw the weights by `make_weights` in this process."""
    dummy_loader.initialize_dummy_weights = make_weights
    # vLLM 0.24.0 draws the weights of a layer before it quantizes them.
    dummy_loader.initialize_single_dummy_weight = _fill


def names() -> dict[str, str]:
    """Return the names of the engine, with its versions, and of the device."""
    where = "torch_xla_ext" if ON_XLA else "CUDA"
    if ON_XLA:
        device = str(torch_xla._XLAC._xla_device_kind(str(torch_xla.device())))
    else:
        device = torch.cuda.get_device_name()
    return {
        "engine": f"vLLM {vllm.__version__} on {where}, torch {torch.__version__}",
        "device": device,
    }


def prompt(vocabulary: int, length: int, seed: str) -> list[int]:
    """Return random tokens, the same for the same seed."""
    numbers = random.Random(seed)
    return [numbers.randrange(2, vocabulary) for _ in range(length)]


def make_engine(args: argparse.Namespace) -> tuple[vllm.LLM, dict[str, Any]]:
    """Return the engine, and how many seconds its start took."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    use_random_weights()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), args)
        llm = vllm.LLM(folder, skip_tokenizer_init=True, **options(args))
    start = names() | {"start_s": round(time.perf_counter() - begin, 1)}
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


def run_load(llm: vllm.LLM, load: str, vocabulary: int, num_shared: int) -> dict[str, Any]:
    seqs, rest = load.split("x")
    length, new = map(int, rest.split("+"))
    shared = prompt(vocabulary, min(num_shared, length), "shared")

    def run(new: int, turn: str) -> tuple[float, list[list[int]]]:
        seeds = [f"{load} {turn} {i}" for i in range(int(seqs))]
        prompts = [
            {"prompt_token_ids": shared + prompt(vocabulary, length - len(shared), seed)}
            for seed in seeds
        ]
        params = vllm.SamplingParams(
            temperature=0, max_tokens=new, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        answers = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        tokens = [list(answer.outputs[0].token_ids) for answer in answers]
        if any(len(answer) != new for answer in tokens):
            sys.exit(f"{load}: an answer does not have {new} tokens")
        return seconds, tokens

    run(min(new, 8), "first")
    seconds, tokens = run(new, "measured")
    return {
        "load": load,
        "seconds": round(seconds, 3),
        "new_tokens_a_second": round(int(seqs) * new / seconds, 1),
        "digest_of_tokens": hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16],
    }


def reporter(path: Path | None) -> Callable[[dict[str, Any]], None]:
    """Print each result, and write all so far to the file."""
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
    parser.add_argument(
        "--shared-tokens", type=int, default=0, help="that all prompts of a load begin with"
    )
    add_arguments(parser)
    args = parser.parse_args()
    report = reporter(args.json)
    llm, start = make_engine(args)
    report(start)
    for load in args.loads.split(","):
        report(run_load(llm, load, SHAPES[args.shape]["vocab_size"], args.shared_tokens))
    if ON_XLA:
        compiled = (metrics.metric_data("CompileTime") or (0, 0))[0]
        report({"programs_after_the_start": compiled - start["programs"]})


if __name__ == "__main__":
    main()
