"""torch.manual_seed sets the seeds of all devices, XLA's among them."""

import pickle
from collections.abc import Callable

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from testing.scripts import run_script
from torch.utils.data import DataLoader

import torch_xla_ext

HUGE = [0, 1, 2**31, 2**63 + 5, 2**64 - 1, -1, -(2**63)]


def drawn() -> list[float]:
    return torch.rand(8, device="xla").tolist()


def seeded(seed: int) -> list[float]:
    torch.manual_seed(seed)
    return drawn()


def in_a_process(program: str) -> str:
    result = run_script("import os, torch, torch_xla, torch_xla.runtime as xr\n" + program)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_seed_determines_the_numbers() -> None:
    lists = {seed: seeded(seed) for seed in HUGE}
    assert len({tuple(numbers) for numbers in lists.values()}) == len(HUGE) - 1
    assert lists[-1] == lists[2**64 - 1]  # as on the CPU
    assert all(seeded(seed) == numbers for seed, numbers in lists.items())
    assert drawn() != lists[HUGE[-1]]


def test_a_compiled_function_draws_the_same_in_its_first_call() -> None:
    """Compilation would change the seed, because it ends steps."""

    @torch.compile(backend="openxla")
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.ones(64).to("xla").requires_grad_()  # so that backward() is compiled, too
    numbers = []
    for _ in range(3):
        torch.manual_seed(5)
        results = [step(x), step(x)]
        sum(results).sum().backward()
        numbers.append([result.tolist() for result in results] + drawn())
    assert numbers[0] == numbers[1] == numbers[2]
    assert numbers[0][0] != numbers[0][1]


def test_wrong_seeds_are_refused_and_change_nothing() -> None:
    expected = [seeded(1), drawn()]
    assert seeded(1) == expected[0]
    with pytest.raises(RuntimeError, match="Overflow"):
        torch.manual_seed(2**64)
    assert drawn() == expected[1]


def test_the_numbers_are_those_of_torch_xla_manual_seed() -> None:
    numbers = seeded(5)
    torch_xla.manual_seed(5)
    assert drawn() == numbers


def test_seed_draws_one() -> None:
    assert torch.seed() == xm.get_rng_state() % 2**64
    assert torch.random.seed() != torch.random.seed()


def test_fork_rng_is_of_the_cpu() -> None:
    torch.manual_seed(0)
    numbers = drawn() + drawn()
    torch.manual_seed(0)
    first = drawn()
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
    assert first + drawn() == numbers


def test_before_there_is_a_client() -> None:
    program = (
        "torch.manual_seed({})\n"
        "assert not torch_xla._XLAC._xla_runtime_is_initialized()\n"
        "{}\nprint(torch.rand(8, device='xla').tolist())"
    )
    lists = [in_a_process(program.format(seed, "")) for seed in (1, 1, 2)]
    assert lists[0] == lists[1] != lists[2]
    assert lists[0] == f"{seeded(1)}\n"
    # The last seed counts.
    assert in_a_process(program.format(2, "torch.manual_seed(1)")) == lists[0]
    assert in_a_process(program.format(2, "torch_xla.manual_seed(1)")) == lists[0]


def test_each_device_of_the_process() -> None:
    result = in_a_process(
        "os.environ['CPU_NUM_DEVICES'] = '2'\n"
        "def drawn(): return [torch.rand(4, device=f'xla:{i}').tolist() for i in (0, 1)]\n"
        "torch.manual_seed(1); before = drawn(); drawn()\n"
        "torch.manual_seed(1); assert drawn() == before\n"
        "torch.manual_seed(2); assert not any(a == b for a, b in zip(drawn(), before))\n"
        "print('ok')"
    )
    assert result == "ok\n"


def test_several_devices_of_one_program() -> None:
    program = (
        "os.environ['CPU_NUM_DEVICES'] = '2'\n"
        "{}\ntorch.manual_seed(1)\n{}\nprint(torch.rand(4, device='xla').tolist())"
    )
    use = "xr.use_spmd()"
    lists = {in_a_process(program.format(*order)) for order in [(use, ""), ("", use)]}
    assert len(lists) == 1


def test_workers_of_a_loader_leave_the_devices_alone() -> None:
    expected = [seeded(1), drawn()]
    assert seeded(1) == expected[0]
    # The data are no tensors, because workers send tensors by a socket in the temporary folder,
    # whose path is too long in Bazel's sandbox.
    data = DataLoader(range(4), num_workers=2, collate_fn=list, generator=torch.Generator())
    assert len(list(data)) == 4
    assert drawn() == expected[1]


@pytest.mark.filterwarnings("ignore")
def test_in_a_captured_step() -> None:
    """Setting the seed is not replayed: each call runs as it would without capture."""
    w = torch.ones(4, device="xla")

    def step(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.nn.functional.dropout(x * w, 0.5)

    x = torch.ones(4, device="xla")
    expected = step(x).tolist()
    captured = torch_xla_ext.capture(step)
    try:
        assert [captured(x).tolist() for _ in range(3)] == [expected] * 3
    except torch_xla_ext.CaptureError as error:
        assert "random" in str(error)


def test_in_a_compiled_function() -> None:
    @torch.compile(backend="openxla")
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return x + torch.rand(4, device="xla")

    x = torch.zeros(4, device="xla")
    function(x)  # which compiles it, and draws while it does
    assert [function(x).tolist() for _ in range(3)] == [function(x).tolist()] * 3


DRAWN = {
    "rand": lambda g: torch.rand(4, device="xla", generator=g),
    "randperm": lambda g: torch.randperm(9, device="xla", generator=g),
    "exponential_": lambda g: torch.zeros(4, device="xla").exponential_(2.0, generator=g),
    "cauchy_": lambda g: torch.zeros(4, device="xla").cauchy_(generator=g),
    "geometric_": lambda g: torch.zeros(9, device="xla").geometric_(0.1, generator=g),
    "log_normal_": lambda g: torch.zeros(4, device="xla").log_normal_(generator=g),
}


@pytest.mark.parametrize("device", ["cpu", "xla", "xla:0", torch.device("xla")])
@pytest.mark.parametrize("name", DRAWN)
def test_a_generator_determines_the_numbers(name: str, device: str | torch.device) -> None:
    draw = DRAWN[name]
    generator = torch.Generator(device=device).manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert generator.device.type == torch.device(device).type
    first, second = draw(generator).tolist(), draw(generator).tolist()
    assert first != second
    assert draw(generator.manual_seed(5)).tolist() == first
    copy = pickle.loads(pickle.dumps(generator))
    assert copy.device == generator.device
    assert draw(copy).tolist() == draw(generator.clone_state()).tolist() == second


def test_other_generators_are_pytorchs() -> None:
    assert type(torch.Generator()) is torch._C.Generator
    assert isinstance(torch.default_generator, torch.Generator)
    with pytest.raises(RuntimeError, match="META device type not an accelerator"):
        torch.Generator(device="meta")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.exponential_(-1.0), "exponential_ expects lambda > 0.0"),
        (lambda x: x.cauchy_(0, -1.0), "cauchy_ expects sigma > 0.0"),
        (lambda x: x.geometric_(2.0), r"geometric_ expects p in \(0, 1\)"),
        (lambda x: x.log_normal_(0, -1.0), "log_normal_ expects std > 0.0"),
        (lambda x: x.int().cauchy_(), "expects a floating point dtype"),
    ],
)
def test_wrong_parameters(call: Callable[[torch.Tensor], object], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        call(torch.zeros(2, device="xla"))


@pytest.mark.parametrize(
    "arguments", [{}, {"device_type": "xla"}, {"device_type": "xla", "devices": [0]}]
)
def test_forked_states(arguments: dict[str, object]) -> None:
    expected = [seeded(1), drawn()]
    assert seeded(1) == expected[0]
    on_cpu = torch.get_rng_state()
    with torch.random.fork_rng(**arguments):
        torch.manual_seed(7)
        drawn()
        torch.rand(3)
    assert drawn() == expected[1]
    assert torch.equal(torch.get_rng_state(), on_cpu)


def test_a_fork_that_is_not_enabled() -> None:
    expected = seeded(7)
    torch.manual_seed(1)
    with torch.random.fork_rng(enabled=False):
        torch.manual_seed(7)
    assert drawn() == expected
