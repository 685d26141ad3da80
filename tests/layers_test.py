"""The code follows torch_xla_ext/layers.toml, and docs/architecture.md has its tables."""

from __future__ import annotations

import textwrap
from pathlib import Path

import layers
import pytest

_OUTSIDE = ("kernels", "integrations/")


@pytest.mark.parametrize("language", layers.LANGUAGES)
def test_each_room_is_listed(language: str) -> None:
    assert set(layers.rooms(language)) == layers.existing_rooms(language)


@pytest.mark.parametrize("language", layers.LANGUAGES)
def test_rooms_use_only_lower_ones(language: str) -> None:
    before: list[str] = []
    for name, room in layers.rooms(language).items():
        for used in room.uses:
            assert used in before, f"{name} uses {used}, which must stand before it"
        for used, reason in room.exceptions.items():
            assert reason.strip(), f"{name}: the exception for {used} needs a reason"
            assert used not in room.uses, f"{name} may use {used}: that needs no exception"
        before.append(name)


@pytest.mark.parametrize("language", layers.LANGUAGES)
def test_each_use_is_allowed(language: str) -> None:
    rooms = layers.rooms(language)
    refused = [
        str(use)
        for use in layers.uses(language)
        if use.used not in {*rooms[use.user].uses, *rooms[use.user].exceptions}
    ]
    assert not refused, f"not allowed by {layers.FILE.name}:\n" + "\n".join(refused)


@pytest.mark.parametrize("language", layers.LANGUAGES)
def test_each_allowed_use_is_made(language: str) -> None:
    made = {(use.user, use.used) for use in layers.uses(language)}
    idle = [
        f"{name} -> {used}"
        for name, room in layers.rooms(language).items()
        for used in (*room.uses, *room.exceptions)
        if (name, used) not in made
    ]
    assert not idle, f"remove these unused entries from {layers.FILE.name}: {idle}"


def test_kernels_and_integrations_use_public_names() -> None:
    used = layers.python_uses() + layers.attribute_uses()
    private = [
        str(use) for use in used if use.user.startswith(_OUTSIDE) and not layers.is_public(use.name)
    ]
    assert not private, "no public names:\n" + "\n".join(private)


def test_each_public_module_is_used() -> None:
    used = layers.python_uses() + layers.attribute_uses()
    names = {use.name for use in used if use.user.startswith(_OUTSIDE)}
    idle = [
        module
        for module in layers.public_modules()
        if not any(f"{name}.".startswith(f"{module}.") for name in names)
    ]
    assert not idle, f"take out of {layers.FILE.name} what no kernel or integration uses: {idle}"


def test_the_page_has_the_tables() -> None:
    page = layers.PAGE.read_text()
    assert page == layers.with_tables(page), "run: python tests/layers.py"


def test_imports_that_are_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        textwrap.dedent("""
            import torch_xla_ext.graph.step as step
            from torch_xla_ext import debug, capture
            if TYPE_CHECKING:
                from xla_kernels.signature.schema import Schema

            def function():
                from torch_xla_ext.ops import simple_add
                importlib.import_module("torch_xla_ext.plugin.options")
        """)
    )
    found = layers.imports(file, {"torch_xla_ext.debug", "torch_xla_ext.graph.step"})
    assert sorted(found) == [
        (2, "torch_xla_ext.graph.step", ""),
        (3, "torch_xla_ext", "capture"),
        (3, "torch_xla_ext.debug", ""),
        (5, "xla_kernels.signature.schema", "Schema"),
        (8, "torch_xla_ext.ops.simple_add", ""),
        (9, "torch_xla_ext.plugin.options", ""),
    ]


def test_public_names() -> None:
    for public in (
        "torch_xla_ext",
        "torch_xla_ext.custom_call",
        "torch_xla_ext.debug",
        "torch_xla_ext.graph.CapturedStep",
        "xla_kernels.define_operator",
    ):
        assert layers.is_public(public), public
    for private in ("torch_xla_ext.registry.elf", "torch_xla_ext.graph._state"):
        assert not layers.is_public(private), private


def test_rooms_of_files() -> None:
    assert layers.room_of_module("torch_xla_ext.graph.step") == "graph"
    assert layers.room_of_module("torch_xla_ext.ops.simple_add") == "kernels"
    assert layers.room_of_module("xla_kernels.operator.define") == "xla_kernels/operator"
    assert layers.room_of_module("torch_xla_ext_startup.plugin") == "torch_xla_ext_startup"
    assert layers.room_of_include("torch_xla_ext/csrc/graph/launch.h") == "graph"
    assert layers.room_of_include("torch_xla_ext/csrc/interpose/abi/xla.h") == "interpose"
    assert layers.room_of_include("torch_xla_ext/csrc/upstream.h") is None
    assert layers.room_of_include("torch_xla_ext/kernel.h") is None
    assert layers.room_of_include("xla/ffi/api/ffi.h") is None
