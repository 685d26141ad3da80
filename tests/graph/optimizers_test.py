"""Each optimizer of torch.optim with a learning rate on the device, and stored optimizers."""

import inspect
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_xla
from torch import Tensor, nn

from torch_xla_ext import CaptureError, capture
from torch_xla_ext.graph import guards

ON_DEVICE = ["ASGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
REFUSED = {
    "Adadelta": r"\['step'\].*at each call.*fused=True or capturable=True.*step\(\) outside",
    "Adagrad": r"\['step'\].*at each call.*fused=True or capturable=True.*step\(\) outside",
    "Adafactor": r"\['lr'\], on the host, by __bool__.*needs its lr as a number",
}


def test_every_optimizer_is_here() -> None:
    """Except LBFGS, which takes a closure, and SparseAdam, which takes sparse gradients."""
    kinds = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert kinds - {"Optimizer", "LBFGS", "SparseAdam"} == {*ON_DEVICE, *REFUSED}


def make_step(kind: Any, lr: Any, **options: Any) -> tuple[nn.Module, Any, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False).to("xla")
    optimizer = kind(model.parameters(), lr=lr, **options)
    x = torch.arange(8.0).view(2, 4).to("xla") / 8

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


def options_of(name: str) -> dict[str, Any]:
    capturable = "capturable" in inspect.signature(getattr(torch.optim, name)).parameters
    return {"capturable": True} if capturable and name != "Adadelta" else {}


@pytest.mark.parametrize("name", ON_DEVICE)
@pytest.mark.parametrize("more", [{}, {"maximize": True, "weight_decay": 0.1}, {"momentum": 0.9}])
def test_a_rate_on_the_device(name: str, more: dict[str, Any]) -> None:
    """The results equal those of a rate that is a number, in lazy mode."""
    kind = getattr(torch.optim, name)
    known = inspect.signature(kind).parameters
    more = {key: value for key, value in more.items() if key in known}

    def train(wrap: Callable[[Any], Any], lr: Any) -> list[float]:
        model, optimizer, step = make_step(kind, lr, **options_of(name), **more)
        step, losses = wrap(step), []
        for call in range(6):
            rate = 0.1 / (call + 1)
            for group in optimizer.param_groups:
                if isinstance(lr, Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
            losses.append(step().item())
            torch_xla.sync()
        return losses + model.weight.flatten().tolist()

    expected = train(lambda step: step, 0.1)
    assert train(capture, torch.tensor(0.1, device="xla")) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_need_options_say_so(name: str) -> None:
    kind = getattr(torch.optim, name)
    _, _, step = make_step(kind, torch.tensor(0.1, device="xla"), **options_of(name))
    captured = capture(step)
    with pytest.raises(CaptureError, match=REFUSED[name]):
        for _ in range(3):
            captured()


def test_a_scheduler() -> None:
    def train(wrap: Callable[[Any], Any], lr: Any) -> list[float]:
        _, optimizer, step = make_step(torch.optim.AdamW, lr, capturable=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        step, losses = wrap(step), []
        for _ in range(8):
            losses.append(step().item())
            scheduler.step()
        return losses

    expected = train(lambda step: step, 0.1)
    assert train(capture, torch.tensor(0.1, device="xla")) == pytest.approx(expected, rel=1e-4)


def test_a_rate_on_the_host() -> None:
    lr = torch.tensor(0.1)
    _, _, step = make_step(torch.optim.SGD, lr)
    captured = capture(step, max_captures=3)
    text = r"\['lr'\], a tensor on the host, changed. Move it to the XLA device"
    with pytest.raises(CaptureError, match=text):
        for _ in range(6):
            captured()
            lr.mul_(0.9)


def test_states_are_compared_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ compares an optimizer's state, whose keys are tensors: a large model has thousands."""
    rate = torch.tensor(0.1, device="xla")
    _, optimizer, step = make_step(torch.optim.AdamW, rate, capturable=True)
    _, expected_optimizer, expected_step = make_step(torch.optim.AdamW, rate, capturable=True)
    captured = capture(step)
    for _ in range(3):
        captured()
        expected_step()
    with monkeypatch.context() as patch:
        patch.delattr(guards.Pairs, "difference")
        for _ in range(3):
            assert captured().item() == pytest.approx(expected_step().item(), rel=1e-4)
    for each in (optimizer, expected_optimizer):
        state = next(iter(each.state.values()))
        state["exp_avg"] = torch.ones_like(state["exp_avg"])
    for _ in range(3):
        assert captured().item() == pytest.approx(expected_step().item(), rel=1e-4)


@pytest.mark.parametrize("location", ["cpu", "xla", "xla:0", torch.device("xla"), None])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_stored_and_loaded(location: Any, kind: Any) -> None:
    options = {"capturable": True} if kind is torch.optim.AdamW else {"momentum": 0.9}

    def rate() -> Tensor:
        return torch.tensor(0.1, device="xla")

    model, optimizer, step = make_step(kind, rate(), **options)
    captured = capture(step)
    for _ in range(3):
        captured()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    torch_xla.sync()
    expected = [captured().item() for _ in range(3)]
    for target in (make_step(kind, rate(), **options), (model, optimizer, captured)):
        file.seek(0)
        stored = torch.load(file, map_location=location)
        target[0].load_state_dict(stored["model"])
        target[1].load_state_dict(stored["optimizer"])
        again = target[2] if target[2] is captured else capture(target[2])
        assert [again().item() for _ in range(3)] == expected


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (torch.optim.AdamW, {"capturable": True}, "exp_avg"),
        (torch.optim.SGD, {"momentum": 0.9}, "momentum_buffer"),
        (torch.optim.RMSprop, {"capturable": True}, "square_avg"),
    ],
)
def test_state_on_the_wrong_device_is_named(kind: Any, options: dict[str, Any], name: str) -> None:
    model = nn.Linear(4, 4)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    model(torch.ones(2, 4)).sum().backward()
    if options.get("capturable"):
        for parameter in model.parameters():
            optimizer.state[parameter] |= {
                "step": torch.tensor(1.0, device="xla"),
                name: torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    else:
        optimizer.step()
    model.zero_grad()
    model.to("xla")

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    text = rf"\['{name}'\], a tensor float32 \[4, 4\] is on the CPU, and \w+ uses it .*: move it"
    with pytest.raises(CaptureError, match=text):
        capture(step)(torch.ones(2, 4, device="xla"))


@pytest.mark.parametrize("location", [None, "cpu", "xla"])
def test_saved_tensors_that_require_gradients(location: str | None) -> None:
    leaf = torch.arange(3.0, device="xla", requires_grad=True)
    file = io.BytesIO()
    torch.save([leaf, leaf * 2], file)
    file.seek(0)
    for loaded, factor in zip(torch.load(file, map_location=location), (1, 2), strict=True):
        assert loaded.is_leaf and loaded.requires_grad
        assert loaded.device.type == (location or "xla")
        assert loaded.tolist() == [0, factor, 2 * factor]


def test_loaded_onto_the_device() -> None:
    whole = torch.arange(6.0)
    values = {"a": whole.view(2, 3).t(), "b": [nn.Parameter(torch.ones(2))], "c": whole.bfloat16()}
    file = io.BytesIO()
    torch.save(values, file)
    for location in ("xla", {"cpu": "xla"}):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["a"].device == loaded["b"][0].device == torch.device("xla:0")
        assert loaded["a"].tolist() == values["a"].tolist()
        assert isinstance(loaded["b"][0], nn.Parameter)
        assert loaded["c"].cpu().equal(values["c"])
    file.seek(0)
    assert torch.load(file)["a"].device.type == "cpu"
    old = io.BytesIO()
    torch.save(values, old, _use_new_zipfile_serialization=False)
    old.seek(0)
    with pytest.raises(RuntimeError, match='load it with map_location="cpu", and move'):
        torch.load(old, map_location="xla")
