"""Train a small module that uses an operator of this wheel, and print useful metrics.

PJRT_DEVICE=CPU python examples/train_step.py      (or PJRT_DEVICE=CUDA)

The step is captured: traced and compiled once, then replayed. With --way=lazy it is traced each
time; with --way=openxla torch.compile compiles the forward and the backward pass. At the end all
three are timed.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.debug import metrics

import torch_xla_ext
from torch_xla_ext import ops

STEPS = 20
WAYS = ("captured", "openxla", "lazy")


class ResidualBlock(torch.nn.Module):
    """x + MLP(x), added by the custom call XlaGpuSimpleAdd."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.simple_add(x, self.layers(x))


def compilations() -> int:
    data = metrics.metric_data("CompileTime")
    return data[0] if data else 0


class Training:
    """A model that learns to reverse its input."""

    def __init__(self, way: str) -> None:
        torch.manual_seed(0)
        x = torch.randn(64, 16)
        device = torch_xla.device()
        self.x, self.y = x.to(device), x.flip(1).to(device)
        self.model = ResidualBlock(16).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.forward = self.model
        if way == "openxla":
            self.forward = torch.compile(self.model, backend="openxla")
        self.step: Callable[[], torch.Tensor] = {
            # capture finds the tensors that a step writes to, here parameters and gradients.
            "captured": torch_xla_ext.capture(self.traced_step, verify=2),  # before it is timed
            "openxla": self.synced_step,
            "lazy": self.synced_step,
        }[way]

    def traced_step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.forward(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def synced_step(self) -> torch.Tensor:
        loss = self.traced_step()
        # So far, the step was only traced. This call runs it as one program: forward, backward and
        # optimizer. Without the call, the trace would grow, and be compiled again, in each step.
        torch_xla.sync()
        return loss


def milliseconds(training: Training, steps: int = 50) -> float:
    for _ in range(3):
        training.step()
    # Steps are asynchronous: wait before a clock is started or stopped.
    xm.wait_device_ops()
    begin = time.perf_counter()
    for _ in range(steps):
        training.step()
    xm.wait_device_ops()
    return 1e3 * (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=WAYS, default="captured", help="how the steps are run")
    way = parser.parse_args().way

    print("PJRT_DEVICE:", torch_xla.runtime.device_type())  # torch_xla's choice if it was not set
    training = Training(way)
    for step in range(STEPS):
        loss = training.step()
        # .item() waits for the device, so call it seldom.
        if step % 5 == 4:
            print(f"step {step + 1:2}  loss {loss.item():.4f}  compilations {compilations()}")

    # The first checks for a slow step: programs that are compiled again and again, and operators
    # that run on the CPU because XLA lacks them (counters that begin with "aten::"; the one here is
    # .item()).
    print(metrics.short_metrics_report(metric_names=["CompileTime"], counter_names=["aten::"]))

    times = {name: milliseconds(Training(name)) for name in WAYS}
    print("a step in ms:", ", ".join(f"{name} {time:.3f}" for name, time in times.items()))


if __name__ == "__main__":
    main()
