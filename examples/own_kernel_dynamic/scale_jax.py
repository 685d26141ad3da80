"""Call the same library from JAX, unchanged. README.md has the commands."""

import argparse
import ctypes

import jax
import jax.numpy as jnp
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="the kernel's .so file")
    library = ctypes.CDLL(parser.parse_args().library)
    platform = "gpu" if jax.default_backend() == "gpu" else "cpu"
    entry = "XlaGpuScaleFfi" if platform == "gpu" else "XlaGpuScaleHostFfi"
    handler = jax.ffi.pycapsule(getattr(library, entry))
    jax.ffi.register_ffi_target("XlaGpuScale", handler, platform=platform)

    @jax.jit
    def scale(x: jax.Array) -> jax.Array:
        call = jax.ffi.ffi_call("XlaGpuScale", jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, factor=np.float64(2.5))

    x = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
    print("JAX", jax.__version__, "on", platform)
    print(scale(x))
    assert (scale(x) == x * 2.5).all()


if __name__ == "__main__":
    main()
