"""Collectives of torch_xla.core.xla_model in one process, under SPMD, and in threads."""

import pytest
import torch
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
from testing.scripts import run_script


def test_one_process(device: torch.device) -> None:
    """Scales were ignored, and groups of devices that do not exist gave zeros."""
    values = torch.arange(6.0).view(3, 2)
    x = values.to(device).requires_grad_()
    total = xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5, groups=[[0]])
    total.square().sum().backward()
    torch.testing.assert_close(total.detach().cpu(), values / 2)
    torch.testing.assert_close(x.grad.cpu(), values / 2)
    in_place = values.to(device)
    assert xm.all_reduce(xm.REDUCE_SUM, [in_place], scale=0.25)[0] is in_place
    torch.testing.assert_close(in_place.cpu(), values / 4)
    x = values.to(device)
    xm.collective_broadcast([x])
    for y in (
        xm.all_gather(x),
        xm.all_gather(x, output=torch.zeros_like(x), pin_layout=False),
        *xm.all_gather_bucketized([x, x])[1:],
        xm.all_to_all(x, 0, 1, 1),
        xm.collective_permute(x, [[0, 0]]),
        xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 1),
        torch.compile(lambda x: xm.all_reduce(xm.REDUCE_SUM, x, 2.0), backend="openxla")(x) / 2,
        xf.all_reduce(xm.REDUCE_SUM, x, 2.0) / 2,
    ):
        torch.testing.assert_close(y.cpu(), values)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("all_reduce", {"reduce_type": "sum", "groups": [[0, 1]]}),
        ("all_gather", {"groups": [[0, 1]]}),
        ("all_to_all", {"split_dimension": 0, "concat_dimension": 0, "split_count": 2}),
        ("collective_permute", {"pairs": [[0, 1], [1, 0]]}),
        (
            "reduce_scatter",
            {"reduce_type": "sum", "scale": 1.0, "scatter_dim": 0, "shard_count": 2},
        ),
        ("collective_broadcast", {"root_ordinal": 1}),
        ("recv", {"channel_id": 1}),
        ("send", {"channel_id": 1}),
    ],
)
def test_one_process_is_not_several(name: str, arguments: dict, device: torch.device) -> None:
    """These were wrong numbers, or failed with C++ stacks."""
    operand = {
        "all_reduce": "inputs",
        "reduce_scatter": "input",
        "recv": "output",
        "collective_broadcast": "tensors",
    }.get(name, "value")
    x = torch.ones(2, 2).to(device)
    call = {operand: [x] if operand == "tensors" else x}
    with pytest.raises(RuntimeError, match=f"{name}: .* is for several processes, but this"):
        getattr(xm, name)(**call, **arguments)
    assert x.tolist() == [[1.0, 1.0]] * 2


SPMD = """
import numpy as np, torch, torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (4,), ("x",))

def sharded():
    x = torch.arange(8.0).view(4, 2).to("xla")
    xs.mark_sharding(x, mesh, ("x", None))
    return x

x = sharded()
xm.all_reduce("sum", [x], 2.0)
results = (x, xm.all_reduce("sum", sharded(), 0.5), xm.all_gather(sharded()))
print([t.sum().item() for t in results])
calls = {
    "all_reduce": lambda x: xm.all_reduce("sum", x, groups=[[0, 1], [2, 3]]),
    "all_gather": lambda x: xm.all_gather(x, groups=[[0, 1], [2, 3]]),
    "reduce_scatter": lambda x: xm.reduce_scatter("sum", x, 1.0, 0, 4),
    "all_to_all": lambda x: xm.all_to_all(x, 0, 1, 4),
    "collective_permute": lambda x: xm.collective_permute(x, [[0, 1], [1, 0]]),
    "collective_broadcast": lambda x: xm.collective_broadcast([x], 1),
    "send": lambda x: xm.send(x, 1),
    "recv": lambda x: xm.recv(x, 1),
}
for name, call in calls.items():
    try:
        call(sharded())
    except RuntimeError as error:
        print(str(error).startswith(f"{name}: under use_spmd() a program has whole tensors"))
"""


def test_spmd() -> None:
    done = run_script(SPMD, timeout=120, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
    assert done.stdout.split("\n") == ["[56.0, 14.0, 28.0]", *["True"] * 8, ""], done.stderr


UNCONNECTED = """
import torch, torch_xla, torch.distributed as dist, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
parameter = torch.ones(2, device="xla").requires_grad_()
optimizer = torch.optim.SGD([parameter], lr=0.1)
parameter.grad = torch.ones(2, device="xla")
dist.init_process_group("xla", init_method="xla://")
for call in (
    lambda: xm.optimizer_step(optimizer),
    lambda: xm.rendezvous("end"),
    lambda: dist.all_reduce(parameter.grad),
    lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("xla")),
):
    try:
        call()
    except RuntimeError as error:
        print(str(error).partition(": ")[2])
"""


def test_processes_that_are_not_connected() -> None:
    """Each process trained its own model."""
    done = run_script(UNCONNECTED, timeout=120, WORLD_SIZE="2", RANK="0", PJRT_DEVICE="CPU")
    text = "WORLD_SIZE is 2, but this process is not connected to others; CPU devices of several"
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all(line.startswith(text) for line in lines), done.stderr


COLLECTIVES = """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
from torch_xla._internal import pjrt

CALLS = {
    "all_reduce": lambda x: xm.all_reduce("sum", x),
    "all_reduce of a list": lambda x: xm.all_reduce("sum", [x]),
    "all_gather": lambda x: xm.all_gather(x),
    "reduce_scatter": lambda x: xm.reduce_scatter("sum", x, 1.0, 0, 2),
    "all_to_all": lambda x: xm.all_to_all(x, 0, 0, 2),
    "collective_permute": lambda x: xm.collective_permute(x, [[0, 1], [1, 0]]),
}

def work():
    x = torch.arange(2.0, device=torch_xla.device()) + xr.global_ordinal()
    refused = 0
    for call in CALLS.values():
        try:
            call(x)
            torch_xla.sync()
        except RuntimeError as error:
            refused += "2 CPU devices, and XLA:CPU has no collectives among threads" in str(error)
    return refused, x.tolist()

found = pjrt._run_thread_per_device(0, 1, work, pjrt.initialize_multiprocess)
print([found[rank] for rank in sorted(found)])
"""


def test_collectives_of_threads_with_a_cpu_device_each() -> None:
    done = run_script(COLLECTIVES, timeout=120, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2")
    assert done.stdout.strip() == "[(6, [0.0, 1.0]), (6, [1.0, 2.0])]", done.stderr
