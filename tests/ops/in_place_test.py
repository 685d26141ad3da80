"""Operators that write to their arguments, here to paged caches, copy nothing and leak nothing."""

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch_xla
from testing.paged import int32
from testing.scripts import run_script
from testing.xla import PLATFORM, compilations, custom_call_lines, hlo
from torch._dynamo.utils import counters
from torch_xla.core import xla_model
from torch_xla.debug import metrics

from torch_xla_ext import ops
from torch_xla_ext.ops import _paged

for_each_device = pytest.mark.parametrize("device_type", ["cpu", "xla"])
LAYERS, HEADS, HEAD_DIM, PAGE_SIZE, NUM_PAGES = 3, 2, 64, 8, 6
CACHE = f"f16[{NUM_PAGES},{PAGE_SIZE},{HEADS},{HEAD_DIM}]"


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def new_caches(device: str, count: int = 2) -> list[torch.Tensor]:
    shape = (NUM_PAGES, PAGE_SIZE, HEADS, HEAD_DIM)
    return [torch.zeros(shape, dtype=torch.float16).to(device) for _ in range(count)]


def tokens(device: str, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    key = torch.randn(len(slots), HEADS, HEAD_DIM).half()
    return key.to(device), (key + 1).to(device), torch.tensor(slots).to(device)


def step(
    x: torch.Tensor,
    caches: list[torch.Tensor],
    slots: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    donate: bool = False,
) -> torch.Tensor:
    """A decode step of a model of several layers, without weights. x: [num_seqs, 128]."""
    for keys, values in zip(caches[::2], caches[1::2], strict=True):
        if donate:
            torch.ops.xla.dynamo_set_buffer_donor_(keys, True)
            torch.ops.xla.dynamo_set_buffer_donor_(values, True)
        token = x.reshape(-1, HEADS, HEAD_DIM)
        ops.kv_cache_update(token, token.flip(1), slots, keys, values)
        x = x + ops.paged_attention(token, keys, values, tables, lengths, 0.125).reshape(x.shape)
        x = x / x.norm()
    return x


def run_steps(
    device: str, count: int, function: Callable[..., torch.Tensor] = step, **options: object
) -> Iterator[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(2, HEADS * HEAD_DIM).half().to(device)
    caches = new_caches(device, 2 * LAYERS)
    tables = torch.tensor([[3, 1], [0, 5]])
    if device == "xla":
        torch_xla.sync()
    for t in range(count):
        position = t % (2 * PAGE_SIZE)
        slots = tables[:, position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        data = slots, tables.int(), int32([position + 1] * 2)
        with torch.no_grad():
            x = function(x, caches, *(tensor.to(device) for tensor in data), **options)
        if device == "xla":
            torch_xla.sync()
        yield x


# (backend, device, whether the caches are donated)
COMPILERS = [
    ("eager", "cpu", False),
    ("aot_eager", "cpu", False),
    ("inductor", "cpu", False),
    ("openxla", "cpu", False),
    ("aot_eager", "xla", False),
    ("openxla", "xla", False),
    ("openxla", "xla", True),
]


@pytest.mark.parametrize(("backend", "device_type", "donate"), COMPILERS)
def test_compilers(backend: str, device_type: str, donate: bool) -> None:
    *_, expected = run_steps("cpu", 20)
    steps = run_steps(
        device_type, 20, torch.compile(step, backend=backend, fullgraph=True), donate=donate
    )
    for _ in range(4):
        next(steps)
    programs = compilations()
    *_, result = steps
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-2, atol=1e-3)
    assert compilations() == programs
    assert counters["stats"]["unique_graphs"] == 1


def test_lazy_steps_are_one_program_and_read_nothing() -> None:
    *_, expected = run_steps("cpu", 40)
    steps = run_steps("xla", 40)
    for _ in range(3):
        next(steps)
    programs, reads = compilations(), metrics.metric_data("TransferFromDeviceTime")
    *_, result = steps
    assert compilations() == programs
    assert metrics.metric_data("TransferFromDeviceTime") == reads
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-2, atol=1e-3)


def in_use() -> dict[str, int]:
    """The number of tensors, and on a GPU the memory in use."""
    torch_xla.sync(wait=True)
    gc.collect()
    created, destroyed = (
        metrics.counter_value(name) or 0 for name in ("CreateXlaTensor", "DestroyXlaTensor")
    )
    result = {"tensors": created - destroyed}
    if PLATFORM == "CUDA":
        result["bytes"] = xla_model.get_memory_info(torch_xla.device())["bytes_used"]
    return result


def test_memory_does_not_grow() -> None:
    steps = run_steps("xla", 300)
    for _ in range(10):
        next(steps)
    before = in_use()
    for _ in range(289):
        next(steps)
    assert in_use() == before
    del steps


OPTIMIZED = """
import sys
sys.path[:0] = {path!r}
import torch
import in_place_test
step = in_place_test.step
options = {{}}
if {donate}:
    step, options = torch.compile(step, backend="openxla", fullgraph=True), dict(donate=True)
for _ in in_place_test.run_steps("xla", 2, step, **options):
    pass
"""


@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "openxla"])
def test_xla_copies_no_cache(tmp_path: Path, compiled: bool) -> None:
    """The optimized program has one donated, aliased buffer for each cache, and copies none."""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    result = run_script(OPTIMIZED.format(path=sys.path, donate=compiled), XLA_FLAGS=flags)
    assert result.returncode == 0, result.stderr
    programs = [file.read_text() for file in tmp_path.glob("*after_optimizations.txt")]
    programs = [program for program in programs if "XlaGpuKvCacheUpdate" in program]
    assert programs
    for program in programs:
        lines = program.splitlines()
        assert lines[0].count("-alias)") == 2 * LAYERS, lines[0]
        assert [
            line for line in lines if CACHE in line.partition("copy")[0] and "copy(" in line
        ] == []


def test_hlo_has_the_alias() -> None:
    caches = new_caches("xla")
    torch_xla.sync()
    ops.kv_cache_update(*tokens("xla", [3, -1]), *caches)
    (line,) = custom_call_lines(*caches)
    assert 'custom_call_target="XlaGpuKvCacheUpdate"' in line
    assert "output_to_operand_aliasing={{0}: (3, {}), {1}: (4, {})}" in line
    assert " copy(" not in hlo(*caches)


@for_each_device
@pytest.mark.parametrize("inference", [False, True])
def test_inference_mode(device_type: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        caches = new_caches(device_type)
        key, value, slots = tokens(device_type, [9])
        ops.kv_cache_update(key, value, slots, *caches)
        assert torch.equal(caches[0].cpu()[1, 1], key.cpu()[0])
        assert caches[1].cpu().count_nonzero() == value.cpu().count_nonzero()


@for_each_device
def test_caches_that_are_views_of_one_tensor(device_type: str) -> None:
    both = torch.zeros(2, NUM_PAGES, PAGE_SIZE, HEADS, HEAD_DIM).half().to(device_type)
    key, value, slots = tokens(device_type, [9])
    ops.kv_cache_update(key, value, slots, both[0], both[1])
    assert torch.equal(both.cpu()[:, 1, 1], torch.stack([key, value]).cpu()[:, 0])


@pytest.mark.parametrize("place", ["cpu", "meta", "xla"])
def test_caches_that_overlap_are_refused(place: str) -> None:
    both = torch.zeros(NUM_PAGES + 1, PAGE_SIZE, HEADS, HEAD_DIM).half().to(place)
    text = "xla_gpu::kv_cache_update: value_cache must not overlap key_cache, because"
    arguments = [tensor.to(place) for tensor in tokens("cpu", [9])]
    with pytest.raises(ValueError, match=text):
        ops.kv_cache_update(*arguments, both, both)
    if place != "xla":  # whose views have no addresses
        with pytest.raises(ValueError, match=text):
            ops.kv_cache_update(*arguments, both[:-1], both[1:])


@for_each_device
def test_keys_that_are_a_view_of_the_cache(device_type: str) -> None:
    """All tokens move up by one row, so each row must be read before it is written to."""
    caches = [torch.randn(cache.shape).half() for cache in new_caches("cpu")]
    moved = [cache.to(device_type, copy=True) for cache in caches]
    count = NUM_PAGES * PAGE_SIZE - 1
    key, value = (cache.flatten(0, 1)[:count] for cache in moved)
    ops.kv_cache_update(key, value, torch.arange(1, count + 1, device=device_type), *moved)
    for cache, old in zip(moved, caches, strict=True):
        assert torch.equal(cache.cpu().flatten(0, 1)[1:], old.flatten(0, 1)[:count])


@for_each_device
def test_other_tensors_keep_their_values(device_type: str) -> None:
    caches = new_caches(device_type)
    before = [cache.clone() for cache in caches]
    if device_type == "xla":
        torch_xla.sync()
    later = [cache + 0 for cache in caches]
    ops.kv_cache_update(*tokens(device_type, [0, 7, 40]), *caches)
    if device_type == "xla":
        torch_xla.sync()
    assert all(cache.cpu().count_nonzero() > 0 for cache in caches)
    assert all(tensor.cpu().count_nonzero() == 0 for tensor in (*before, *later))


@for_each_device
def test_functional_twin_leaves_its_arguments(device_type: str) -> None:
    caches = new_caches(device_type)
    key, value, slots = tokens(device_type, [5])
    new = torch.ops.xla_gpu.kv_cache_update_functional(key, value, slots, *caches)
    assert torch.equal(new[1].cpu()[0, 5], value.cpu()[0])
    assert all(cache.cpu().count_nonzero() == 0 for cache in caches)


def test_arguments_are_checked_once_when_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = []
    monkeypatch.setattr(_paged, "require_scales", lambda *_, **scales: checks.extend(scales))
    for _ in range(2):
        ops.kv_cache_update(*tokens("xla", [3, 7, 8, 9, 11, 12, 13]), *new_caches("xla"))
    assert checks == ["key_scale", "value_scale"]  # the second call is cached


def test_xla_caches_need_not_be_contiguous_and_others_must() -> None:
    arguments = tokens("xla", [9])
    cache = torch.zeros(PAGE_SIZE, NUM_PAGES, HEADS, HEAD_DIM).half()
    view, other = cache.to("xla").transpose(0, 1), new_caches("xla", 1)[0]
    ops.kv_cache_update(*arguments, view, other)
    assert torch.equal(view.cpu()[1, 1], arguments[0].cpu()[0])
    text = r"kv_cache_update: key_cache must be contiguous, but has the strides \[128, 768"
    with pytest.raises(ValueError, match=text):
        ops.kv_cache_update(*tokens("cpu", [9]), cache.transpose(0, 1), other.cpu())


@for_each_device
def test_autograd_is_refused(device_type: str) -> None:
    key, value, slots = tokens(device_type, [1])
    caches = new_caches(device_type)
    text = "xla_gpu::kv_cache_update has no derivative, but value requires one: call it under"
    with pytest.raises(NotImplementedError, match=text):
        ops.kv_cache_update(key, value.requires_grad_(), slots, *caches)
    with torch.no_grad():
        ops.kv_cache_update(key, value, slots, *caches)
    assert caches[0].cpu().count_nonzero() > 0


def test_autograd_knows_of_the_write() -> None:
    caches = new_caches("cpu")
    weight = torch.ones_like(caches[0], requires_grad=True)
    product = (weight * caches[0]).sum()
    ops.kv_cache_update(*tokens("cpu", [1]), *caches)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_opcheck() -> None:
    arguments = (*tokens("cpu", [1, -1, 30]), *new_caches("cpu"))
    for operator in (
        torch.ops.xla_gpu.kv_cache_update.default,
        torch.ops.xla_gpu.kv_cache_update_functional.default,
    ):
        results = torch.library.opcheck(operator, arguments)
        assert set(results.values()) == {"SUCCESS"}


class Writer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", new_caches("cpu", 1)[0].repeat(1, 1, 2, 1))

    def forward(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        ops.kv_pages_update(key, value, slots, self.cache)
        return self.cache.sum(dim=(0, 1))


def test_export() -> None:
    model, arguments = Writer(), tokens("cpu", [1, 9])
    program = torch.export.export(model, arguments).run_decompositions()
    assert list(program.graph_signature.buffers_to_mutate.values()) == ["cache"]
    module = program.module()
    expected = model(*arguments)
    torch.testing.assert_close(module(*arguments), expected)
    assert torch.equal(module.cache, model.cache)
