"""Measure a decode step of an 8B-shaped model: one token for each of several sequences.

  python benchmarks/decode_step.py --json=step.json                 # in the wheel's environment
  python3 benchmarks/decode_step.py --ways=peer --json=peer.json    # with a CUDA build of torch

Ways: "lazy" traces each step, "openxla" is torch.compile with that backend, "captured" is
torch_xla_ext.capture; all three run kv_cache_update and paged_attention on a paged cache. "peer" is
torch.compile inside a CUDA graph with a dense cache and scaled_dot_product_attention, and needs no
torch_xla. "generate" is greedy model.generate of transformers, with a prompt of that length; "in
flight" is the time of each further token. Times are medians, in milliseconds:

  host       until the call returns, with no step in flight before it
  waited     until the device has finished
  in flight  per step, if many steps are started without waiting

On a CPU only the host times are meaningful:

  PJRT_DEVICE=CPU python benchmarks/decode_step.py --width=128 --shapes=1x16 --layers=2
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

PAGE = 16
WAYS = ("lazy", "openxla", "captured", "peer", "generate")
Step = Callable[[], object]

# attend(layer, q [seqs, heads, head_dim], k [seqs, kv_heads, head_dim], v) stores k and v and
# returns the attention's result, of q's shape.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclasses.dataclass
class Config:
    layers: int = 32
    width: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 128256
    dtype: torch.dtype = torch.bfloat16
    parts: int = 1  # devices among which heads and columns are divided


class Model:
    """The weights, and the forward pass of one token per sequence."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        sync: Callable[[], None],
        place: Callable[[torch.Tensor, int], None] | None = None,
    ) -> None:
        """Initialize the weights; `place` shards a matrix along a dimension."""
        self.config = config

        def weight(rows: int, columns: int, dim: int = 0) -> torch.Tensor:
            made = torch.randn(rows, columns, dtype=config.dtype, device=device) * columns**-0.5
            if place is not None:
                place(made, dim)
            sync()
            return made

        def ones() -> torch.Tensor:
            return torch.ones(config.width, dtype=config.dtype, device=device)

        heads = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.embedding = weight(config.vocabulary, config.width)
        self.layers = [
            {
                "attention_norm": ones(),
                "qkv": weight(heads, config.width),
                "out": weight(config.width, config.heads * config.head_dim, dim=1),
                "mlp_norm": ones(),
                "gate_up": weight(2 * config.inner, config.width),
                "down": weight(config.width, config.inner, dim=1),
            }
            for _ in range(config.layers)
        ]
        self.norm, self.head = ones(), weight(config.vocabulary, config.width)
        step = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
        self.frequencies = 500000.0 ** (-step / config.head_dim)
        sync()

    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Return the next tokens, [seqs], int32."""
        config = self.config
        angles = positions.float()[:, None, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()

        def rotate(x: torch.Tensor) -> torch.Tensor:
            a, b = x.float().chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(config.dtype)

        x = self.embedding[tokens]
        for number, layer in enumerate(self.layers):
            qkv = functional.linear(norm(x, layer["attention_norm"]), layer["qkv"])
            # Each device's rows of the weights belong to its heads and, below, to its gates and
            # values.
            qkv = qkv.unflatten(-1, (config.parts, -1, config.head_dim))
            heads, kv_heads = config.heads // config.parts, config.kv_heads // config.parts
            q, k, v = (x.flatten(-3, -2) for x in qkv.split([heads, kv_heads, kv_heads], dim=-2))
            found = attend(number, rotate(q), rotate(k), v)
            x = x + functional.linear(found.flatten(-2), layer["out"])
            gate_up = functional.linear(norm(x, layer["mlp_norm"]), layer["gate_up"])
            gate, up = gate_up.unflatten(-1, (config.parts, -1)).chunk(2, -1)
            x = x + functional.linear((functional.silu(gate) * up).flatten(-2), layer["down"])
        return functional.linear(norm(x, self.norm), self.head).argmax(-1).int()


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    return scaled.to(x.dtype) * weight


def measure(step: Step, wait: Callable[[], None], steps: int) -> dict[str, float]:
    """Return medians in milliseconds."""
    for _ in range(5):
        step()
    wait()
    host, waited = [], []
    for _ in range(20):
        begin = time.perf_counter()
        step()
        middle = time.perf_counter()
        wait()
        waited.append(time.perf_counter() - begin)
        host.append(middle - begin)
    in_flight = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        in_flight.append((time.perf_counter() - begin) / steps)
    return {
        name: round(1e3 * statistics.median(times), 4)
        for name, times in (("host", host), ("waited", waited), ("in_flight", in_flight))
    }


class Xla:
    """The step on torch_xla, with a paged cache."""

    def __init__(
        self,
        config: Config,
        seqs: int,
        length: int,
        place: Callable[[torch.Tensor, int], None] | None = None,
        mark: Callable[..., None] | None = None,
    ) -> None:
        """Initialize the state; `place` and `mark` divide it for benchmarks/tensor_parallel.py."""
        import torch_xla
        import torch_xla.core.xla_model as xm

        if mark is None:

            def mark(tensor: torch.Tensor, *axes: str | None) -> None:
                pass

        self.sync, self.device = torch_xla.sync, torch_xla.device()
        self.wait = xm.wait_device_ops
        self.model = Model(config, self.device, torch_xla.sync, place)
        self.config, self.seqs = config, seqs
        pages_per_seq = -(-(length + 1) // PAGE) + 8
        num_pages = seqs * pages_per_seq
        shape = (num_pages, PAGE, config.kv_heads, config.head_dim)
        self.caches = []
        for _ in range(config.layers):
            self.caches.append(
                [torch.randn(shape, dtype=config.dtype, device=self.device) for _ in range(2)]
            )
            for cache in self.caches[-1]:
                mark(cache, None, None, "model")
            torch_xla.sync()
        pages = torch.randperm(num_pages, dtype=torch.int32).view(seqs, pages_per_seq)
        self.tables = pages.to(self.device)
        self.rows = torch.arange(seqs, dtype=torch.int32).to(self.device)
        self.tokens = torch.zeros(seqs, dtype=torch.int32, device=self.device)
        # Each step decodes at this length, so that its time does not depend on the number of steps.
        self.lengths = torch.full((seqs,), length, dtype=torch.int32, device=self.device)
        for state in (self.tables, self.tokens, self.lengths):
            mark(state, "data")
        torch_xla.sync()
        self.wait()

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        position = self.lengths - 1
        slots = self.tables[self.rows, position // PAGE] * PAGE + position % PAGE
        scale = self.config.head_dim**-0.5

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = self.caches[layer]
            torch.ops.xla_gpu.kv_cache_update(k, v, slots, keys, values)
            return torch.ops.xla_gpu.paged_attention(
                q, keys, values, self.tables, self.lengths, scale
            )

        return self.model(tokens, position, attend)

    def step_in_place(self) -> None:
        """Run a step that keeps the addresses of all buffers (docs/performance.md)."""
        self.tokens.copy_(self.step(self.tokens))

    def way(self, name: str) -> Step:
        import torch_xla_ext

        if name == "lazy":
            run = self.step
        elif name == "openxla":
            for tensor in [cache for pair in self.caches for cache in pair]:
                import torch_xla

                torch_xla._XLAC._set_buffer_donation(tensor, True)
            run = torch.compile(self.step, backend="openxla", fullgraph=True)
        else:
            return torch_xla_ext.capture(self.step_in_place, verify=4)  # before it is timed
        state = {"tokens": self.tokens}

        def step() -> None:
            state["tokens"] = run(state["tokens"])
            if name == "lazy":
                self.sync()

        return step


class Peer:
    """The step on a CUDA torch, with a dense cache, compiled and inside a CUDA graph."""

    def __init__(self, config: Config, seqs: int, length: int) -> None:
        self.wait = torch.cuda.synchronize
        self.model = Model(config, torch.device("cuda"), lambda: None)
        shape = (seqs, config.kv_heads, length, config.head_dim)
        self.caches = [
            [torch.randn(shape, dtype=config.dtype, device="cuda") for _ in range(2)]
            for _ in range(config.layers)
        ]
        self.tokens = torch.zeros(seqs, dtype=torch.int32, device="cuda")
        self.position = torch.full((seqs,), length - 1, device="cuda")
        self.slot = torch.tensor([length - 1], device="cuda")

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = self.caches[layer]
            keys.index_copy_(2, self.slot, k[:, :, None])
            values.index_copy_(2, self.slot, v[:, :, None])
            found = torch.nn.functional.scaled_dot_product_attention(
                q[:, :, None], keys, values, enable_gqa=True
            )
            return found[:, :, 0]

        return self.model(tokens, self.position, attend)

    def way(self, _name: str) -> Step:
        compiled = torch.compile(self.step, fullgraph=True)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                compiled(self.tokens)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.tokens.copy_(compiled(self.tokens))
        return graph.replay


def measure_generate(config: Config, seqs: int, length: int, tokens: int) -> dict[str, float]:
    """Return the time of each of `tokens` more tokens of model.generate, in milliseconds."""
    import torch_xla
    from transformers import LlamaConfig, LlamaForCausalLM

    device = torch_xla.device()
    shape = LlamaConfig(
        hidden_size=config.width,
        intermediate_size=config.inner,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        vocab_size=config.vocabulary,
        max_position_embeddings=8192,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(shape).to(config.dtype).eval()
    model.to_empty(device=device)
    for weight in model.parameters():
        weight.normal_(std=weight.shape[-1] ** -0.5)
        torch_xla.sync()
    model.model.rotary_emb = type(model.model.rotary_emb)(shape).to(device)
    prompts = torch.randint(config.vocabulary, (seqs, length)).to(device)

    def seconds(new: int) -> float:
        times = []
        for _ in range(5):  # the first ones compile
            begin = time.perf_counter()
            model.generate(prompts, max_new_tokens=new, do_sample=False).cpu()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[2:])

    return {"in_flight": round(1e3 * (seconds(2 * tokens) - seconds(tokens)) / tokens, 4)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "lazy,openxla,captured" if importlib.util.find_spec("torch_xla") else "peer"
    parser.add_argument("--ways", default=default, help=f"comma-separated, from {', '.join(WAYS)}")
    parser.add_argument("--shapes", default="16x4096", help="SEQUENCESxTOKENS, comma-separated")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument(
        "--width", type=int, default=4096, help="hidden size; the others follow from it"
    )
    parser.add_argument("--in-flight", type=int, default=30, help="number of steps timed together")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    args = parser.parse_args()
    unknown = set(args.ways.split(",")) - set(WAYS)
    if unknown:
        parser.error(f"--ways: no {', '.join(sorted(unknown))} among {', '.join(WAYS)}")
    return args


def device_name(way: str) -> str:
    if way == "peer":
        return torch.cuda.get_device_name()
    import torch_xla

    return str(torch_xla._XLAC._xla_device_kind(str(torch_xla.device())))


def scaled(layers: int, width: int) -> Config:
    """Return the 8B shape with other numbers of layers and, in proportion, widths and heads."""
    whole = Config()
    share = width / whole.width
    return Config(
        layers=layers,
        width=width,
        inner=int(whole.inner * share),
        heads=max(1, int(whole.heads * share)),
        kv_heads=max(1, int(whole.kv_heads * share)),
        vocabulary=int(whole.vocabulary * share),
    )


def measure_ways(config: Config, shape: str, args: argparse.Namespace) -> list[dict[str, object]]:
    """Return a line of results for each way."""
    seqs, length = map(int, shape.split("x"))
    results: list[dict[str, object]] = []
    backend = None
    for way in args.ways.split(","):
        if way == "generate":
            times = measure_generate(config, seqs, length, args.in_flight)
        else:
            if backend is None or (way == "peer") != isinstance(backend, Peer):
                backend = (Peer if way == "peer" else Xla)(config, seqs, length)
            times = measure(backend.way(way), backend.wait, args.in_flight)
        result: dict[str, object] = {
            "way": way,
            "seqs": seqs,
            "length": length,
            "layers": config.layers,
            "device": device_name(way),
            "torch": torch.__version__,
            **times,
        }
        print(json.dumps(result), flush=True)
        results.append(result)
    return results


@torch.no_grad()
def main() -> None:
    args = parse_arguments()
    results: list[dict[str, object]] = []
    for shape in args.shapes.split(","):
        results += measure_ways(scaled(args.layers, args.width), shape, args)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
