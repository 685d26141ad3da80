"""Steps that import modules, whose code runs once in a process."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from testing.stale import device
from torch import Tensor

from torch_xla_ext import capture

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module's file."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write_file(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield write_file
    for name in set(sys.modules) - before:
        if hasattr(sys.modules[name], "OF_THIS_TEST"):
            del sys.modules[name]


def test_code_that_an_import_runs(write: Write) -> None:
    """The imported code reads and assigns globals that no later call compares."""
    write(
        "imported",
        """
OF_THIS_TEST, RATE, FACTOR, ready = True, 1.0, 2.0, False

def start():
    global ready
    ready = RATE > 0

start()

def scaled(x):
    return x * FACTOR
""",
    )

    @capture
    def step(x: Tensor) -> Tensor:
        import imported

        return imported.scaled(x)

    assert step(device(1)).cpu() == 2
    assert step.num_captures == 1
    imported = sys.modules["imported"]
    assert imported.ready
    imported.RATE = 7.0
    assert step(device(1)).cpu() == 2
    assert step.num_captures == 1
    imported.FACTOR = 5.0
    assert step(device(1)).cpu() == 5
    assert step.num_captures == 2


@pytest.fixture
def settings(write: Write) -> ModuleType:
    write(
        "settings",
        """
OF_THIS_TEST, FACTOR = True, 2.0

def factor():
    return FACTOR

def set_factor(value):
    global FACTOR
    FACTOR = value
""",
    )
    return importlib.import_module("settings")


def test_import_that_changes_another_module(write: Write, settings: ModuleType) -> None:
    write("changing", "import settings\nOF_THIS_TEST = True\nsettings.set_factor(3.0)")

    @capture(verify=False)
    def step(x: Tensor) -> Tensor:
        result = x * settings.factor()
        import changing  # noqa: F401

        return result

    assert [step(device(1)).cpu().item() for _ in range(4)] == [2, 3, 3, 3]
    assert step.num_captures == 1


def test_import_that_fails(write: Write, settings: ModuleType) -> None:
    """The import runs again at each call."""
    write(
        "optional",
        """
import settings
OF_THIS_TEST = True
if settings.factor() < 3:
    raise ImportError
""",
    )

    @capture
    def step(x: Tensor) -> Tensor:
        try:
            import optional  # noqa: F401
        except ImportError:
            return x
        return x * 10

    assert [step(device(1)).cpu().item() for _ in range(2)] == [1, 1]
    settings.FACTOR = 3.0
    assert [step(device(1)).cpu().item() for _ in range(2)] == [10, 10]
    assert step.num_captures == 2


@pytest.mark.parametrize(
    "line",
    [
        "from settings import FACTOR as factor",
        "import settings; factor = settings.FACTOR",
        "from .settings import FACTOR as factor",
        "from . import settings; factor = settings.FACTOR",
    ],
)
def test_value_of_a_module_imported_in_a_function(
    write: Write, tmp_path: Path, settings: ModuleType, line: str
) -> None:
    in_package = "from ." in line
    if in_package:
        (tmp_path / "package").mkdir()
        write("package/__init__", "OF_THIS_TEST = True")
        write("package/settings", "OF_THIS_TEST, FACTOR = True, 2.0")
    name = "package." * in_package
    write(
        f"{name}steps".replace(".", "/"),
        f"OF_THIS_TEST = True\ndef step(x):\n    {line}\n    return x * factor",
    )
    importlib.import_module(f"{name}settings")
    step = capture(importlib.import_module(f"{name}steps").step)
    assert [step(device(1)).cpu().item() for _ in range(3)] == [2, 2, 2]
    sys.modules[f"{name}settings"].FACTOR = 3.0
    assert [step(device(1)).cpu().item() for _ in range(2)] == [3, 3]
    assert step.num_captures == 2
