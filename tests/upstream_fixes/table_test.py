"""Each row of the table replaces a function when its module is imported, and can be undone."""

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest
import torch_xla  # noqa: F401
from torch_xla_ext_startup import upstream_fixes
from torch_xla_ext_startup.upstream_fixes import table

from torch_xla_huggingface import upstream_fixes as huggingface
from xla_kernels import replacement

FIXES = {fix.name: fix for fix in [*table.FIXES, *huggingface.FIXES]}
# A module with an MoE layer, and a function that is replaced in it.
_MOE_MODULE = "transformers.models.mixtral.modeling_mixtral"
_MOE_FORWARD = f"{_MOE_MODULE}.MixtralSparseMoeBlock.forward"

# Modules and functions that the libraries have in later versions than those under test.
_LATER = {"transformers.integrations.moe"}
_LATER_FUNCTIONS = {"transformers.masking_utils._ignore_bidirectional_mask_sdpa"}


def modules(fix: upstream_fixes.Fix) -> list[str]:
    names = [target.partition(":")[0] for target in fix.replaces]
    return [*(_MOE_MODULE if "*" in name else name for name in names), *fix.after]


def targets(fix: upstream_fixes.Fix) -> list[str]:
    return [_MOE_FORWARD if "*" in target else target.replace(":", ".") for target in fix.replaces]


def replaced(name: str) -> list[replacement._Replaced]:
    return list(replacement._replaced[name])


@pytest.mark.parametrize("name", FIXES)
def test_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in modules(FIXES[name]):
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"without {module}")
        if module in _LATER and importlib.util.find_spec(module) is None:
            pytest.skip(f"without {module}")
    if "accelerate" in FIXES[name].libraries:
        monkeypatch.setenv("ACCELERATE_USE_XLA", "true")
    for module in modules(FIXES[name]):
        dir(importlib.import_module(module))  # some modules run when they are used
    active = {fix.name: names for fix, names in upstream_fixes.active()}
    if name == "moe" and int(importlib.metadata.version("transformers").split(".")[0]) > 4:
        assert _MOE_FORWARD not in active.get(name, [])  # its blocks have no loops
        pytest.skip("transformers 5 has functions of experts")
    assert set(targets(FIXES[name])) <= set(active[name]) | _LATER_FUNCTIONS
    before = replaced(name)
    for one in before:
        assert replacement._own(one.holder, one.attribute) is one.value is not one.before
    upstream_fixes.revert(name)
    try:
        assert replaced(name) == []
        for one in before:
            assert replacement._own(one.holder, one.attribute) is one.before
    finally:
        upstream_fixes.apply(name)
    after = replaced(name)
    assert [one.name for one in after] == [one.name for one in before]
    assert [one.before for one in after] == [one.before for one in before]
    for one in after:
        assert replacement._own(one.holder, one.attribute) is one.value is not one.before


def test_without_any() -> None:
    code = (
        "import torch, torch_xla\n"
        "from torch_xla_ext_startup import upstream_fixes\n"
        "from torch_xla.experimental import custom_kernel\n"
        "print(upstream_fixes.active())\n"
        "print(torch.Tensor.contiguous is torch._C.TensorBase.contiguous)\n"
        "upstream_fixes.apply('strided_views')\n"
        "print(torch.Tensor.contiguous is torch._C.TensorBase.contiguous)\n"
    )
    result = run(code, ",".join(FIXES))
    assert (result.stdout, result.stderr) == ("[]\nTrue\nFalse\n", "")


def test_a_name_that_no_fix_has() -> None:
    result = run("import torch_xla", "strided_views,typo")
    assert "TORCH_XLA_EXT_WITHOUT_FIX: there is no fix 'typo'" in result.stderr
    assert "strided_views" not in result.stderr


def run(code: str, without: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process that imports torch_xla itself, without some fixes."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {replacement.WITHOUT_ENVIRONMENT: without},
        capture_output=True,
        text=True,
    )
