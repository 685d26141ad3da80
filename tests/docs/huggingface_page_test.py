"""The Python blocks of docs/huggingface.md run, with a small model in place of the named one."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import tokenizers
import torch
import transformers
from torch_xla.debug import metrics

_WORDS = ["<pad>", "<s>", "</s>", "Once", "upon", "a", "time", "The", "sea"]


def _tokenizer(_name: str, **options: object) -> transformers.PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(_WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        model_input_names=["input_ids", "attention_mask"],
        **options,
    )


def _model(_name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "pad_token_id": 0},
        **{"num_hidden_layers": 1, "num_attention_heads": 4, "eos_token_id": None},
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)


@contextlib.contextmanager
def _small() -> Iterator[None]:
    with (
        mock.patch.object(transformers.AutoTokenizer, "from_pretrained", _tokenizer),
        mock.patch.object(transformers.AutoModelForCausalLM, "from_pretrained", _model),
    ):
        yield


def test_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path("docs/huggingface.md").read_text()
    blocks = _blocks(page)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    os.environ["HF_HUB_OFFLINE"] = "1"
    variables: dict[str, object] = {}
    with _small():
        for block in blocks[:2]:
            exec(block, variables)
    cpu = _model("")
    inputs = {name: value.cpu() for name, value in variables["inputs"].items()}
    expected = cpu.generate(**inputs, max_new_tokens=20)
    assert variables["outputs"].tolist() == expected.tolist()
    assert variables["second"].shape[1] == expected.shape[1] + 24
    exec(blocks[2], variables)
    prompt = variables["prompt"].cpu()
    tokens = torch.cat(variables["tokens"], dim=1)
    assert tokens.tolist() == cpu.generate(prompt, max_new_tokens=20)[:, 2:].tolist()
    assert variables["decode"].num_captures == 1
    exec(blocks[3], variables)
    assert variables["trainer"].state.global_step == 2
    assert metrics.metric_data("CompileTime")[0] < 30
