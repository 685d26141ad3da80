"""Triton kernels that the tests share. For some tests they are compiled for a GPU."""
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


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
    """c = a @ b.T for [SIZE, SIZE], which needs much shared memory."""
    rows = tl.arange(0, SIZE)
    at = rows[:, None] * SIZE + rows[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.trans(tl.load(b_ptr + at)))
    tl.store(c_ptr + at, c.to(tl.float16))


@triton.jit
def scaled_sum(pair, y_ptr, sizes, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < sizes[0]
    first = tl.load(pair[0] + offsets, mask=inside)
    second = tl.load(pair[1] + offsets, mask=inside)
    tl.store(y_ptr + offsets, first * sizes[1] + second, mask=inside)


@triton.jit
def copy_in_pair(pair, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(pair[1] + offsets, tl.load(pair[0] + offsets, mask=inside), mask=inside)


@gluon.jit
def doubled(x_ptr, y_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    inside = offsets < n
    gl.store(y_ptr + offsets, gl.load(x_ptr + offsets, mask=inside) * 2, mask=inside)


@triton.jit
def scaled_by_descriptors(source, out, factor, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out = source * factor. Both are descriptors with blocks of [ROWS, COLUMNS]."""
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    out.store([row, column], source.load([row, column]) * factor)


@triton.jit
def product_of_descriptors(a, b, c, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """c = a @ b.T. All are descriptors with blocks of [SIZE, SIZE]."""
    row, column = tl.program_id(0) * SIZE, tl.program_id(1) * SIZE
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for k in range(0, WIDTH, SIZE):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    c.store([row, column], total.to(tl.float16))
