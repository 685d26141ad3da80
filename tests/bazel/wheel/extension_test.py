"""The wheel for an _XLAC that was built from source contains it, and no upstream binary."""

import zipfile
from pathlib import Path

FOLDER = Path("tests/bazel/wheel")


def test_the_built_library_is_the_extension_module() -> None:
    (path,) = (FOLDER / "wheel_of_built").glob("*.whl")
    wheel = zipfile.ZipFile(path)
    extensions = [name for name in wheel.namelist() if Path(name).name.startswith("_XLAC.")]
    assert len(extensions) == 1, extensions
    assert wheel.read(extensions[0]) == (FOLDER / "_XLAC.so").read_bytes()
    assert "torch_xla/__init__.py" in wheel.namelist()
