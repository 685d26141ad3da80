"""Finds imports in Python and includes in C++, for comparison with layers.toml.

python tests/layers.py    writes the tables of docs/architecture.md, and prints the uses
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path("pyproject.toml").resolve().parent
FILE = ROOT / "torch_xla_ext/layers.toml"
PAGE = ROOT / "docs/architecture.md"
PACKAGES = ROOT / "torch_xla_ext/python"
LANGUAGES = ("python", "cpp")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Room:
    """A folder or a module: a row of layers.toml."""

    purpose: str
    uses: list[str]
    exceptions: dict[str, str] = field(default_factory=dict)  # room: reason


@dataclass(frozen=True)
class Use:
    """An import or an include of another room."""

    user: str
    used: str
    file: str
    line: int
    name: str  # what is imported or included

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.user} uses {self.used}: {self.name}"


@functools.cache
def rooms(language: str) -> dict[str, Room]:
    """The rooms of layers.toml, lowest first."""
    tables = tomllib.loads(FILE.read_text())[language]
    result = {name: Room(tables["purpose"][name], uses) for name, uses in tables["allowed"].items()}
    for use, reason in tables.get("exceptions", {}).items():
        user, _, used = use.partition(" -> ")
        result[user].exceptions[used] = reason
    return result


@functools.cache
def public_modules() -> list[str]:
    return tomllib.loads(FILE.read_text())["public"]["modules"]


# Python


@functools.cache
def _integrations() -> dict[str, str]:
    """Maps each package of integrations/ to its folder there."""
    files = ROOT.glob("integrations/*/*/__init__.py")
    return {file.parts[-2]: file.parts[-3] for file in files}


@functools.cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _modules() -> dict[str, Path]:
    """All modules of the wheel's packages, including those in the kernels' folders."""
    modules = {}
    for file in PACKAGES.rglob("*.py"):
        parts = file.relative_to(PACKAGES).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def room_of_module(name: str) -> str:
    """The room of a module's dotted name: `torch_xla_ext.graph.step` is in `graph`."""
    package, _, rest = name.partition(".")
    if package == "xla_kernels" and rest:
        return f"xla_kernels/{rest.partition('.')[0]}"
    if (module := f"{package}/{rest.partition('.')[0]}") in rooms("python"):
        return module
    if package in _integrations():
        return f"integrations/{_integrations()[package]}"
    if package != "torch_xla_ext":
        return package
    if rest.startswith("ops."):
        return "kernels"
    return rest.partition(".")[0] or package


def _room_of_python_file(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    if parts[0] == "kernels":
        return "kernels"
    if parts[0] == "integrations":
        return f"integrations/{parts[1]}"
    name = ".".join(file.relative_to(PACKAGES).with_suffix("").parts)
    return room_of_module(name.removesuffix(".__init__"))


def imports(file: Path, modules: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """The line, the module and the imported name ("" for the module itself) of each import.

    Includes imports inside of functions, below `if TYPE_CHECKING`, and by
    importlib.import_module("…").
    """
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in modules or node.module == "torch_xla_ext.ops":
                    yield node.lineno, name, ""
                else:
                    yield node.lineno, node.module, alias.name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value, ""


@functools.cache
def _own(module: str) -> bool:
    package = module.partition(".")[0]
    return (PACKAGES / package).is_dir() or package in _integrations()


@functools.cache
def _python_files() -> list[Path]:
    """The wheel's files, those of the kernels' operators, and the integrations'."""
    files = [*PACKAGES.rglob("*.py"), *ROOT.glob("kernels/*/op.py")]
    files += [*ROOT.glob("kernels/common/*.py"), *ROOT.glob("integrations/**/*.py")]
    return sorted(files)


@functools.cache
def python_uses() -> list[Use]:
    """Each import of another room."""
    modules = _modules()
    uses = []
    for file in _python_files():
        user = _room_of_python_file(file)
        for line, module, name in imports(file, modules):
            used = room_of_module(module)
            if _own(module) and used != user:
                path = str(file.relative_to(ROOT))
                uses.append(Use(user, used, path, line, f"{module}.{name}".rstrip(".")))
    return uses


def attribute_uses() -> list[Use]:
    """Each `torch_xla_ext.name` in code."""
    uses = []
    for file in _python_files():
        for node in ast.walk(_parsed(file)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch_xla_ext":
                user, path = _room_of_python_file(file), str(file.relative_to(ROOT))
                name = f"torch_xla_ext.{node.attr}"
                uses.append(Use(user, "torch_xla_ext", path, node.lineno, name))
    return uses


@functools.cache
def public_names() -> set[str]:
    """The names in torch_xla_ext's __all__, and xla_kernels' public names, which are in a table."""
    names = set()
    for package, variable in [("torch_xla_ext", "__all__"), ("xla_kernels", "_MODULES")]:
        for node in _parsed(PACKAGES / package / "__init__.py").body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable:
                names |= {f"{package}.{name}" for name in ast.literal_eval(node.value)}
    return names


def is_public(name: str) -> bool:
    """Whether a name is public, or a public module's name without an underscore."""
    parent, _, last = name.rpartition(".")
    modules = public_modules()
    if name in modules or name in public_names():
        return True
    return parent in set(modules) - {"torch_xla_ext", "xla_kernels"} and not last.startswith("_")


# C++


def room_of_include(path: str) -> str | None:
    """The room of a file, by its path in the repository; None: all rooms may include it."""
    parts = path.split("/")
    if path.startswith("torch_xla_ext/csrc/"):
        return parts[2] if len(parts) > 3 else None  # upstream.h and native_functions.h
    if path.startswith("torch_xla_ext/include/"):
        return "include"
    return "kernels" if parts[0] == "kernels" else None  # torch_xla_ext/kernel.h and the like


@functools.cache
def cpp_uses() -> list[Use]:
    """Each include of another room."""
    uses = []
    for folder in ("torch_xla_ext/csrc", "torch_xla_ext/include", "kernels"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            text = file.read_text()
            path = str(file.relative_to(ROOT))
            user = room_of_include(path)
            for match in _INCLUDE.finditer(text):
                used = room_of_include(match[1])
                if used is not None and used != user:
                    line = text.count("\n", 0, match.start()) + 1
                    uses.append(Use(user, used, path, line, match[1]))
    return uses


def uses(language: str) -> list[Use]:
    return {"python": python_uses, "cpp": cpp_uses}[language]()


def existing_rooms(language: str) -> set[str]:
    """The rooms that have files."""
    if language == "python":
        return {_room_of_python_file(file) for file in _python_files()}
    csrc = ROOT / "torch_xla_ext/csrc"
    return {"include", "kernels"} | {path.parent.name for path in csrc.glob("*/*.h")}


# The tables of docs/architecture.md


def table(language: str) -> str:
    lines = ["| | content | uses |", "|---|---|---|"]
    for name, room in rooms(language).items():
        used = ", ".join(f"`{other}`" for other in room.uses)
        lines.append(f"| `{name}` | {room.purpose} | {used} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """Returns the page with current tables between its marks."""
    for language in LANGUAGES:
        begin, end = f"<!-- layers.toml: {language} -->\n", "<!-- end -->"
        head, _, rest = page.partition(begin)
        page = head + begin + "\n" + table(language) + "\n" + end + rest.partition(end)[2]
    return page


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))
    for language in LANGUAGES:
        found: dict[str, set[str]] = {}
        for use in uses(language):
            found.setdefault(use.user, set()).add(use.used)
        for user, used in sorted(found.items()):
            print(f"{language}: {user}: {', '.join(sorted(used))}")


if __name__ == "__main__":
    main()
