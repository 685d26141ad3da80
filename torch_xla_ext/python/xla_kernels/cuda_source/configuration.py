"""Launch configurations, given as numbers or as functions of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from xla_kernels import launch as launches
from xla_kernels.launch import Grid, Launch

Number = int | Callable[[Mapping[str, object]], int]
_MAX_THREADS = 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)


class Configuration(NamedTuple):
    """The launch configuration given to `cuda_kernel`.

    Attributes:
        block_is_fixed: whether the compiler has chosen the block.
    """

    name: str
    grid: Grid | None
    block: Grid | None
    shared_bytes: Number = 0
    cluster: int | Sequence[int] = 1
    cooperative: bool = False
    dependent: bool = False
    block_is_fixed: bool = False

    @property
    def is_complete(self) -> bool:
        """True if a call needs no ``kernel[grid, block]``."""
        return self.grid is not None and self.block is not None

    @property
    def key(self) -> Hashable:
        """A hashable key that equal launch configurations share."""
        return tuple(tuple(each) if isinstance(each, list) else each for each in self)

    def at(self, key: object) -> Configuration:
        """Return the configuration of ``kernel[key]``: grid, block, and perhaps shared_bytes.

        If the compiler chooses the block, the key is the grid.
        """
        if self.block_is_fixed:
            return self._replace(grid=key)
        given = key if isinstance(key, tuple) else (key,)
        if not 2 <= len(given) <= 3:
            raise TypeError(
                f"cuda_kernel {self.name!r}: expected kernel[grid, block] or "
                f"kernel[grid, block, shared_bytes], but got {len(given)} values; several "
                f"dimensions are a tuple: {self.name}[(2, 3), 128]"
            )
        names = ("grid", "block", "shared_bytes")
        return self._replace(**dict(zip(names, given, strict=False)))

    def launch(
        self, module: bytes, digest: str, function: str, values: Mapping[str | int, object]
    ) -> Launch:
        """Return the launch of a compiled kernel.

        Args:
            values: the arguments by name, which the configuration's functions receive.

        Raises:
            TypeError, ValueError: the numbers do not form a valid launch.
        """
        where = f"cuda_kernel {self.name!r}"
        if not self.is_complete:
            raise TypeError(f"{where}: call it as kernel[grid, block](…), or give both beforehand")

        def computed(name: str) -> object:
            given = getattr(self, name)
            if not callable(given):
                return given
            try:
                return given(values)
            except Exception as error:
                has = ", ".join(key for key in values if isinstance(key, str)) or "no names"
                raise ValueError(
                    f"{where}: {name} raised {type(error).__name__}: {error}; it receives {has}"
                ) from error

        grid = launches.three(where, computed("grid"), "grid")
        block = launches.three(where, computed("block"), "block")
        cluster = launches.three(where, self.cluster, "cluster")
        shared = computed("shared_bytes")
        if (
            isinstance(shared, bool)
            or not isinstance(shared, (int, np.integer))
            or not 0 <= shared < 2**31
        ):
            raise ValueError(f"{where}: shared_bytes must be a number of bytes, but is {shared!r}")
        if any(n > most for n, most in zip(grid, _MAX_GRID, strict=True)):
            raise ValueError(f"{where}: grid must be at most {_MAX_GRID}, but is {grid}")
        threads = block[0] * block[1] * block[2]
        if not 1 <= threads <= _MAX_THREADS or block[2] > _MAX_BLOCK[2]:
            raise ValueError(
                f"{where}: block must have 1 to {_MAX_THREADS} threads, at most {_MAX_BLOCK[2]} of "
                f"them in the third dimension, but is {block}"
            )
        if 0 in cluster or any(n % c for n, c in zip(grid, cluster, strict=True)):
            raise ValueError(
                f"{where}: grid must be a multiple of cluster {cluster}, but is {grid}"
            )
        return Launch(
            module=module,
            digest=digest,
            kernel=function,
            grid=grid,
            block=block,
            cluster=cluster,
            shared=int(shared),
            cooperative=bool(self.cooperative),
            dependent=bool(self.dependent),
        )
