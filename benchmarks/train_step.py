r"""Measure the time and peak device memory of a training step of a Llama, a ViT or an MoE.

    PJRT_DEVICE=CUDA python benchmarks/train_step.py --way captured
    python benchmarks/train_step.py --way compile    # the peer: a CUDA build of PyTorch

On several GPUs of one host, `--batch` being that of all GPUs:

    PJRT_DEVICE=CUDA python benchmarks/train_step.py --model llama-2b --batch 8 --devices 4
    torchrun --nproc-per-node=4 benchmarks/train_step.py --model llama-2b --batch 8 --way compile

The whole 8B, whose weights are drawn on the devices, with checkpoints of activations:

    PJRT_DEVICE=CUDA python benchmarks/train_step.py --model llama-8b --batch 4 --length 8192 \
        --devices 4 --checkpoints

transformers' Qwen3-MoE, with eight layers and a quarter of the experts of Qwen3-30B-A3B. Both sides
run it with transformers 5, whose experts are grouped matmuls (experts_implementation "grouped_mm").
With transformers 4, which has a module for each expert, this wheel's step stacks their weights and
is slower. The weights are the same ones, so that losses can be compared:

    PJRT_DEVICE=CUDA python benchmarks/train_step.py --model moe
    python benchmarks/train_step.py --model moe --way compile

The same file runs with this wheel (captured, openxla, lazy), with a CUDA build of PyTorch (compile,
eager), and with torch_xla_gpu (torch_tpu: docs/todays_pytorch.md). The models are in bfloat16, the
first two in plain PyTorch with torch.nn.functional.scaled_dot_product_attention; the optimizer is
AdamW. Prints one line of JSON: milliseconds of a step that is waited for, and of steps in flight,
the host's part, and TFLOP/s and gigabytes of one GPU. With several processes, the losses are for
the first process's examples.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from train_models import CLASSES, IMAGE, MODELS, Llama, Vit, draw, in_bfloat16

OURS, PEERS = ("captured", "openxla", "lazy"), ("compile", "eager")
TORCH_TPU = "torch_tpu"


@torch.no_grad()
def draw_on_device(parameter: nn.Parameter) -> None:
    """Draw a matrix, differently in each way; a vector, of a norm, is ones."""
    if parameter.dim() == 1:
        nn.init.ones_(parameter)
    else:
        nn.init.normal_(parameter, std=0.02)


class Spmd:
    """This wheel's devices: one process that marks the batch and parameters as sharded."""

    def __init__(self, count: int, sharding: str) -> None:
        import numpy as np
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr

        if count > 1:
            xr.use_spmd()
            found = xr.global_runtime_device_count()
            if found != count:
                raise SystemExit(f"--devices={count}, but this process has {found} devices")
            self._mesh = xs.Mesh(np.arange(count), (count,), ("devices",))
        self._mark, self._is_divided, self._sharding = xs.mark_sharding, count > 1, sharding

    def divide_parameter(self, parameter: torch.Tensor) -> None:
        """Shard a parameter along its first dimension, under FSDP."""
        if self._sharding == "fsdp":
            self.divide(parameter)

    def divide(self, tensor: torch.Tensor) -> None:
        """Shard a tensor along its first dimension."""
        if self._is_divided:
            self._mark(tensor, self._mesh, ("devices", *[None] * (tensor.dim() - 1)))


class Processes:
    """The peer's devices: one process each, which torchrun starts."""

    def __init__(self, sharding: str) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.count, self._sharding = int(os.environ.get("WORLD_SIZE", "1")), sharding
        if self.count > 1:
            torch.cuda.set_device(self.rank)
            torch.distributed.init_process_group("nccl")

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this process's examples of a batch."""
        return tensor.chunk(self.count)[self.rank].contiguous()

    def divide(self, model: nn.Module, is_compiled: bool) -> nn.Module:
        """Apply FSDP2 or DistributedDataParallel; compile by layers or as a whole."""
        if self.count > 1 and self._sharding == "fsdp":
            from torch.distributed.fsdp import fully_shard

            for layer in model.layers:
                if is_compiled:
                    layer.compile()
                fully_shard(layer)
            return fully_shard(model)
        if self.count > 1:
            model = nn.parallel.DistributedDataParallel(
                model, gradient_as_bucket_view=True, bucket_cap_mb=100
            )
        return torch.compile(model) if is_compiled else model


class Training:
    """A model, its data and its optimizer; `run` is a step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.is_ours = args.way in OURS
        processes = Processes(args.sharding)
        self.is_first, self.num_devices = processes.rank == 0, max(args.devices, processes.count)
        if self.is_ours:
            spmd = Spmd(args.devices, args.sharding)
        if args.way == TORCH_TPU:
            import torch_xla_gpu

            self.device = torch.device(torch_xla_gpu.device.TYPE)
        elif self.is_ours:
            import torch_xla

            self.device = torch_xla.device()
        else:
            self.device = torch.device("cuda", processes.rank)
        torch.manual_seed(0)
        is_large = args.model == "llama-8b"
        with torch.device(self.device if is_large and self.is_ours else "meta"):
            self.model = in_bfloat16(MODELS[args.model](args.length))
        if not is_large:  # on the host, so that all ways start from the same weights
            self.model.to_empty(device="cpu")
            draw(self.model)
            self.model.make_buffers()
            self.model.to(self.device)
        elif self.is_ours:
            self.model.make_buffers()
        if isinstance(self.model, Llama):
            self.model.keeps_activations = not args.checkpoints
        self.num_flops = self.model.flops(args.batch, args.length)
        if not isinstance(self.model, Vit):
            tokens = torch.randint(self.model.VOCABULARY, (args.batch, args.length + 1))
            data = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        else:
            images = torch.randn(args.batch, 3, IMAGE, IMAGE).bfloat16()
            data = images, torch.randint(CLASSES, (args.batch,))
        data = map(processes.part, data)
        self.data, self.labels = batch = tuple(tensor.to(self.device) for tensor in data)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.model
        if self.is_ours:
            for parameter in self.model.parameters():
                spmd.divide_parameter(parameter)
                if is_large:
                    draw_on_device(parameter)
                    torch_xla.sync()
            for tensor in batch:
                spmd.divide(tensor)
        elif args.way in PEERS:
            self.forward = processes.divide(self.model, args.way == "compile")
            if is_large:
                self.model.to_empty(device=self.device)
                for parameter in self.model.parameters():
                    draw_on_device(parameter)
                self.model.make_buffers()
        # A captured step reads the learning rate on the device.
        rate = torch.tensor(1e-4, device=self.device) if args.way == "captured" else 1e-4
        # Dynamo does not compile a fused optimizer, and torch-tpu has none.
        is_compiled = args.way in ("openxla", TORCH_TPU)
        options = {"capturable": True} if is_compiled else {"fused": True}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, **options)
        if args.way == TORCH_TPU:
            self.forward = torch.compile(self.model)
            self.optimizer.step = torch.compile(self.optimizer.step)
        self.run: Callable[[], torch.Tensor] = self.step
        if args.way == "captured":
            import torch_xla_ext

            self.run = torch_xla_ext.capture(self.step, verify=2)
        elif self.is_ours:
            self.run = self.synced_step
            if args.way == "openxla":  # including the optimizer
                self.step = torch.compile(self.step, backend="openxla")

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        logits = self.forward(self.data)
        loss = functional.cross_entropy(logits.flatten(0, -2).float(), self.labels.flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def synced_step(self) -> torch.Tensor:
        import torch_xla

        loss = self.step()
        torch_xla.sync()
        return loss

    def wait(self) -> None:
        if self.is_ours:
            import torch_xla.core.xla_model as xm

            xm.wait_device_ops()
        else:
            torch.accelerator.synchronize()

    def peak_gigabytes(self) -> float | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 1e9
        if not self.is_ours:  # torch-tpu counts no bytes
            return None
        import torch_xla.core.xla_model as xm

        try:
            return xm.get_memory_info(self.device)["peak_bytes_used"] / 1e9
        except (KeyError, RuntimeError):  # XLA:CPU counts no bytes
            return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=(*OURS, *PEERS, TORCH_TPU), default="captured")
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--batch", type=int, default=8, help="sequences or images (8)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a sequence (1024)")
    parser.add_argument("--devices", type=int, default=1, help="of this wheel's process (1)")
    parser.add_argument(
        "--sharding",
        choices=("fsdp", "dp"),
        default="fsdp",
        help="what several devices share: the batch and the parameters (fsdp), or the batch alone",
    )
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="compute a layer's activations again in the backward pass, of a Llama",
    )
    parser.add_argument("--steps", type=int, default=20, help="to time, waited and in flight (20)")
    args = parser.parse_args()
    training = Training(args)
    losses = [round(training.run().item(), 4) for _ in range(5)]
    training.wait()
    waited, host = [], []
    for _ in range(args.steps):
        begin = time.perf_counter()
        training.run()
        host.append(time.perf_counter() - begin)
        training.wait()
        waited.append(time.perf_counter() - begin)
    # Steps in flight hold more memory than waited ones, so the first ones grow the allocator.
    for _ in range(args.steps):
        training.run()
    training.wait()
    begin = time.perf_counter()
    for _ in range(args.steps):
        training.run()
    training.wait()
    in_flight = (time.perf_counter() - begin) / args.steps
    if not training.is_first:
        return
    flops = training.num_flops / training.num_devices
    peak = training.peak_gigabytes()
    row = {
        "model": args.model,
        "batch": args.batch,
        "length": args.length,
        "way": args.way,
        "devices": training.num_devices,
        "sharding": args.sharding if training.num_devices > 1 else None,
        "in_flight_ms": round(1e3 * in_flight, 2),
        "waited_ms": round(1e3 * statistics.median(waited), 2),
        "host_ms": round(1e3 * statistics.median(host), 2),
        "tflops": round(flops / in_flight / 1e12, 1),
        "peak_gb": None if peak is None else round(peak, 2),
        "tokens_s": round(args.batch * args.length / in_flight / training.num_devices),
        "losses": losses,
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
