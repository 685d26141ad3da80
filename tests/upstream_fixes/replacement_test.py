"""Functions of other libraries are replaced and restored, here in a library of the test."""

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from xla_kernels import import_hooks, replacement
from xla_kernels.replacement import temporarily_replaced

_Write = Callable[..., None]
_MINE = {"test": "a_test.py", "versions": "1", "reason": "it is wrong"}


def louder(original: Callable[[], str]) -> Callable[[], str]:
    return lambda *self: original(*self) + "!"


def added(original: Callable[[], str] | None) -> Callable[[], str]:
    return original or (lambda: "added")


def only_long(original: Callable[..., str]) -> Callable[..., str]:
    return louder(original) if original.__name__.startswith("long") else original


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Write]:
    """Writes modules that can be imported."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(**modules: str) -> None:
        for name, code in modules.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(code))
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]
    import_hooks._finished.clear()


def install(name: str, replaces: dict[str, str], **options: object) -> None:
    replacement.install([replacement.Fix(name=name, replaces=replaces, **_MINE, **options)])


def make(function: Callable) -> str:
    return f"{function.__module__}:{function.__name__}"


SAY = """
    def say(): return "a"
    class Kind:
        def say(self): return "b"
"""


@pytest.mark.parametrize("library", ["later", "earlier"])
def test_before_and_after_the_import(write: _Write, library: str) -> None:
    write(**{library: SAY})
    if library == "earlier":
        importlib.import_module(library)
    install(library, {f"{library}:say": make(louder), f"{library}:Kind.say": make(louder)})
    module = importlib.import_module(library)
    assert (module.say(), module.Kind().say()) == ("a!", "b!")
    assert names(library) == [f"{library}.say", f"{library}.Kind.say"]
    replacement.revert(library)
    assert (module.say(), module.Kind().say()) == ("a", "b")
    assert names(library) == []
    replacement.apply(library)
    assert module.say() == "a!"


def names(fix: str) -> list[str]:
    return dict((fix.name, names) for fix, names in replacement.active()).get(fix, [])


def test_a_module_that_is_imported_again(write: _Write) -> None:
    write(again=SAY)
    install("again", {"again:say": make(louder)})
    import again

    del sys.modules["again"]
    other = importlib.import_module("again")
    assert other is not again and other.say() == again.say() == "a!"
    assert importlib.reload(other).say() == "a!"
    replacement.revert("again")
    assert other.say() == again.say() == "a"


def test_while_the_module_runs(write: _Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "during", lambda: install("during", {"running:say": make(louder)}), raising=False
    )
    write(running="import sys\nsys.during()\ndef say(): return 'a'\nfirst = say()")
    import running

    assert (running.first, running.say()) == ("a", "a!")


def test_after_another_module(write: _Write) -> None:
    write(needed=SAY, trigger="")
    install("after", {"needed:say": make(louder)}, after=("trigger",))
    import needed

    assert needed.say() == "a"
    import trigger  # noqa: F401

    assert needed.say() == "a!"


def test_a_module_whose_import_fails_first(write: _Write) -> None:
    write(failing="raise ValueError")
    install("failing", {"failing:say": make(louder)})
    with pytest.raises(ValueError, match=r"^$"):
        import failing
    write(failing=SAY + "\n" + " " * 4 + "# of another size")
    import failing

    assert failing.say() == "a!"


def test_a_module_that_runs_when_it_is_used(write: _Write) -> None:
    write(lazy=SAY)
    import_hooks.run_when_used("lazy")
    import lazy

    install("lazy", {"lazy:say": make(louder)})
    assert "say" not in vars(lazy)
    assert lazy.say() == "a!"


def test_modules_that_have_imported_it(write: _Write) -> None:
    write(owner=SAY, importer="from owner import say", same_name="def say(): return 'c'")
    import importer
    import owner
    import same_name

    install("everywhere", {"owner:say": make(louder)}, everywhere=True)
    assert (owner.say(), importer.say(), same_name.say()) == ("a!", "a!", "c")
    replacement.revert("everywhere")
    assert (owner.say(), importer.say()) == ("a", "a")


def test_functions_that_a_version_lacks_are_skipped(write: _Write) -> None:
    write(older=SAY)
    install("lacking", {"older:shout": make(louder), "older:Other.say": make(louder)})
    import older

    assert names("lacking") == [] and not hasattr(older, "shout")


def test_added_attributes(write: _Write) -> None:
    write(older=SAY)
    install("added", {"older:shout": make(added), "older:say": make(added)}, adds=True)
    import older

    assert (older.shout(), older.say()) == ("added", "a")
    replacement.revert("added")
    assert not hasattr(older, "shout")


def test_an_inherited_function(write: _Write) -> None:
    write(inherits=SAY + "    class Child(Kind): pass\n")
    install("inherited", {"inherits:Child.say": make(louder)})
    import inherits

    assert (inherits.Child().say(), inherits.Kind().say()) == ("b!", "b")
    replacement.revert("inherited")
    assert "say" not in vars(inherits.Child)


def test_an_entry_of_a_dictionary(write: _Write) -> None:
    write(table_of="def say(): return 'a'\nfunctions = {'say': say}")
    install("entry", {"table_of:functions.say": make(louder)})
    import table_of

    assert (table_of.functions["say"](), table_of.say()) == ("a!", "a")
    replacement.revert("entry")
    assert table_of.functions == {"say": table_of.say}


def test_functions_of_classes(write: _Write) -> None:
    code = """
        class Base:
            def long(self): return "a"
            def short(self): return "b"
    """
    write(many__models__a=code, many__models__b="from many.models.a import Base", many__other=code)
    from many.models import a

    install("classes", {"many.models.*:*": make(only_long)})
    from many import other
    from many.models import b

    assert names("classes") == ["many.models.a.Base.long"]
    assert (a.Base().long(), b.Base().short(), other.Base().long()) == ("a!", "b", "a")


def test_revert_after_another_replacement_is_an_error(write: _Write) -> None:
    write(twice=SAY)
    install("twice", {"twice:say": make(louder), "twice:Kind.say": make(louder)})
    import twice

    twice.Kind.say = lambda self: "theirs"
    with pytest.raises(RuntimeError, match=r"something else has since replaced twice\.Kind\.say"):
        replacement.revert("twice")
    assert (twice.say(), twice.Kind().say()) == ("a!", "theirs")


@pytest.fixture
def kind() -> type:
    return type("Child", (type("Base", (), {"value": 1}),), {"own": 2})


def test_temporarily(kind: type) -> None:
    with temporarily_replaced(kind, "value", 3), temporarily_replaced(kind, "own", 4):
        assert (kind.value, kind.own) == (3, 4)
        with pytest.raises(ValueError, match="now"), temporarily_replaced(kind, "own", 5):
            raise ValueError("now")
        assert kind.own == 4
    assert (kind.value, kind.own) == (1, 2) and "value" not in vars(kind)


def test_threads_that_import_at_once(write: _Write) -> None:
    """Each thread replaces a function of the other's module; each function is replaced once."""
    modules = {
        f"thread{i}": "import time\ntime.sleep(0.01)\ndef say(): return 'a'" for i in range(4)
    }
    write(**modules)
    for name in modules:
        install(name, {f"{name}:say": make(louder)}, after=tuple(modules))
    with ThreadPoolExecutor(len(modules)) as threads:
        loaded: list[ModuleType] = list(threads.map(importlib.import_module, modules))
    assert [module.say() for module in loaded] == ["a!"] * 4
