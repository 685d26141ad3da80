"""Install a wheel into an empty folder, as `pip install --target` does, without its requirements.

Its Python files are compiled, because tests start hundreds of processes that import them.

install.py WHEEL_DIR TARGET
"""

import compileall
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode


def main() -> None:
    wheel_dir, target = sys.argv[1:]
    (wheel,) = Path(wheel_dir).glob("*.whl")
    # pip's .pyc files would contain the sources' times, and differ from run to run.
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", target]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    # The path that tracebacks show is set when a file is imported.
    compiled = compileall.compile_dir(
        target, quiet=1, stripdir=target, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
    )
    if not compiled:
        sys.exit("a Python file of the wheel cannot be compiled: see the error above")


if __name__ == "__main__":
    main()
