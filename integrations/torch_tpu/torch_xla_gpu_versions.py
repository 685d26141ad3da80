"""The versions that this package supports, and a check that they are installed.

The package uses private functions of torch-tpu, which must be reviewed for each new version.
"""

import importlib.metadata
import sys

# torch-tpu's requirements; a release of each minor version is tested.
TORCH = "2.11.0", "2.15.0"
TORCH_TPU = "0.2.0"
CPU_PLUGIN = "0.11.2"
_OLDEST_PYTHON = (3, 12)

# torch-tpu itself requires libtpu, which is of no use here: hence --no-deps and these imports.
REMEDIES = {
    "torch": f"pip install torch=={TORCH[-1]}",
    "torch-tpu": f"pip install --no-deps torch-tpu=={TORCH_TPU}, and "
    "pip install 'numpy>=2' 'absl-py>=2' portpicker 'frozendict>=2' 'immutabledict>=4' 'pyzmq>=27'",
}


class VersionError(ImportError):
    """A package is missing or has an unsupported version."""


def installed(package: str) -> str | None:
    """Return a package's installed version without its local part (+cu130), or None.

    Args:
        package: its name in the package index.
    """
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def problems() -> list[str]:
    """Return missing packages and packages with a wrong version, each with a remedy."""
    found = []
    if sys.version_info < _OLDEST_PYTHON:
        found.append(
            "torch_xla_gpu needs Python {}.{} or newer, but this is {}.{}: use another "
            "interpreter".format(*_OLDEST_PYTHON, *sys.version_info)
        )
    needed = {
        "torch": (f"{TORCH[0]} to {TORCH[1]}", lambda version: _is_between(version, *TORCH)),
        "torch-tpu": (TORCH_TPU, TORCH_TPU.__eq__),
    }
    for package, (text, fits) in needed.items():
        version = installed(package)
        if version is None or not fits(version):
            found.append(
                f"torch_xla_gpu needs {package} {text}, but this environment has "
                f"{version or 'none'}: {REMEDIES[package]}"
            )
    return found


def _is_between(version: str, oldest: str, newest: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(".")]

    try:
        return numbers(oldest) <= numbers(version) <= numbers(newest)
    except ValueError:  # a release before one, 2.16.0a0
        return False


def check() -> None:
    """Raise VersionError unless all packages have the right version."""
    if found := problems():
        raise VersionError("; ".join(found))
