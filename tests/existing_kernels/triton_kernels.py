"""Kernels of Triton that the tests share, also to be compiled for a GPU."""
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def square(x):
    return x * x


@triton.jit
def rms_norm(x_ptr, weight_ptr, y_ptr, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(square(x), axis=0) / columns + epsilon)
    weight = tl.load(weight_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * columns + offsets, x * scale * weight, mask=inside)


@triton.jit
def add_scaled(state_ptr, x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    state = tl.load(state_ptr + offsets, mask=inside)
    x = tl.load(x_ptr + offsets, mask=inside)
    tl.store(state_ptr + offsets, state + x * factor, mask=inside)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256}, num_warps=8)], ["n"])
@triton.jit
def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + 1, mask=inside)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def guessed(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) * 2, mask=inside)


@triton.jit
def transposed_product(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr):
    """c = a @ b.T, of [SIZE, SIZE]: uses much shared memory."""
    rows = tl.arange(0, SIZE)
    at = rows[:, None] * SIZE + rows[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.trans(tl.load(b_ptr + at)))
    tl.store(c_ptr + at, c.to(tl.float16))
