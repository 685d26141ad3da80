"""Host tensors that are sent to a device: small ones are copied in the calling thread."""

import pytest
from testing.scripts import run_script

# PyTorch's threads keep the name of the thread that made them.
SEND = """
import time
from pathlib import Path
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr

def threads():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count(Path("/proc/self/comm").read_text())

if SPMD: xr.use_spmd()
torch.set_num_threads(4)
torch.ones(4).to("xla")
xm.wait_device_ops()
time.sleep(1)  # on a GPU, the runtime makes threads late
before = threads()
host = torch.frombuffer(bytearray(NUMBER * 4), dtype=torch.int32)
sent = host.to("xla")
print("more threads:", threads() - before)
print("of other operations:", torch.get_num_threads())
host += 1
print("threads that add:", threads() - before)
assert sent.sum().item() == 0 and host.sum().item() == NUMBER
"""


@pytest.mark.parametrize("spmd", [False, True])
@pytest.mark.parametrize(("number", "more"), [(40_000, 0), (2_000_000, 3)])
def test_who_copies(number: int, more: int, spmd: bool) -> None:
    out = run_script(f"NUMBER, SPMD = {number}, {spmd}\n{SEND}", OMP_NUM_THREADS="4").stdout
    assert f"more threads: {more}\n" in out
    assert "of other operations: 4\n" in out
    assert "threads that add: 3\n" in out
