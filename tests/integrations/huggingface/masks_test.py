"""Models of transformers in captured steps, with and without an attention mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from testing.xla import PLATFORM

from integrations.huggingface import models
from torch_xla_ext import capture

_KINDS = {
    "bert": transformers.AutoModelForMaskedLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
}

# XLA:GPU multiplies float32 matrices in TF32.
TOLERANCE = 1e-3 if PLATFORM == "CUDA" else 2e-5


@pytest.mark.parametrize(
    ("name", "attention"),
    [("llama", "sdpa"), ("bert", "sdpa"), ("bert", "eager"), ("t5", "eager")],
)
def test_forward_with_and_without_a_mask(name: str, attention: str) -> None:
    kind = _KINDS.get(name, transformers.AutoModelForCausalLM)
    model = models.model(name, kind, attn_implementation=attention)
    padded, full = models.prompts(5, 8), models.prompts(8, 8)
    calls: list[dict[str, Any]] = [padded, full, {"input_ids": full["input_ids"]}]
    if name == "t5":
        calls = [call | {"decoder_input_ids": full["input_ids"]} for call in calls]

    @torch.no_grad()
    def forward(**inputs: torch.Tensor) -> torch.Tensor:
        return model(**inputs).logits

    expected = [forward(**call) for call in calls]
    model.double()
    exact = [forward(**call) for call in calls]
    rounding = max((a - b).abs().max() for a, b in zip(expected, exact, strict=True))
    model.float().to("xla")
    step = capture(forward, verify=True)
    for call, want in zip(calls * 2, expected * 2, strict=True):
        got = step(**models.on_device(call)).cpu()
        kept = torch.ones(2, 8) if name == "t5" else call.get("attention_mask", torch.ones(2, 8))
        difference = (got - want)[kept.bool()].abs().max()
        # T5 does not scale its scores, which are large with these weights.
        assert difference < max(TOLERANCE * want.abs().max(), 3 * rounding)
    assert step.num_captures == 2


def test_training_with_a_mask() -> None:
    losses = {}
    for device in ("cpu", "xla"):
        model = models.model("llama").to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def train(
            batch: dict[str, torch.Tensor], model: Any = model, optimizer: Any = optimizer
        ) -> torch.Tensor:
            loss = model(**batch, labels=batch["input_ids"]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = capture(train) if device == "xla" else train
        batches = [models.prompts(5, 8, seed=seed) for seed in range(4)]
        losses[device] = [
            step({k: v.to(device) for k, v in batch.items()}).item() for batch in batches
        ]
    assert losses["xla"] == pytest.approx(losses["cpu"], rel=1e-4)
