"""Runs cases in a separate process, which an operator may crash; `sweep.py` starts it.

Its standard output is a socket, from which it reads tasks, and to which it writes outcomes, one
JSON object a line. Whatever else is printed goes to stderr.
"""

import contextlib
import dataclasses
import gc
import json
import os
import socket
import warnings
from collections.abc import Callable, Sequence

import torch

from aten_overrides import cases, compare, devices, sums

# More cases in one program need more memory, and slow down torch.compile's tracing.
_COMPILED_TOGETHER = 8


@dataclasses.dataclass
class _Run:
    """A case, with PyTorch's result on the CPU."""

    index: int
    case: cases.Case
    expected: object
    what: str = "right"
    message: str = ""

    def fail(self, what: str, message: str) -> None:
        self.what, self.message = what, f"{message} for {self.case}"


def run(task: dict) -> dict:
    """Runs one task.

    Args:
      task: `mode`, `operator` and `dtype`; `count`, how many samples to run at least, or None for
        all; `samples`, those that are run in any case; `alone`: one program for each sample;
        `only_list`: run nothing.

    Returns:
      `outcomes`: by sample, a pair of "right" or a kind of fault, and a message. Samples that
      PyTorch refuses on the CPU are missing. With `only_list`, `chosen`: the samples that would be
      run.
    """
    mode, name, dtype = task["mode"], task["operator"], task["dtype"]
    gc.freeze()  # The collection after each program need not look at objects that exist already.
    made = cases.make(mode, name, dtype)
    flags = cases.MODES[mode]
    chosen = _spread(range(len(made)), flags.most)
    if task["count"] is not None:
        chosen = _spread(chosen, task["count"])
    chosen = sorted({*chosen, *task["samples"]} & {*range(len(made))})
    if task.get("only_list"):
        return {"outcomes": {}, "chosen": chosen}
    runs = []
    for index in chosen:
        with contextlib.suppress(Exception):
            runs.append(_Run(index, made[index], _on_cpu(made[index], flags)))
    size = 1 if task["alone"] else _COMPILED_TOGETHER if flags.is_compiled else 64
    for start in range(0, len(runs), size):
        together = runs[start : start + size]
        _compute(together, mode, name)
        if len(together) > 1:
            for one in together:
                if one.what != "right":
                    _again(one, mode, name)
    return {"outcomes": {one.index: (one.what, one.message) for one in runs}}


def _again(one: _Run, mode: str, name: str) -> None:
    """Runs a case that failed in a common program again, in a separate program."""
    alone = dataclasses.replace(one, what="right", message="")
    _compute([alone], mode, name)
    if alone.what != "right":
        one.what, one.message = alone.what, alone.message
    elif one.what == "wrong":
        one.message += " (in a program with other samples, not alone)"
    else:
        one.what, one.message = "right", ""


def _spread(indices: Sequence[int], count: int) -> list[int]:
    """Returns `count` of the indices, from the first to the last."""
    count = min(count, len(indices))
    return [indices[round(i * (len(indices) - 1) / max(count - 1, 1))] for i in range(count)]


def _on_cpu(case: cases.Case, mode: cases.Mode) -> object:
    cases.seed()
    return _results([case.on("cpu")], mode)[0]


def _compute(runs: list[_Run], mode: str, name: str) -> None:
    """Runs cases on the device in one program, and compares."""
    flags = cases.MODES[mode]
    cases.seed()
    devices.chosen().manual_seed(0)
    found: list[object]
    try:
        if flags.is_compiled:
            found = _results(
                [one.case.on(devices.chosen().type) for one in runs], flags, is_compiled=True
            )
        else:
            found = [_traced(one, flags) for one in runs]
        devices.chosen().sync()
        for one, result in zip(runs, found, strict=True):
            if one.what == "right" and one.case.is_on_a_device() and _is_on_cpu(result):
                one.fail("wrong", "a result is on the CPU")
        found = [cases.to_cpu(result) for result in found]
    except Exception as error:
        for one in runs:
            if one.what == "right":
                one.fail("error", _line(error))
        return
    finally:
        # Tensors of a program that failed would be part of the next one.
        gc.collect()
    for one, result in zip(runs, found, strict=True):
        if one.what == "right" and (text := _compared(one, result, mode, name)):
            one.fail("wrong", text)


def _traced(one: _Run, mode: cases.Mode) -> object:
    try:
        return _results([one.case.on(devices.chosen().type)], mode)[0]
    except Exception as error:
        one.fail("error", _line(error))
        return None


def _compared(one: _Run, found: object, mode: str, name: str) -> str | None:
    options: dict = {"only_shapes": name in cases.WITHOUT_NUMBERS}
    if mode == "sums":
        options["ulps"] = sums.ULPS
    elif name in cases.LIMITED_PRECISION:
        options["factor"] = cases.LIMITED_PRECISION[name]
    flags = cases.MODES[mode]
    expected, process = one.expected, _itself
    if flags.has_gradients:
        options["scale"] = one.case.largest()
    else:
        process = one.case.process
        try:
            found, expected = process(found), process(expected)
        except (RuntimeError, TypeError, ValueError) as error:
            return f"results that do not fit together: {_line(error)}"
    text = compare.difference(found, expected, **options)
    if text is not None and compare.has_16_bits(expected):
        with contextlib.suppress(Exception):
            exact = process(_results([one.case.in_float64()], flags)[0])
            return compare.difference(found, expected, exact=exact, **options)
    return text


def _is_on_cpu(results: object) -> bool:
    return any(x.device.type == "cpu" for x in cases.tensors(results))


def _itself(x: object) -> object:
    return x


def _results(
    on_device: Sequence[cases.Case], mode: cases.Mode, is_compiled: bool = False
) -> list[object]:
    """Returns the results of each case, or its gradients."""

    functions = [case.function for case in on_device]

    def call(operands: list[tuple]) -> list[object]:
        # A plain loop: Dynamo goes on after a graph break in it, but not after one in a
        # comprehension or a zip.
        results = []
        for i, (args, kwargs) in enumerate(operands):
            results.append(functions[i](*args, **kwargs))
        return results

    function: Callable = call
    if is_compiled:
        torch._dynamo.reset()
        function = torch.compile(call, backend=devices.chosen().backend)
    results = function([(case.args, case.kwargs) for case in on_device])
    if not mode.has_gradients:
        return list(results)
    return [
        _gradients(case, case.process(result))
        for case, result in zip(on_device, results, strict=True)
    ]


def _gradients(case: cases.Case, results: object) -> list[torch.Tensor | None]:
    """Returns the gradients of a weighted sum of the results."""
    outputs = [x for x in cases.tensors(results) if x.requires_grad]
    if not outputs:
        raise ValueError("no result has a gradient")
    weights = []
    for x in outputs:
        numbers = torch.linspace(0.5, 1.5, x.numel()).view(x.shape).to(x.dtype)
        if x.is_complex():
            numbers = numbers * (1 - 0.5j)
        weights.append(numbers.to(x.device))
    gradients = torch.autograd.grad(outputs, case.leaves(), weights, allow_unused=True)
    return list(gradients)


def _line(error: Exception) -> str:
    """Returns the type of an error, and the line of its text that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    telling = [line for line in lines if line.startswith(("XLA builder error: ", "Status: "))]
    return f"{type(error).__name__}: {(telling or lines)[0]}"[:300]


def main() -> None:
    warnings.simplefilter("ignore")
    tasks = socket.socket(fileno=os.dup(1)).makefile("rw")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    devices.chosen()
    for line in tasks:
        try:
            reply = run(json.loads(line))
        except Exception as error:
            reply = {"failed": _line(error)}
        print(json.dumps(reply), file=tasks, flush=True)
