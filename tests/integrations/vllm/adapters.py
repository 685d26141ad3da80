"""LoRA adapters with random weights, and models with the adapters merged as references."""

import json
from pathlib import Path

import safetensors.torch
import torch
import transformers
from vllm.lora.request import LoRARequest

ALPHA = 16
# Each adapter's rank, and the layer's linear modules that it changes (in Llama q, k, v, o, gate, up
# and down).
ADAPTERS = {"all": (4, slice(None)), "few": (8, slice(0, 4, 2)), "third": (2, slice(-2, None))}


class Adapter:
    """An adapter in a folder, and the model with it merged.

    Attributes:
        request: vLLM's request, which names the adapter.
        merged: the path of the merged model.
    """

    def __init__(self, name: str, number: int, model: str, folder: Path) -> None:
        rank, which = ADAPTERS[name]
        generator = torch.Generator().manual_seed(number)
        merged = transformers.AutoModelForCausalLM.from_pretrained(model)
        first = merged.model.layers[0]
        layers = tuple(
            path
            for path, module in first.named_modules()
            if isinstance(module, torch.nn.Linear) and "experts" not in path
        )[which]
        weights = {}
        for path, module in merged.named_modules():
            if not path.endswith(layers):
                continue
            a = torch.randn(rank, module.in_features, generator=generator) / 8
            b = torch.randn(module.out_features, rank, generator=generator) / 8
            module.weight.data += ALPHA / rank * b @ a
            key = f"base_model.model.{path}"
            weights |= {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b}
        assert len(weights) == 2 * len(layers) * merged.config.num_hidden_layers
        self.merged = str(folder / f"merged-{name}")
        merged.save_pretrained(self.merged)
        path = folder / f"adapter-{name}"
        self.request = LoRARequest(name, number, str(path))
        save(path, weights, rank=rank, modules=[layer.split(".")[-1] for layer in layers])


def save(path: Path, weights: dict[str, torch.Tensor], rank: int, modules: list[str]) -> None:
    path.mkdir()
    safetensors.torch.save_file(weights, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "target_modules": modules}
    (path / "adapter_config.json").write_text(json.dumps(config | {"bias": "none"}))
