"""torch_xla_ext/python/_XLAC.pyi declares what the library adds to upstream's extension module."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch_xla

XLAC = torch_xla._XLAC
STUBS = ast.parse(Path("torch_xla_ext/python/_XLAC.pyi").read_text())
# The start of torch_xla takes it out of the module again: upstream_fixes/root_logger.py.
REMOVED = {"_root_log_handlers"}

# The upstream binary finds some of its functions in our library, which is therefore loaded first.
# The binary's own initialization then makes the module without our additions.
_UPSTREAM = """
import ctypes, json, sys, torch
front, upstream = sys.argv[1:]
ctypes.CDLL(front, ctypes.RTLD_GLOBAL)
init = ctypes.PyDLL(upstream).PyInit__XLAC
init.restype = ctypes.py_object
print(json.dumps(dir(init())))
"""


@pytest.fixture(scope="module")
def upstream() -> set[str]:
    """The names in upstream's module."""
    upstream = Path(torch_xla.__file__).with_name("lib") / "_XLAC.so"
    if not upstream.exists():
        pytest.skip("this _XLAC was built from source: it has no module of upstream's")
    command = [sys.executable, "-P", "-c", _UPSTREAM, XLAC.__file__, upstream]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The functions, classes and values of a module or a class."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = node
    del found["__getattr__"]
    return found


NAMES = declared(STUBS.body)


def binary_parameters(function: object) -> list[str]:
    """The parameters' names in pybind11's docstring, which are `arg0`, … if they have no names."""
    signature = re.match(r"\w+\((.*)\) -> ", function.__doc__)[1]
    return re.findall(r"(?:^|, )(\w+):", signature)


def check_parameters(name: str, node: ast.FunctionDef, function: object) -> None:
    stub = [argument.arg for argument in node.args.posonlyargs + node.args.args]
    binary = binary_parameters(function)
    assert len(stub) == len(binary), name
    for ours, theirs in zip(stub, binary, strict=True):
        assert ours == theirs or re.fullmatch(r"arg\d+", theirs), (name, ours, theirs)


def test_declared_functions_exist() -> None:
    for name, node in NAMES.items():
        if name in REMOVED:
            continue
        value = getattr(XLAC, name)
        if isinstance(node, ast.FunctionDef):
            check_parameters(name, node, value)
        elif isinstance(node, ast.AnnAssign):
            assert type(value).__name__ == ast.unparse(node.annotation)
        else:
            for method in node.body:
                if not isinstance(method, ast.FunctionDef):
                    continue
                function = vars(value)[method.name]
                if not (isinstance(function, property) or "Overloaded" in function.__doc__):
                    check_parameters(f"{name}.{method.name}", method, function)


def test_methods_are_declared() -> None:
    for name, node in NAMES.items():
        if isinstance(node, ast.ClassDef):
            methods = {each for each in vars(getattr(XLAC, name)) if not each.startswith("_")}
            assert methods <= {m.name for m in node.body if isinstance(m, ast.FunctionDef)}, name


def test_everything_has_a_docstring() -> None:
    for name, node in NAMES.items():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert ast.get_docstring(node), name


def test_added_functions_are_declared(upstream: set[str]) -> None:
    added = {name for name in set(dir(XLAC)) - upstream if not name.startswith("__")}
    assert added <= set(NAMES)


def test_only_replaced_names_of_upstream_are_declared(upstream: set[str]) -> None:
    """Upstream's functions that are replaced are declared, and no others."""
    init = ["_clear_pending_irs", "_prepare_to_exit", "_set_use_eager_mode"]
    calls = ["_xla_custom_call", "_xla_gpu_custom_call", "_xla_register_custom_call_target"]
    assert sorted(set(NAMES) & upstream) == sorted(init + calls)


@pytest.mark.parametrize("folder", ["torch_xla_ext/python", "integrations"])
def test_names_that_python_uses_exist(folder: str) -> None:
    used = set()
    for file in Path(folder).rglob("*.py"):
        for name in re.findall(r"\b_?XLAC\.(_\w+)", file.read_text()):
            used.add((name, str(file)))
    assert used
    missing = {(name, file) for name, file in used if not hasattr(XLAC, name)}
    assert {each for each in missing if each[0] not in NAMES} == set()
