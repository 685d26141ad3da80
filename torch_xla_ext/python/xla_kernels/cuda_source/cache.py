"""Cache compiled kernels on disk, by the content of everything that they are compiled from."""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path

from xla_kernels.cuda_source.nvrtc import Compiled

FOLDER_VARIABLE = "TORCH_XLA_EXT_KERNEL_CACHE"
_FORMAT = 1  # of the files
_log = logging.getLogger(__name__)


def folder() -> Path | None:
    """Return the cache's folder; None if the variable is empty, which turns the cache off."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "torch_xla_ext", "kernels")


def key_of(parts: object) -> str:
    """Return a cache key for `parts`, which must be JSON-serializable."""
    text = json.dumps([_FORMAT, parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load(key: str) -> Compiled | None:
    """Return the kernel with this key; None if the file is missing or damaged."""
    if (at := folder()) is None:
        return None
    try:
        header, _, module = (at / key).read_bytes().partition(b"\n")
        fields = json.loads(header)
        if hashlib.sha256(module).hexdigest() == fields["sha256"]:
            return Compiled(module, fields["names"], fields["log"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("the cached kernel %s cannot be read: %s", at / key, error)
        return None
    _log.warning("the cached kernel %s is damaged; it is compiled again", at / key)
    return None


def store(key: str, compiled: Compiled) -> None:
    """Write a kernel's file."""
    if (at := folder()) is None:
        return
    fields = {
        "sha256": hashlib.sha256(compiled.module).hexdigest(),
        "names": compiled.names,
        "log": compiled.log,
    }
    try:
        write(at / key, json.dumps(fields).encode() + b"\n" + compiled.module)
    except OSError as error:
        _log.warning("the compiled kernel cannot be written to %s: %s", at, error)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: another process sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
