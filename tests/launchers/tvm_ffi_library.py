"""The library of tvm_ffi_functions.cc, which tests compile."""

import importlib.util
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
RMS_NORM = {
    "symbol": "rms_norm",
    "signature": "(x: F32[n, d], weight?: F32[d]) -> (out: F32[n, d])",
    "parameters": "epsilon: f64 in [0, 1], add_one: bool, mode: str",
    "arguments": "out x weight epsilon add_one mode",
}


def compiled(output: Path, *options: str, source: str = "tvm_ffi_functions.cc") -> Path:
    """Not linked with libtvm_ffi, as modules that FlashInfer compiles are not."""
    package = Path(importlib.util.find_spec("tvm_ffi").submodule_search_locations[0])
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{package}/include"]
    subprocess.run([*command, *options, "-o", str(output), str(FOLDER / source)], check=True)
    return output
