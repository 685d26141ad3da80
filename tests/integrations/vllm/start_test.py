"""An engine's start: weights are sent to the devices one by one; programs; the log."""

import time
from collections.abc import Callable
from pathlib import Path

import families
import pytest
import torch
import torch_xla.debug.metrics as metrics
from safetensors.torch import load_file, save_file
from vllm import LLM
from vllm_xla_gpu import memory, start, weights
from vllm_xla_gpu.limits import UnsupportedError
from vllm_xla_gpu.model_runner import XlaGpuModelRunner

LIMITS = {
    "dtype": "float32",
    "tensor_parallel_size": families.DEVICES,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "num_gpu_blocks_override": 24,
}


def compiled() -> int:
    data = metrics.metric_data("CompileTime")
    return 0 if data is None else data[0]


def host_bytes(weight: torch.Tensor) -> int:
    return weight.untyped_storage().nbytes()


class Watched:
    """Records how weights are loaded.

    Attributes:
        streams: the streams of weights.
        programs: how many were compiled while the model was loaded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[weights.WeightStream] = []
        self.programs = -1
        finish, load = weights.WeightStream.finish, XlaGpuModelRunner.load_model

        def watched_finish(stream: weights.WeightStream) -> None:
            finish(stream)
            self.streams.append(stream)

        def watched_load(runner: XlaGpuModelRunner) -> None:
            before = compiled()
            load(runner)
            self.programs = compiled() - before

        monkeypatch.setattr(weights.WeightStream, "finish", watched_finish)
        monkeypatch.setattr(XlaGpuModelRunner, "load_model", watched_load)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


# The count: for each of two layers, a weight for each product, including the router's, and two for
# experts; then the tables of tokens and of logits, which are not shared.
@pytest.mark.parametrize(
    ("family", "count"), [("qwen2", 2 * 4 + 2), ("qwen3_moe", 2 * (3 + 2) + 2)]
)
def test_weights_leave_the_host_layer_by_layer(
    family: str, count: int, models: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_host = []
    parts = weights.Placement.parts

    def watched_parts(placement: weights.Placement, layer: torch.nn.Module) -> list[weights.Part]:
        on_host.append(host_bytes(layer.weight))
        return parts(placement, layer)

    monkeypatch.setattr(weights.Placement, "parts", watched_parts)
    model = families.write(family, models)
    llm = LLM(model, **LIMITS)
    families.check_tokens(llm, model)
    (stream,) = watched.streams
    assert len(stream.sent) == len(on_host) == count
    assert sorted(on_host) == sorted(weight.nbytes for weight in stream.sent)
    assert all(host_bytes(weight) == weight.element_size() for weight in stream.sent)
    # One makes the logits, of which only the shape is used; no weight needs a program.
    assert watched.programs <= 1


def test_random_weights(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are vLLM's for any number of devices, and layers do not stay on the host."""
    loaded, load = [], XlaGpuModelRunner.load_model

    def watched_load(runner: XlaGpuModelRunner) -> None:
        load(runner)
        loaded.append(runner.model.model)

    monkeypatch.setattr(XlaGpuModelRunner, "load_model", watched_load)
    LLM(families.write("qwen3_moe", models), load_format="dummy", **LIMITS)
    model = loaded[0]
    layer = model.layers[1]
    both, down = (linear.weight.cpu() for linear in layer.mlp.experts.sharded)
    parts = both.unflatten(1, (families.DEVICES, 2, -1))  # gate and up, of each device
    in_order = {
        "table": model.embed_tokens.weight,
        "norm": layer.input_layernorm.weight,
        "output": layer.self_attn.o_proj.weight,
        "up and gate": parts.transpose(1, 2).flatten(1, 3),
        "down": down,
    }
    for name, weight in in_order.items():
        generator = torch.Generator().manual_seed(1234)
        expected = 2e-3 * torch.rand(weight.shape, generator=generator) - 1e-3
        torch.testing.assert_close(weight.cpu(), expected, msg=name)


def test_a_weight_of_the_wrong_size(models: Path, tmp_path: Path) -> None:
    """The start raises the error of the thread that reads the weight."""
    model = Path(families.write("llama", models))
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssertionError):
        LLM(str(tmp_path), **LIMITS)


class Table(torch.nn.Module):
    """A weight that a file stores as two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(4, 2), requires_grad=False)
        self.weight.weight_loader = self._load

    @staticmethod
    def _load(weight: torch.Tensor, values: torch.Tensor, begin: int) -> None:
        weight.data[begin : begin + len(values)] = values


class Sent(weights.Placement):
    """Records the tensors that are sent, which stay on the host."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), None)
        self.sent: list[torch.Tensor] = []

    def send(self, part: weights.Part) -> torch.Tensor:
        self.sent.append(part[0][0].clone())
        return self.sent[-1]


def test_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    table, placement = Table(), Sent()
    sent = placement.sent
    monkeypatch.setattr(weights, "_streamed", lambda model: [(model, [model.weight])])
    stream = weights.WeightStream(table, placement)
    loader: Callable[..., None] = table.weight.weight_loader
    loader(table.weight, torch.full((3, 2), 1.0), 0)
    assert not stream.sent
    loader(table.weight, torch.full((1, 2), 2.0), begin=3)
    # The file has the last row twice: all are sent again.
    loader(table.weight, torch.full((4, 2), 3.0), 0)
    stream.finish()
    assert sent[-1].tolist() == [[3, 3]] * 4
    assert stream.sent[table.weight][0] is sent[-1]
    assert table.weight.shape == (4, 2)
    assert host_bytes(table.weight) == 4


def test_a_layer_that_cannot_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Arranged(Sent):
        def arrange(self, layer: torch.nn.Module) -> list[torch.nn.Module]:
            layer.weight = torch.nn.Parameter(layer.weight + 1, requires_grad=False)
            return [layer]

    table = Table()
    monkeypatch.setattr(weights, "_streamed", lambda model: [(model, [model.weight])])
    placement = Arranged()
    stream = weights.WeightStream(table, placement)
    read = table.weight
    read.weight_loader(read, torch.full((4, 2), 1.0), 0)
    with pytest.raises(UnsupportedError, match="of a quantized layer twice; remove the dup"):
        read.weight_loader(read, torch.full((4, 2), 1.0), 0)
    stream.finish()
    assert placement.sent[0].tolist() == [[2, 2]] * 4
    assert host_bytes(read) == host_bytes(table.weight) == 4


def test_seconds_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(start.logger, "info", lambda text, *values: lines.append(text % values))
    engine = start.Start()
    with engine.part("compiling"):
        now[0] += 1
        with engine.part("tracing"):
            now[0] += 2
            with engine.part("compiling"):
                now[0] += 4
        now[0] += 8
    engine.report()
    assert lines == [
        "The start took 15.0 s: compiling 13.0, tracing 2.0. XLA compiled 0 programs, for 0.0 s of "
        "its threads."
    ]


@pytest.mark.parametrize(("free", "threads"), [(10, 1), (25, 2), (1000, 8)])
def test_copies_of_weights_that_there_is_room_for(
    free: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    info = {"bytes_limit": 5000, "bytes_used": 5000 - free}
    monkeypatch.setattr(memory.xm, "get_memory_info", lambda _: info)
    assert memory.room_for(12, torch.device("cpu"), 8) == threads
