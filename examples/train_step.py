"""Trains a small module that uses an operator of this wheel, and shows what to look at.

PJRT_DEVICE=CPU python examples/train_step.py      (or PJRT_DEVICE=CUDA)
"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.debug import metrics

from torch_xla_ext import ops

STEPS = 20


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


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    y = x.flip(1)

    device = torch_xla.device()
    model = ResidualBlock(16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = x.to(device), y.to(device)

    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        # Until here XLA has only traced. This runs the step, as one program: forward, backward and
        # optimizer. Without it the trace would grow from step to step, and compile anew each time.
        torch_xla.sync()
        # .item() waits for the device: do it seldom.
        if step % 5 == 4:
            print(f"step {step + 1:2}  loss {loss.item():.4f}  compilations {compilations()}")

    # sync() does not wait. Before a clock is stopped, this does.
    xm.wait_device_ops()

    # The first thing to look at when a step is slow: programs that are compiled again and again,
    # and operators that XLA has not, which run on the CPU (counters that begin with "aten::"; the
    # one here is .item()).
    print(metrics.short_metrics_report(metric_names=["CompileTime"], counter_names=["aten::"]))


if __name__ == "__main__":
    main()
