"""Handlers of XLA FFI 0.1 with a state run in JAX's newer XLA, as in a newer plug-in.

Only XLA itself can show that it understands the structures from csrc/registry/stages.cc.
"""

import ast
import os
import subprocess
import sys

PROGRAM = """
import ctypes, gc, os
import jax
import jax.numpy as jnp
import numpy as np

handlers = ctypes.CDLL(os.environ["STATEFUL_HANDLERS"])
stages = ctypes.CDLL(os.environ["STAGES_FOR_JAX"])

def pointer(library, symbol):
    function = library[symbol]
    function.restype = ctypes.c_void_p
    return function()

def capsule(address):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, None, None)

def register(name, *functions):
    instantiate, execute = (ctypes.cast(f, ctypes.c_void_p) for f in functions)
    stages.AdaptForPlugin(ctypes.byref(instantiate), ctypes.byref(execute))
    target = {"instantiate": capsule(instantiate.value), "execute": capsule(execute.value)}
    jax.ffi.register_ffi_target(name, target, platform="cpu")

def program(target, x, **attributes):
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return jax.jit(lambda x: call(x, **attributes))

def counts():
    values = (ctypes.c_int64 * 5)()
    handlers.CountCalls(values)
    return list(values)

plan = {
    "type_id": capsule(pointer(handlers, "ScaleInStagesTypeId")),
    "type_info": capsule(pointer(stages, "DefaultTypeInfo")),
}
jax.ffi.register_ffi_type("Plan", plan, platform="cpu")
register("scale", handlers.ScaleInstantiate, handlers.ScaleExecute)
register("other", handlers.InstantiateOther, handlers.ExecuteNothing)
x = jnp.arange(3, dtype=jnp.float32)
scaled = program("scale", x, scale=np.float64(3))
results = [scaled(x).tolist() for _ in range(2)]
before = counts()
del scaled
jax.clear_caches()
gc.collect()
errors = []
for target, attributes in {"scale": {"scale": np.float64(-1)}, "other": {}}.items():
    try:
        program(target, x, **attributes)(x).block_until_ready()
    except Exception as error:
        errors.append(str(error))
print([results, before, counts(), errors])
"""


def test_a_state_in_jaxs_xla() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    results, before, after, errors = ast.literal_eval(result.stdout.splitlines()[-1])
    assert results == [[0, 3, 6], [1, 4, 7]]
    # Instantiated and executed; later destroyed, with the program.
    assert before == [1, 0, 0, 2, 0]
    assert after == [1, 0, 0, 2, 1]
    assert "Scale: scale must not be negative" in errors[0]
    assert "not registered" in errors[1]
