"""Find the platform tag that a wheel's own libraries permit, by auditwheel's tables."""

import re
from pathlib import Path

from auditwheel.architecture import Architecture
from auditwheel.elfutils import elf_find_versioned_symbols
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from elftools.elf.elffile import ELFFile


def required_versions(library: Path) -> set[str]:
    """Return the symbol versions that `library` needs, such as GLIBC_2.34."""
    with open(library, "rb") as file:
        return {version for _, version in elf_find_versioned_symbols(ELFFile(file))}


def _manylinux(tag: str) -> tuple[int, int]:
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", tag)
    if not match:
        raise ValueError(f"`{tag}` is not a platform tag manylinux_X_Y_x86_64")
    return int(match[1]), int(match[2])


def platform_tag(libraries: list[Path], upstream_tag: str) -> str:
    """Return the oldest platform that runs both the upstream wheel and `libraries`.

    Raises:
      ValueError: no manylinux policy covers what a library requires.
    """
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64)
    tag = upstream_tag
    for library in libraries:
        versions = required_versions(library)
        policy = policies.versioned_symbols_policy({library.name: versions})
        if policy == policies.linux:
            raise ValueError(
                f"{library.name} requires {', '.join(sorted(versions))}; no manylinux platform in "
                "auditwheel's tables provides all of these: build against older glibc and "
                "libstdc++, or update auditwheel in bazel/pip/locks"
            )
        tag = max(tag, policy.name, key=_manylinux)
    return tag
