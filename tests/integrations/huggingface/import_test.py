"""transformers is imported first, and its import of accelerate imports torch_xla."""

import os
import subprocess
import sys
from pathlib import Path

_GENERATE = """
import sys
from transformers import AutoModelForCausalLM, LlamaConfig
assert "torch_xla" in sys.modules  # else this tests nothing
import torch
from torch_xla.debug import metrics
config = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                     num_attention_heads=4, eos_token_id=None)
model = AutoModelForCausalLM.from_config(config)
prompt = torch.arange(3, 9)[None]
want = model.generate(prompt, max_new_tokens=12)
assert model.to("xla").generate(prompt.to("xla"), max_new_tokens=12).tolist() == want.tolist()
print(metrics.metric_data("CompileTime")[0])
"""

_FAIL = """
import sys
try:
    import transformers.generation.utils
except ImportError as error:
    print(error, "torch_xla" in sys.modules, "transformers.generation.utils" in sys.modules)
"""


def _run(program: str, *folders: Path) -> str:
    paths = [*map(str, folders), os.environ["PYTHONPATH"]]
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_generate_of_transformers_that_is_imported_first() -> None:
    assert int(_run(_GENERATE)) <= 3


def test_import_that_fails_after_torch_xla(tmp_path: Path) -> None:
    """The import raises its own error; replacements skip the modules that are missing."""
    package = tmp_path / "transformers" / "generation"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "utils.py").write_text("import torch_xla\nraise ImportError('broken')\n")
    assert _run(_FAIL, tmp_path) == "broken True False"
