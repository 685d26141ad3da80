"""Check that the upstream binary is the one for which csrc/interpose/abi was written.

    check_upstream_binary.py BINARY NAME DIGESTS STAMP

DIGESTS has lines in the format of sha256sum; the line for NAME must have BINARY's digest. If it
does, STAMP is written.
"""

import hashlib
import sys
from pathlib import Path


def check(binary: Path, name: str, digests: Path) -> None:
    """Raise ValueError, with the remedy, if the digest is missing or differs."""
    pinned = {}
    for line in digests.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            digest, file = line.split()
            pinned[file] = digest
    with open(binary, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if pinned.get(name) != found:
        raise ValueError(
            f"the upstream {name} has SHA-256 {found}, but csrc/interpose/abi was written for "
            f"{pinned.get(name, 'none of that name')} ({digests}): check every layout there "
            "against the new binary, then pin its digest there"
        )


def main() -> None:
    binary, name, digests, stamp = sys.argv[1:]
    try:
        check(Path(binary), name, Path(digests))
    except ValueError as error:
        sys.exit(str(error))
    Path(stamp).write_text("checked\n")


if __name__ == "__main__":
    main()
