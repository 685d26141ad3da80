"""A process that is forked after PyTorch has computed with several threads."""

from testing.scripts import run_script

FORK = """
import multiprocessing
import torch, torch_xla

def child(x, expected):
    assert x.cos().sum().item() == expected
    assert torch.get_num_threads() == 4

torch.set_num_threads(4)
x = torch.randn(1 << 20)
expected = x.cos().sum().item()
for _ in range(2):
    process = multiprocessing.get_context("fork").Process(target=child, args=(x, expected))
    process.start()
    process.join(60)
    print(process.exitcode, x.cos().sum().item() == expected)
    process.kill()
"""


def test_the_childs_operations_have_threads() -> None:
    done = run_script(FORK, OMP_NUM_THREADS="4")
    assert done.stdout == "0 True\n0 True\n", done.stderr
