"""benchmarks/train_step.py trains an MoE as plain PyTorch does."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import train_models
import train_step

BATCH, LENGTH, STEPS = 2, 16, 5


def plain_losses() -> list[float]:
    torch.manual_seed(0)
    with torch.device("meta"):
        model = train_models.in_bfloat16(train_models.MoeTiny(LENGTH))
    model.to_empty(device="cpu")
    train_models.draw(model)
    model.make_buffers()
    tokens = torch.randint(model.VOCABULARY, (BATCH, LENGTH + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1]).flatten(0, 1).float()
        loss = functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_of_moe_are_those_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments = ("--model=moe-tiny", f"--batch={BATCH}", f"--length={LENGTH}", "--steps=1")
    monkeypatch.setattr(sys, "argv", ["train_step.py", *arguments])
    train_step.main()
    losses = json.loads(capsys.readouterr().out)["losses"]
    expected = plain_losses()
    assert expected[0] - expected[-1] > 0.1
    torch.testing.assert_close(losses, expected, rtol=0, atol=5e-3)
