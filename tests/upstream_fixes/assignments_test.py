"""Only replacement.py changes other libraries' modules and classes.

Reads the work tree, not the wheel, as lint_test.py does.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("pyproject.toml").resolve().parent
FOLDERS = [
    ROOT / "torch_xla_ext/python",
    ROOT / "integrations/huggingface",
    ROOT / "integrations/torch_tpu",
    ROOT / "integrations/vllm",
]
OURS = (
    "torch_xla_ext",
    "torch_xla_ext_startup",
    "torch_xla_gpu",
    "torch_xla_huggingface",
    "vllm_xla_gpu",
    "xla_kernels",
)
# The files that may assign to other libraries' attributes, with the reasons.
MAY_ASSIGN = {
    "xla_kernels/import_hooks.py": "has a stand-in for a module before its import",
    "torch_xla_ext_startup/lazy_dynamo.py": "passes on what a program sets in torch._dynamo.config",
    "xla_kernels/replacement.py": "is the mechanism",
    "vllm_xla_gpu/overrides.py": "has the table of what is replaced in vLLM, in stages",
}


def is_foreign(module: str) -> bool:
    package = module.partition(".")[0]
    return package not in OURS and package not in sys.stdlib_module_names


class Assignments(ast.NodeVisitor):
    """Finds assignments to attributes of what a file has imported from other libraries.

    A name stands for another library's object if an import binds it, or if an attribute of such an
    object is assigned to it, as in `kind = torch.autograd.function.BackwardCFunction`. This applies
    in the function that binds the name, and in functions inside it.
    """

    def __init__(self) -> None:
        self.found: list[int] = []
        self._names: list[set[str]] = [set()]

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            self._bind(bound, is_foreign(alias.name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name, is_foreign(node.module or ""))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        own = {name.arg for name in names}
        self._names.append(self._names[-1] - own)
        self.generic_visit(node)
        self._names.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assign(node.target, None)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._assign(target, None)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        changes = name.rpartition(".")[2] in ("setattr", "delattr", "__setattr__")
        changes |= name.endswith("patch.object") or name.endswith("patch.dict")
        if changes and node.args and self._is_foreign(node.args[0]):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def _bind(self, name: str, is_foreign: bool) -> None:
        (self._names[-1].add if is_foreign else self._names[-1].discard)(name)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [None] * 99
            for one, its_value in zip(target.elts, values, strict=False):
                self._assign(one, its_value)
        elif isinstance(target, ast.Name):
            is_part = isinstance(value, (ast.Attribute, ast.Subscript))
            self._bind(target.id, is_part and self._is_foreign(value))
        elif isinstance(target, (ast.Attribute, ast.Subscript)) and self._is_foreign(target.value):
            self.found.append(target.lineno)

    def _is_foreign(self, node: ast.expr) -> bool:
        """Whether it is another library's object or a part of one, such as `torch.nn.utils`."""
        if ast.unparse(node).startswith("sys.modules["):
            return True
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._names[-1]


def assignments(code: str) -> list[int]:
    """The lines of code that change an attribute of another library."""
    visitor = Assignments()
    visitor.visit(ast.parse(code))
    return visitor.found


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.Tensor.contiguous = None",
        "import torch.nn as n\nn.utils.clip += 1",
        "from torch import nn\ndel nn.Module.apply",
        "import torch\ndef f():\n    torch.x: int = 1",
        "from torch import nn\ndef f(name):\n    setattr(nn, name, 1)",
        "import torch\nkind, x = torch.nn.Module, 1\nkind.apply = 1",
        "import torch\ndef f():\n    kind = torch.nn.Module\n    def g():\n        kind.apply = 1",
        "import torch\ntorch.x['name'] = 1",
        "from unittest import mock\nimport torch\nwith mock.patch.object(torch.nn, 'x', 1): pass",
        "import sys\nsys.modules['torch'].x = 1",
    ],
)
def test_assignments_that_are_found(code: str) -> None:
    assert len(assignments(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.excepthook = None",
        "from torch_xla_ext import ops\nops.x = 1",
        "import torch\ntensor = torch.ones(2)\ntensor.grad = None",
        "import torch\ndef f(torch):\n    torch.x = 1",
        "import torch\nx = torch.float32\nx = f()\nx.y = 1",
        "import torch\nclass A(torch.nn.Module):\n    def f(self):\n        self.x = torch.nn",
    ],
)
def test_statements_that_are_not_assignments(code: str) -> None:
    assert assignments(code) == []


def files() -> Iterator[tuple[Path, str]]:
    """Our files, and their paths relative to the packages' parent folder."""
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            yield path, str(path.relative_to(folder))


def test_only_the_mechanism_assigns_to_other_libraries() -> None:
    names = dict(files())
    assert {name.partition("/")[0] for name in names.values() if "/" in name} == set(OURS)
    assert MAY_ASSIGN.keys() < set(names.values())
    found = {
        name: lines
        for path, name in names.items()
        if name not in MAY_ASSIGN and (lines := assignments(path.read_text()))
    }
    assert found == {}


def test_each_fix_has_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fix has a test. Importing the table needs no other library."""
    for folder in FOLDERS[:2]:
        monkeypatch.syspath_prepend(folder)
    from torch_xla_ext_startup.upstream_fixes import table

    from torch_xla_huggingface import upstream_fixes as huggingface

    fixes = [*table.FIXES, *huggingface.FIXES]
    assert len({fix.name for fix in fixes}) == len(fixes) > 20
    for fix in fixes:
        assert (ROOT / fix.test).is_file(), fix.name
        assert fix.test.endswith("_test.py")
        assert fix.versions and fix.replaces
        assert fix.reason and "\n" not in fix.reason and not fix.reason.endswith(".")
