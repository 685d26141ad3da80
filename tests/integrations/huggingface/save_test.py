"""Models on the XLA device, saved as safetensors by each library that does so."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import huggingface_hub
import pytest
import safetensors.torch
import torch
import transformers

from integrations.huggingface import models


def _tied() -> torch.nn.Module:
    """Two layers of one size with distinct weights, and a weight that two layers share."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4, bias=number == 0) for number in range(3)]
    layers[2].weight = layers[0].weight
    return torch.nn.Sequential(*layers)


def _with_accelerate(model: torch.nn.Module, path: Path) -> None:
    accelerate.Accelerator().save_model(model, str(path.parent))


def _with_hub(model: torch.nn.Module, path: Path) -> None:
    huggingface_hub.save_torch_model(model, path.parent)


_SAVED: dict[str, Callable[[Any, Path], None]] = {
    "safetensors": lambda model, path: safetensors.torch.save_model(model, path),
    "accelerate": _with_accelerate,
    "huggingface_hub": _with_hub,
}


@pytest.mark.parametrize("library", _SAVED)
def test_files_of_the_cpu(library: str, tmp_path: Path) -> None:
    cpu = _tied()
    read = {}
    for model in (cpu, copy.deepcopy(cpu).to("xla")):
        path = tmp_path / next(model.parameters()).device.type / "model.safetensors"
        path.parent.mkdir()
        _SAVED[library](model, path)
        read[path.parent.name] = safetensors.torch.load_file(path)
    assert read["xla"].keys() == read["cpu"].keys() == {"0.weight", "0.bias", "1.weight"}
    for name, tensor in read["cpu"].items():
        assert read["xla"][name].equal(tensor)
    other = _tied().to("xla")
    assert safetensors.torch.load_model(other, path) == (set(), [])
    x = torch.randn(2, 4)
    torch.testing.assert_close(other(x.to("xla")).cpu(), cpu(x))


def test_tensors_that_share_memory() -> None:
    """Disjoint views are saved and others refused, as on the CPU."""
    base = torch.arange(8.0).to("xla")
    loaded = safetensors.torch.load(safetensors.torch.save({"a": base[:4], "b": base[4:]}))
    assert loaded["b"].tolist() == [4, 5, 6, 7]
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.torch.save({"a": base, "b": base.view(2, 4)})


def test_save_pretrained(tmp_path: Path) -> None:
    """A weight that two modules share is stored once, and is shared in the loaded model."""
    config = copy.deepcopy(models.CONFIGS["llama"])
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    cpu = transformers.AutoModelForCausalLM.from_config(config)
    copy.deepcopy(cpu).to("xla").save_pretrained(tmp_path)
    names = safetensors.torch.load_file(tmp_path / "model.safetensors").keys()
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read.lm_head.weight is read.model.embed_tokens.weight
    for name, tensor in cpu.state_dict().items():
        assert read.state_dict()[name].equal(tensor), name
