"""Kernels for the CPU that a test compiles from a source text, as a user compiles them."""

import subprocess
from pathlib import Path

import torch_xla_ext


def build(file: Path, source: str, *options: str) -> Path:
    """Compiles a C or C++ file to a library beside it, and returns the library's path."""
    file.write_text(source)
    library = file.with_name(f"lib{file.stem}.so")
    command = ["gcc"] if file.suffix == ".c" else ["g++", "-std=c++17"]
    command += ["-O1", "-shared", "-fPIC", "-isystem", torch_xla_ext.include_dir(), *options]
    subprocess.run([*command, file, "-o", library], check=True)
    return library
