"""Installs a wheel into an empty folder, as `pip install --target` does, without its requirements.

install.py WHEEL_DIR TARGET
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    wheel_dir, target = sys.argv[1:]
    (wheel,) = Path(wheel_dir).glob("*.whl")
    # Without compiling: the .pyc files would only differ from run to run.
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", target]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)


if __name__ == "__main__":
    main()
