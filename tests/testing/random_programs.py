"""Random small programs, as lines of Python that run on any device.

A program's lines read and write the variables of one namespace. The space of programs is small on
purpose: a few shapes, a few sizes, and operations whose variants differ in one attribute, so that
many programs differ in little from one that ran before.
"""

import random
import re
import warnings
from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812

# Possible lines. {x}, {y}, {z}: tensors; {d}, {e}: dimensions; {n}: a small integer; {s}: a number;
# {t}: a dtype; {b}: a bool; {i}: an integer tensor of one dimension; {a}, {m}, {f}: other numbers.
_VALUES = """
{x} + {y}
{x} - {y}
{x} * {y}
{x} + {s}
{s} - {x}
{x} * {s}
torch.add({x}, {y}, alpha={s})
torch.maximum({x}, {y})
torch.minimum({x}, {y})
torch.where({x} > {y}, {x}, {x} * {n})
torch.where({x} > {s}, {y}, {y} - {n})
torch.lerp({x}, {y}, {s})
torch.addcmul({x}, {y}, {z}, value={s})
torch.full_like({x}, {s})
torch.full_like({x}, {s}, dtype={t})
torch.zeros_like({x}, dtype={t})
torch.eq({x}, {y})
torch.lt({x}, {s})
{x}.to({t})
{x}.clone()
{x}.detach()
{x}.view(-1)
{x}.contiguous()
-{x}
{x}.abs()
{x}.tanh()
F.relu({x})
F.celu({x}, alpha={a})
F.elu({x}, alpha={a})
F.leaky_relu({x}, {a})
F.hardtanh({x}, -{a}, {a})
F.softplus({x}, beta={a})
F.threshold({x}, {a}, {n})
F.hardshrink({x}, {a})
F.softshrink({x}, {a})
F.gelu({x}, approximate="none")
F.gelu({x}, approximate="tanh")
{x}.float().clamp(min={a})
{x}.float().clamp(max={a})
{x}.clamp(-{n}, {n})
{x}.sum({d})
{x}.sum({d}, keepdim=True)
{x}.sum(({d}, {e}))
{x}.sum({d}, dtype=torch.float64)
{x}.mean({d}, keepdim={b})
{x}.prod({d})
{x}.amax({d}, keepdim={b})
{x}.amin({d})
{x}.argmax({d})
{x}.argmin({d}, keepdim={b})
{x}.any({d})
{x}.all({d}, keepdim={b})
{x}.var({d}, correction={n})
{x}.std({d}, unbiased={b})
{x}.norm({n}, {d})
{x}.float().logsumexp({d})
{x}.cumsum({d})
{x}.cumprod({d})
{x}.softmax({d})
{x}.log_softmax({d})
{x}.sort({d}, descending={b}).values
{x}.sort({d}, stable=True, descending={b}).indices
{x}.topk({n}, {d}, largest={b}).values
{x}.kthvalue({n}, {d}).values
{x}.max({d}).values
{x}.min({d}).values
{x}.t()
{x}.transpose({d}, {e})
{x}.permute({d}, {e})
{x}.flip({d})
{x}.roll({n}, {d})
{x}.roll({n})
{x}.tril({n})
{x}.triu(-{n})
{x}.reshape(4, -1).diagonal({n})
{x}.diag_embed({n})
{x}.unsqueeze({d})
{x}.squeeze({d})
{x}.reshape(-1)
{x}.reshape({n}, -1)
{x}.expand({n}, 4, 4).clone()
{x}[None].expand(2, 4, 4)
{x}[{n}].expand(3, 4)
{x}[:, :1].expand(4, {m})
{x}.mT
{x}.movedim(0, 1)
{x}.view(2, 8)
{x}.reshape(2, 8)
{x}.flatten()
{x}.ravel()
{x}.t().ravel()
{x}.unflatten(0, (2, 2))
{x}[..., None]
{x}.diagonal({n})
{x}.unfold({d}, 2, 2)
{x}.float().view(torch.int32)
{x}.type_as({y})
{x}.expand_as({y})
{x}[{y} > {a}]
{x}.nonzero()
torch.view_as_real(torch.complex({x}.float(), {y}.float()))
{x}.repeat({n}, 1)
{x}.repeat_interleave({n}, {d})
{x}.narrow({d}, {n}, 2)
{x}.select({d}, {n})
{x}[{n}]
{x}[:, {n}]
{x}[{n}:]
{x}[:, ::{n}]
{x}[1:3, {n}:]
{x}.unfold({d}, 2, 1).clone()
{x}.chunk(2, {d})[0]
{x}.chunk(2, {d})[1]
{x}.split([1, 3], {d})[0]
{x}.split([1, 3], {d})[1]
{x}.unbind({d})[{n}]
torch.cat([{x}, {y}], {d})
torch.cat([{y}, {x}, {y}], {d})
torch.stack([{x}, {y}], {d})
torch.stack([{x}, {x}, {y}], {d})
F.pad({x}, (0, {n}))
F.pad({x}, ({n}, 0))
F.pad({x}, (1, 1, 0, 0), value={s})
F.pad({x}, (0, 0, 1, 1), value={s})
{x} @ {y}
{x}.t() @ {y}
torch.addmm({x}, {y}, {z}, beta={s}, alpha={n})
torch.baddbmm({x}[None], {y}[None], {z}[None], beta={n})
torch.einsum("ij,kj->ik", {x}, {y})
torch.einsum("ij,ij->i", {x}, {y})
torch.einsum("ij,ij->j", {x}, {y})
torch.outer({x}[0], {y}[:, 0])
{x}.index_select({d}, {i})
{x}.gather({d}, {i}[None, :].expand(4, 4))
{x}.scatter({d}, latin_square({n}, {x}), {y})
{x}.scatter_add({d}, {i}[:, None].expand(4, 4), {y})
{x}.index_add({d}, {i}, {y})
{x}.index_add({d}, {i}, {y}, alpha={n})
{x}.index_copy({d}, torch.arange(4, device={x}.device).roll({n}), {y})
{x}.index_fill({d}, {i}, {s})
{x}.masked_fill({y} > 0, {s})
{x}.take({i})
{x}[{i}]
{x}[:, {i}]
F.one_hot({i}, num_classes={m})
F.embedding({i}, {x})
F.pixel_shuffle({x}.reshape(1, 4, 2, 2), 2)
F.pixel_shuffle(torch.cat([{x}] * 4).reshape(1, 16, 2, 2), {f})
F.avg_pool2d({x}.float().reshape(1, 1, 4, 4), 2, divisor_override={n})
F.avg_pool2d({x}.float().reshape(1, 1, 4, 4), 2, padding=1, count_include_pad={b})
F.avg_pool2d({x}.float().reshape(1, 1, 4, 4), 3, stride={n}, ceil_mode={b})
F.max_pool2d({x}[None, None], 2, stride={n})
F.max_pool2d({x}[None, None], {n}, 1)
F.conv2d({x}[None, None], {y}[None, None, :2, :2], stride={n})
F.conv2d({x}[None, None], {y}[None, None, :2, :2], padding={n})
F.conv2d({x}[None, None], {y}[None, None, :2, :2], dilation={n})
F.conv_transpose2d({x}[None, None], {y}[None, None, :2, :2], stride={n})
F.layer_norm({x}, (4,), eps={a})
F.layer_norm({x}, (4, 4), eps={a})
F.mse_loss({x}, {y}, reduction="sum")
F.mse_loss({x}, {y}, reduction="mean")
F.smooth_l1_loss({x}, {y}, beta={a})
F.cosine_similarity({x}, {y}, dim={d})
F.normalize({x}, dim={d})
torch.arange({n}, {m}, device={x}.device)
torch.linspace(0, {n}, 4, device={x}.device)
torch.ones({n}, 4, device={x}.device)
torch.eye({n}, {m}, device={x}.device)
torch.cdist({x}.reshape(4, 4), {y}.reshape(4, 4), p={n}.0)
torch.floor_divide({x}, {n})
torch.remainder({x}.float(), {a})
{x}.pow({n})
{x}.bitwise_and({n})
{x}.nan_to_num({s})
{x}.addcdiv({y}, {z}.abs() + 1, value={s})
gradient(lambda x: F.leaky_relu(x, {a}).sum(), {x})
gradient(lambda x: (x * {y}).softmax({d}).select({e}, {n}).sum(), {x})
gradient(lambda x: x.cumsum({d}).select({e}, {n}).sum(), {x})
gradient(lambda x: F.avg_pool2d(x[None, None], 2, divisor_override={n}).sum(), {x})
gradient(lambda x: x.index_select({d}, {i}).pow(2).sum(), {x})
kernel({x}, {y})
kernel({y}, {x} * {s})
""".strip().splitlines()

_STATEMENTS = """
{x} += {y}.clone()
{x} -= {s}
{x}.mul_({y}.clone())
{x}.copy_({y}.clone())
{x}.copy_({y})
{x}.zero_()
{x}.fill_({s})
{x}[{n}] = {y}.clone()[{n}] + 0
{x}[{n}] = {s}
{x}[:, {n}] += {i}
{x}[1:3].mul_({s})
{x}.t().add_({y}.clone())
{x}.narrow({d}, {n}, 1).fill_({s})
{x}.view(4, 4).fill_diagonal_({s})
{x}.index_add_({d}, {i}, {y}.clone())
{x}.index_copy_({d}, torch.arange(4, device={x}.device).roll({n}), {y}.clone())
{x}.index_put_(({i},), {y}.clone(), accumulate=True)
{x}.masked_fill_({y}.clone() > {a}, {s})
{x}.expand(2, *{x}.shape)[1].mul_({s})
{x}[:, :1].expand(-1, 3)[:, {n} - 1].sub_({s})
{x}[0].expand(3, -1)[:, {n}].fill_({s})
{x}.diagonal().mul_({s})
{x}.diagonal(-{n}).fill_({s})
{x}.unfold({d}, 2, 2)[0].add_({s})
{x}.view(2, 8)[:, ::{n}].zero_()
{x}.reshape(-1)[{n}:].add_({s})
{x}.flatten()[:4].mul_({n})
{x}.contiguous().add_({s})
{x}.ravel()[0] = {s}
{x}.t()[{n}] += {y}[0].clone()
{x}.t_()
{x}.transpose_(0, 1)
{x}.unsqueeze_({d})
{x}.squeeze_()
{x}.clamp_(-{a}, {a})
{x}[{y}.clone() > {a}] = {s}
{x}.chunk(2, {d})[1].add_({s})
{x}.split([1, 3], {d})[0].mul_({n})
{x}.unbind({d})[{n}].zero_()
{x}.swapaxes(0, 1)[1:].fill_({s})
{x}.lerp_({y}.clone(), 0.5)
{x}.cumsum_({d})
{x}.tril_({n})
{x}.round_()
{x}.scatter_({d}, latin_square({n}, {x}), {y}.clone())
{x}.scatter_reduce_({d}, latin_square({n}, {x}), {y}.clone(), "amax")
{x}.put_({i}, {y}.clone()[0], accumulate=True)
{x}.masked_scatter_({y}.clone() > {a}, {x}.clone())
F.relu({x}, inplace=True)
torch.add({x}.clone(), {s}, out={x})
torch.mul({x}.clone(), {s}, out={x})
sync()
""".strip().splitlines()

_CHOICES = {
    "{d}": ["0", "1", "-1"],
    "{e}": ["0", "1"],
    "{n}": ["1", "2", "3"],
    "{m}": ["4", "5"],
    "{f}": ["2", "4"],
    "{s}": ["1", "1.0", "True", "2", "0.5", "-1"],
    "{a}": ["0.25", "0.5", "1.5"],
    "{b}": ["True", "False"],
    "{t}": ["torch.float32", "torch.int64", "torch.int32", "torch.bool", "torch.float64"],
}
State = list[torch.Tensor]
_LEAVES = {
    "a": lambda g: torch.randint(-8, 9, (4, 4), generator=g) / 4,
    "b": lambda g: torch.randint(-8, 9, (4, 4), generator=g) / 4 + 0.125,
    "c": lambda g: torch.randint(-8, 9, (4, 4), generator=g) / 2,
    "i": lambda g: torch.randint(0, 4, (4,), generator=g),
    "j": lambda g: torch.randint(0, 4, (4,), generator=g),
}

# Whether these copy depends on the strides of intermediate results, which follow the operands'
# strides in PyTorch, but not on XLA.
_COPIES_IF_STRIDED = re.compile(r"\b(v\d+)\.(?:t\(\)\.)?(?:contiguous|flatten|ravel|reshape)\(")


def latin_square(shift: int, like: torch.Tensor) -> torch.Tensor:
    """Indices without duplicates along either dimension, whose results would be undefined."""
    numbers = torch.arange(4, device=like.device)
    return (numbers[:, None] + numbers.roll(shift)) % 4


def gradient(function: object, x: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(function(leaf), leaf)
    return result


class Program:
    """Lines of Python, the leaves that they start from, and the variables that are its results."""

    def __init__(self, seed: int) -> None:
        """Makes a program, and runs it on the CPU: `expected` are the values of `results`."""
        self._leaves = {
            name: make(torch.Generator().manual_seed(seed)) for name, make in _LEAVES.items()
        }
        self.lines: list[str] = []
        rng = random.Random(seed)
        variables = self._variables(torch.device("cpu"))
        names = list(_LEAVES)
        for _ in range(rng.randint(1, 5)):
            line = self._line(rng, variables, names)
            if line is not None:
                self.lines.append(line)
        self.results = rng.sample(names, len(names))
        self.expected = [variables[name] for name in self.results]

    def __str__(self) -> str:
        return "\n".join([*self.lines, "# results: " + ", ".join(self.results)])

    def run(self, device: torch.device) -> list[torch.Tensor]:
        """Returns the results, that device's tensors."""
        variables = self._variables(device)
        for line in self.lines:
            exec(line, variables)
        return [variables[name] for name in self.results]

    def step(
        self, device: torch.device, views: bool = False, keep: bool = False
    ) -> tuple[Callable[..., tuple[torch.Tensor, ...]], State]:
        """The program as a function of its leaves, which it writes to, and leaves for it.

        Args:
            device: the device of the leaves.
            views: whether a, b and c are views with pending operations; some share one tensor.
            keep: whether a, b and c are the function's state, instead of its arguments.
        """
        variables = self._variables(device)
        leaves = [variables[name] for name in _LEAVES]
        if views:
            leaves[:3] = self._views(leaves[:3])
        body = "".join(f"    {line}\n" for line in self.lines if line != "sync()")
        body += f"    return ({', '.join(self.results)},)"
        if keep:
            variables["kept"] = leaves[:3]
            body = f"def step(i, j):\n    a, b, c = kept\n{body}"
        else:
            body = f"def step({', '.join(_LEAVES)}):\n{body}"
        exec(body, variables)
        return variables["step"], leaves

    def _views(self, tensors: State) -> State:
        """Returns views of these tensors. Their kind depends on the seed, not on the device."""
        rng = random.Random(str(self))
        way = rng.randrange(9)
        if way == 4 and any(map(_COPIES_IF_STRIDED.search, self.lines)):
            way = 0
        if way == 1:  # of one tensor
            tensors = list(torch.stack(tensors))
        elif way == 2:  # that overlap
            rows = torch.cat(tensors)
            tensors = [rows[:4], rows[2:6], rows[8:]]
        elif way == 3:
            tensors = [tensor.view(16).view(4, 4) for tensor in tensors]
        elif way == 4:
            tensors = [tensor.t().contiguous().t() for tensor in tensors]
        elif way == 5:
            tensors = [(tensor * 2).detach()[:] for tensor in tensors]
        elif way == 7:
            tensors = [torch.cat([tensor] * 2, 1)[:, 4:] for tensor in tensors]
        elif way == 8:
            tensors = [tensor.repeat_interleave(2, 0)[::2] for tensor in tensors]
        elif way == 6:  # a clone, which can share its source's values
            tensors = [tensors[0][:], tensors[0].clone(), tensors[2].clone()[:]]
        if rng.random() < 0.5:
            tensors[rng.randrange(3)].add_(1)
        return tensors

    def _variables(self, device: torch.device) -> dict[str, object]:
        import torch_xla

        from torch_xla_ext import ops

        on_cpu = device.type == "cpu"
        return {
            "torch": torch,
            "F": F,
            "gradient": gradient,
            "latin_square": latin_square,
            "kernel": ops.simple_add,
            "sync": (lambda: None) if on_cpu else torch_xla.sync,
        } | {name: leaf.clone().to(device) for name, leaf in self._leaves.items()}

    def _line(
        self, rng: random.Random, variables: dict[str, object], names: list[str]
    ) -> str | None:
        """Runs random lines until one succeeds, and returns it; None after several failures."""
        for _ in range(20):
            statement = rng.random() < 0.2
            line = rng.choice(_STATEMENTS if statement else _VALUES)
            new = f"v{len(names)}"
            line = line if statement else f"{new} = {line}"
            for mark, choices in _CHOICES.items():
                while mark in line:
                    line = line.replace(mark, rng.choice(choices), 1)
            # Upstream refuses many operations of bools.
            tensors = [n for n in names if n not in "ij" and variables[n].dtype != torch.bool]
            for mark in ("{x}", "{y}", "{z}"):
                line = line.replace(mark, rng.choice(tensors))
            line = line.replace("{i}", rng.choice("ij"))
            if self._works(line, variables, (*names, new)):
                if not statement:
                    names.append(new)
                return line
            variables.update(self._variables(torch.device("cpu")))
            for earlier in self.lines:
                exec(earlier, variables)
        return None

    def _works(self, line: str, variables: dict[str, object], names: tuple[str, ...]) -> bool:
        """Runs the line, and says whether its results can be compared."""
        copied = _COPIES_IF_STRIDED.search(line)
        source = variables[copied[1]] if copied else None
        if source is not None and source._base is None and not source.is_contiguous():
            return False
        if copy := re.fullmatch(r"(\w+)\.copy_\((\w+)\)", line):
            # If the two overlap, PyTorch reads elements that it has written before.
            target, source = (variables[name].untyped_storage() for name in copy.groups())
            if target.data_ptr() == source.data_ptr():
                return False
        try:
            with warnings.catch_warnings():
                # PyTorch's CPU adds up elements that share memory in an undefined order.
                warnings.filterwarnings("error", "Use of index_put_ on expanded tensors")
                exec(line, variables)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, UserWarning):
            return False
        return all(
            isinstance(value, torch.Tensor)
            and value.dim() > 0  # upstream refuses some dimensions of scalars
            and 0 < value.numel() <= 256
            and value.double().isfinite().all()
            and value.double().abs().max() < 1e5
            for value in (variables[name] for name in names if name in variables)
        )
