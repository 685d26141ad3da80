"""Check that every symbol a library needs is defined by the libraries that it is linked to.

check_symbols.py --nm NM --stamp STAMP LIBRARY DEFINED_BY...

Python's own symbols (Py…, _Py…) come from the interpreter, versioned ones (…@GLIBC_2.2.5) from the
C and C++ runtimes, where the linker has found them. STAMP is written if nothing is missing.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def _symbols(nm: str, library: str, which: str) -> Iterable[str]:
    """Yield the names of the dynamic symbols, without the weak ones that may stay undefined."""
    command = [nm, "--dynamic", which, "--format=posix", library]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for line in lines:
        name, kind, *_ = line.split()
        if kind not in "wv":
            yield name


def missing_symbols(nm: str, library: str, defined_by: list[str]) -> list[str]:
    """Return the mangled names that `library` needs and nothing defines."""
    needed = {
        name
        for name in _symbols(nm, library, "--undefined-only")
        if "@" not in name and not name.startswith(("Py", "_Py"))
    }
    for other in defined_by:
        if needed:
            needed.difference_update(
                name.partition("@")[0] for name in _symbols(nm, other, "--defined-only")
            )
    return sorted(needed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nm", required=True)
    parser.add_argument("--stamp", required=True)
    parser.add_argument("library")
    parser.add_argument("defined_by", nargs="*")
    args = parser.parse_args()
    missing = missing_symbols(args.nm, args.library, args.defined_by)
    if missing:
        filters = [Path(args.nm).with_name("c++filt")]
        names = subprocess.run(
            filters, input="\n".join(missing), capture_output=True, text=True
        ).stdout.splitlines()
        sys.exit(
            f"{Path(args.library).name} needs {len(missing)} symbols that no library defines "
            "(is a declaration in csrc/interpose/abi not upstream's, or is a file missing?):\n"
            + "\n".join(f"  {name}" for name in names or missing)
        )
    Path(args.stamp).write_text("checked\n")


if __name__ == "__main__":
    main()
