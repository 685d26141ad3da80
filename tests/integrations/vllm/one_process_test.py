"""`external_launcher` with one process; BUILD sets its number of devices."""

from pathlib import Path

import families
import pytest
from vllm import LLM


def test_tokens(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    model = families.write("llama", models)
    llm = LLM(
        model,
        tensor_parallel_size=families.DEVICES,
        distributed_executor_backend="external_launcher",
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        seed=0,
    )
    families.check_tokens(llm, model)
