"""Generate text as an LLM server does: a batch of prompts, a paged cache, one program per phase.

PJRT_DEVICE=CPU python examples/paged_decode.py      (or PJRT_DEVICE=CUDA)

The model is a Llama with random weights. Its keys and values are in pages of a cache, and each
sequence has a page table. Everything that changes from step to step (tokens, lengths, slots of new
tokens) is computed on the device, so two programs serve every batch: one for prompts, one for a
decode step. The same model in plain PyTorch on the CPU, with a dense cache, reads the same tokens.
Its logits must be close, and its tokens the same wherever the best choice is clear.

A decode step is captured: traced and compiled once, then replayed without its Python code. With
--way=lazy it is traced each time; with --way=openxla it runs under torch.compile.

With --tensor-parallel=N the model runs on N devices. Each has 1/N of the weights and of the caches:
some of the heads and some of the MLP's columns. mark_sharding shards them, and the rest follows
(docs/distributed.md). On the CPU, N devices are simulated.
"""

import argparse
import copy
import functools
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.nn import functional
from torch_xla import backends, runtime
from torch_xla.debug import metrics
from torch_xla.distributed import spmd

import torch_xla_ext

# attend(layer, q [..., heads, head_dim], k [..., kv_heads, head_dim], v) stores k and v in the
# cache and returns the attention's result, of q's shape.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Layer(nn.Module):
    """Attention and SwiGLU, each with RMSNorm before it and a residual connection."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = args.heads, args.kv_heads, args.head_dim
        width, inner = args.width, 3 * args.width
        self.attention_norm = nn.RMSNorm(width)
        # The rows of each kv head's queries, key and value are adjacent, so that a head is on one
        # device.
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(self.heads * self.head_dim, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor, attend: Callable) -> torch.Tensor:
        group = self.heads // self.kv_heads
        qkv = self.qkv(self.attention_norm(x))
        qkv = qkv.unflatten(-1, (self.kv_heads, group + 2, self.head_dim))
        q, k, v = qkv.split([group, 1, 1], dim=-2)
        q, k, v = q.flatten(-3, -2), k.squeeze(-2), v.squeeze(-2)
        found = attend(rotate(q, rotation), rotate(k, rotation), v)
        x = x + self.out(found.flatten(-2))
        x_norm = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(x_norm)) * self.up(x_norm))


class Llama(nn.Module):
    """A decoder of tokens [...] at positions [...]."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.width)
        self.layers = nn.ModuleList(Layer(args) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width)
        self.head = nn.Linear(args.width, args.vocabulary, bias=False)
        frequencies = 10000.0 ** -(torch.arange(0, args.head_dim, 2) / args.head_dim)
        self.register_buffer("frequencies", frequencies)
        for module in self.modules():
            if isinstance(module, nn.Linear):  # so that each block affects the prediction
                nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        angles = positions.float()[..., None, None] * self.frequencies
        rotation = torch.stack([angles.cos(), angles.sin()])
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, rotation, lambda q, k, v, n=number: attend(n, q, k, v))
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Apply rotary embedding to x [..., heads, head_dim] (https://arxiv.org/abs/2104.09864)."""
    (a, b), (cos, sin) = x.chunk(2, dim=-1), rotation
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Devices:
    """The XLA devices; with several, tensors that are moved to them are sharded or replicated."""

    def __init__(self, count: int) -> None:
        self.mesh = None
        if count > 1:
            os.environ.setdefault("CPU_NUM_DEVICES", str(count))  # before the first device is used
            runtime.use_spmd()
            found = runtime.global_runtime_device_count()
            if found != count:
                sys.exit(f"--tensor-parallel={count}, but there are {found} devices")
            self.mesh = spmd.Mesh(np.arange(count), (count,), ("model",))
        self.device = torch_xla.device()

    def place(self, tensor: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """Move a tensor to the devices, sharded along a dimension, or replicated."""
        tensor = tensor.to(self.device)
        if self.mesh is not None:
            self.mark(tensor, dim)
        return tensor

    def mark(self, tensor: torch.Tensor, dim: int | None) -> None:
        spec = ["model" if i == dim else None for i in range(tensor.dim())]
        spmd.mark_sharding(tensor, self.mesh, tuple(spec))

    def place_model(self, model: Llama) -> Llama:
        """Shard a model as Megatron-LM (arxiv.org/abs/1909.08053): two all-reduces a layer."""
        model = model.to(self.device)
        if self.mesh is not None:
            dims = {"embedding": 0, "head": 0, "qkv": 0, "gate": 0, "up": 0, "out": 1, "down": 1}
            for name, parameter in model.named_parameters():
                self.mark(parameter, dims.get(name.split(".")[-2]))
        return model


class PagedEngine:
    """Sequences in a paged cache on the XLA device.

    Keys and values are interleaved in kv pages, and one operator reads them for prompts and for
    decoding.
    """

    def __init__(self, model: Llama, args: argparse.Namespace) -> None:
        devices = Devices(args.tensor_parallel)
        self.device, place = devices.device, devices.place
        self.model, self.way = devices.place_model(model), args.way
        self.dtype, self.scale = getattr(torch, args.dtype), args.head_dim**-0.5
        self.page_size, self.max_tokens = args.page_size, args.prompts * args.longest
        pages_per_seq = -(-(args.longest + args.new_tokens) // args.page_size)
        num_pages = args.prompts * pages_per_seq
        # In a server, a scheduler assigns pages as sequences grow; here they are shuffled once.
        pages = torch.randperm(num_pages, dtype=torch.int32)
        self.tables = place(pages.view(args.prompts, pages_per_seq))
        shape = num_pages, args.page_size, 2 * args.kv_heads, args.head_dim
        self.caches = [
            place(torch.zeros(shape, dtype=self.dtype), dim=2) for _ in range(args.layers)
        ]
        self.one_query = place(torch.arange(args.prompts + 1, dtype=torch.int32))
        self.num_seqs = place(torch.tensor([args.prompts], dtype=torch.int32))
        # The next step's input. Steps write into these tensors.
        self.tokens = place(torch.zeros(args.prompts, dtype=torch.int32))
        self.lengths = place(torch.zeros(args.prompts, dtype=torch.int32))
        self.run_step = {
            "captured": torch_xla_ext.capture,
            "openxla": functools.partial(torch.compile, backend="openxla"),
            "lazy": lambda step: step,
        }[args.way](self.step)

    def attend(self, cu_q_lens: torch.Tensor, slots: torch.Tensor) -> Attend:
        """Attend by queries cu_q_lens[s] to cu_q_lens[s+1] - 1, the last tokens of sequence s."""

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            kv_pages = self.caches[layer]
            q, k, v = (x.to(self.dtype) for x in (q, k, v))
            torch.ops.xla_gpu.kv_pages_update(k, v, slots, kv_pages)
            return torch.ops.xla_gpu.ragged_paged_attention(
                q,
                kv_pages,
                self.lengths,
                self.tables,
                cu_q_lens,
                self.num_seqs,
                sm_scale=self.scale,
            ).float()

        return attend

    def slots(self, sequences: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        page = self.tables[sequences, positions // self.page_size]
        return page * self.page_size + positions % self.page_size

    def prefill(self, prompts: list[torch.Tensor]) -> torch.Tensor:
        """Start new sequences; return the logits after each prompt, [prompts, vocabulary]."""
        # All prompts one after another, padded to one size. The host passes nothing else.
        tokens = torch.zeros(self.max_tokens, dtype=torch.int32)
        cu_q_lens = torch.tensor([0, *map(len, prompts)], dtype=torch.int32).cumsum(0).int()
        tokens[: cu_q_lens[-1]] = torch.cat(prompts)
        tokens, cu_q_lens = tokens.to(self.device), cu_q_lens.to(self.device)

        self.lengths.copy_(cu_q_lens[1:] - cu_q_lens[:-1])
        row = torch.arange(self.max_tokens, device=self.device, dtype=torch.int32)
        sequence = (row[:, None] >= cu_q_lens[1:]).sum(1, dtype=torch.int32)
        is_padding = sequence == len(prompts)
        sequence = torch.where(is_padding, 0, sequence)
        position = torch.where(is_padding, 0, row - cu_q_lens[sequence])
        slots = torch.where(is_padding, -1, self.slots(sequence, position))
        x = self.model(tokens, position, self.attend(cu_q_lens, slots))
        logits = self.model.logits(x[cu_q_lens[1:] - 1])
        self.tokens.copy_(logits.argmax(-1))
        torch_xla.sync()  # starts the traced program, without waiting for it
        return logits

    def decode(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Append one token to each sequence; return the tokens and the logits after them."""
        results = self.run_step()
        if self.way == "lazy":
            torch_xla.sync()
        return results

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        position = self.lengths.clone()
        self.lengths.add_(1)
        slots = self.slots(self.one_query[:-1], position)
        attend = self.attend(self.one_query, slots)
        logits = self.model.logits(self.model(self.tokens, position, attend))
        tokens = logits.argmax(-1).int()
        self.tokens.copy_(tokens)
        return tokens, logits


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Compute attention in float32, rounded to q's dtype as the operators' results are.

    q [batch, queries, heads, head_dim], k and v [batch, keys, kv_heads, head_dim], mask [queries,
    keys] or [batch, 1, queries, keys].
    """
    q32, k32, v32 = (x.float().transpose(1, 2) for x in (q, k, v))
    out = functional.scaled_dot_product_attention(q32, k32, v32, mask, enable_gqa=True)
    return out.transpose(1, 2).to(q.dtype).float()


class DenseReference:
    """The same engine in plain PyTorch: a cache [prompts, longest sequence, kv_heads, head_dim]."""

    def __init__(self, model: Llama, args: argparse.Namespace) -> None:
        self.model, self.dtype = model, getattr(torch, args.dtype)
        self.size = args.longest + args.new_tokens
        shape = (args.prompts, self.size, args.kv_heads, args.head_dim)
        self.caches = [torch.zeros(2, *shape, dtype=self.dtype) for _ in range(args.layers)]
        self.rows = torch.arange(args.prompts)[:, None]

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(self.size) <= positions[..., None])[:, None]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = self.caches[layer]
            keys[self.rows, positions] = k.to(self.dtype)
            values[self.rows, positions] = v.to(self.dtype)
            return dense_attention(q.to(self.dtype), keys, values, mask)

        return self.model(tokens, positions, attend)

    def read(self, prompts: list[torch.Tensor], chosen: torch.Tensor) -> torch.Tensor:
        """Return the logits [steps, prompts, vocabulary] for the tokens [steps, prompts]."""
        tokens = nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        lengths = torch.tensor([[len(prompt)] for prompt in prompts])
        # Padding in the cache is never read: the sequence overwrites it first.
        x = self.forward(tokens, torch.arange(tokens.shape[1]).expand(tokens.shape))
        logits = [self.model.logits(x[self.rows[:, 0], lengths[:, 0] - 1])]
        for step in range(len(chosen) - 1):
            x = self.forward(chosen[step][:, None], lengths + step)
            logits.append(self.model.logits(x[:, 0]))
        return torch.stack(logits)


def compilations() -> int:
    data = metrics.metric_data("CompileTime")
    return data[0] if data else 0


def generate(
    engine: PagedEngine, prompts: list[torch.Tensor], steps: int, name: str
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return tokens, their logits, and the number of programs that were compiled.

    The tokens are [steps, prompts], the logits [steps, prompts, vocabulary]. Programs are counted
    before results are read, since reading a sharded result gathers it with a further program.
    """
    compiled = compilations()
    xm.wait_device_ops()
    begin = time.perf_counter()
    logits = [engine.prefill(prompts)]
    tokens = [engine.tokens.clone()]  # the next step writes into it
    torch_xla.sync()
    xm.wait_device_ops()
    middle = time.perf_counter()
    count = sum(map(len, prompts))
    print(
        f"{name}: prefill {count} tokens of {len(prompts)} prompts: "
        f"{count / (middle - begin):.0f} tokens/s, compilations so far {compilations()}"
    )
    for step in range(1, steps):
        next_tokens, next_logits = engine.decode()
        tokens.append(next_tokens)
        logits.append(next_logits)
        if step % 16 == 0:
            print(f"{name}: step {step} of {steps - 1}, compilations so far {compilations()}")
    xm.wait_device_ops()
    count = (steps - 1) * len(prompts)
    print(
        f"{name}: decode {count} tokens, {len(prompts)} a step: "
        f"{count / (time.perf_counter() - middle):.0f} tokens/s"
    )
    compiled = compilations() - compiled
    return torch.stack(tokens).cpu(), torch.stack(logits).cpu(), compiled


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    sizes = {
        "layers": (4, "of the model"),
        "width": (512, "of its residual stream"),
        "heads": (8, "of queries"),
        "kv-heads": (2, "of keys and values"),
        "head-dim": (64, "64, 96, 128, 192 or 256"),
        "vocabulary": (1024, "number of tokens"),
        "page-size": (16, "tokens in a page of the cache"),
        "prompts": (8, "in the batch"),
        "longest": (200, "tokens of a prompt, at most"),
        "new-tokens": (64, "for each prompt"),
    }
    for name, (default, text) in sizes.items():
        parser.add_argument("--" + name, type=int, default=default, metavar="N", help=text)
    parser.add_argument(
        "--dtype", choices=["float16", "bfloat16"], default="float16", help="of the cache"
    )
    parser.add_argument(
        "--way",
        choices=["captured", "openxla", "lazy"],
        default="captured",
        help="how a decode step is run",
    )
    parser.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="number of devices of this process",
    )
    parser.add_argument("--seed", type=int, default=5, help="seed of weights and prompts")
    args = parser.parse_args()
    # Tolerances for logits of about 1: the cache and the operators' arguments and results are
    # rounded.
    args.tolerance = {"float16": 0.01, "bfloat16": 0.08}[args.dtype]
    return args


@torch.no_grad()
def main() -> int:
    args = parse_arguments()
    # A GPU's float32 products are TF32 by default, too coarse to choose the CPU's tokens.
    backends.set_mat_mul_precision("highest")
    torch.manual_seed(args.seed)
    model = Llama(args)

    def random_prompts() -> list[torch.Tensor]:
        lengths = torch.randint(1, args.longest + 1, (args.prompts,))
        return [torch.randint(args.vocabulary, (n,), dtype=torch.int32) for n in lengths]

    print("PJRT_DEVICE:", runtime.device_type())  # torch_xla's choice if it was not set
    warm_up, prompts = random_prompts(), random_prompts()
    plain = copy.deepcopy(model)
    engine = PagedEngine(model, args)
    *_, programs = generate(engine, warm_up, min(3, args.new_tokens), "warm-up")
    tokens, logits, recompiled = generate(engine, prompts, args.new_tokens, "run")

    print("reference: the same model on the CPU, with a dense cache, reads the tokens", flush=True)
    reference = DenseReference(plain, args).read(prompts, tokens)
    error = (logits - reference).abs().max().item()
    top = reference.topk(2).values
    is_clear = top[..., 0] - top[..., 1] > 2 * args.tolerance
    equal = torch.equal(tokens[is_clear], reference.argmax(-1).int()[is_clear])
    print(f"programs compiled: {programs} in the warm-up, {recompiled} in the run")
    print(f"logits: largest difference from the reference's {error:.2e}, allowed {args.tolerance}")
    count = f"{is_clear.sum()} of {is_clear.numel()}"
    print(f"choices: {count} are clear; equal the reference's: {equal}")
    # torch.compile compiles a sharded step again if a prefill left other shardings.
    again = 1 if args.way == "openxla" and args.tensor_parallel > 1 else 0
    return 0 if equal and error <= args.tolerance and recompiled <= again else 1


if __name__ == "__main__":
    sys.exit(main())
