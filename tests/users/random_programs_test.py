"""Thousands of programs in one process, each with its own numbers.

Upstream torch_xla 2.8.1 finds compiled programs by an incomplete hash (docs/ debugging.md).
Programs with equal hashes must have equal HLO, and every result must be the CPU's.

RANDOM_PROGRAMS and RANDOM_SEED choose how many, and which.
"""

import os

import torch
import torch_xla
from testing.random_programs import Program

COUNT = int(os.environ.get("RANDOM_PROGRAMS", "1200"))
SEED = int(os.environ.get("RANDOM_SEED", "0"))
TOGETHER = 25  # programs whose values are read at once: XLA takes half the time for each
Tensors = list[torch.Tensor]


def is_computed(tensor: torch.Tensor) -> bool:
    """Whether a pending program computes the tensor."""
    return "XLAData: None" in torch_xla._XLAC._get_xla_tensor_debug_info(tensor)


def values_of(several: list[Tensors]) -> list[Tensors | RuntimeError]:
    """The values of programs' results, computed by one XLA program, or the error of each."""
    try:
        tensors = [result for results in several for result in results]
        values = iter(torch_xla._XLAC._xla_get_cpu_tensors(tensors))
    except RuntimeError as error:
        if len(several) == 1:
            return [error]
        return [value for results in several for value in values_of([results])]
    return [[next(values) for _ in results] for results in several]


def test_random_programs(device: torch.device) -> None:
    hlo_of: dict[bytes, str] = {}
    texts: dict[bytes, str] = {}
    failures = []
    for first in range(SEED, SEED + COUNT, TOGETHER):
        run: dict[int, tuple[Program, Tensors]] = {}
        for seed in range(first, min(first + TOGETHER, SEED + COUNT)):
            program = Program(seed)
            try:
                results = program.run(device)
                # Several results may be one tensor: y and y.detach().
                tensor_id = torch_xla._XLAC._xla_get_tensor_id
                computed = list({tensor_id(r): r for r in results if is_computed(r)}.values())
                program_hash = torch_xla._XLAC._get_graph_hash(computed)
                hlo = torch_xla._XLAC._get_xla_tensors_hlo(computed)
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                failures.append(f"# seed {seed}\n{program}\n# {error}")
                continue
            if hlo_of.setdefault(program_hash, hlo) != hlo:
                failures.append(
                    f"# seed {seed}\n{program}\n# has the hash of\n{texts[program_hash]}"
                )
            texts.setdefault(program_hash, str(program))
            run[seed] = program, results
        read = values_of([results for _, results in run.values()])
        for (seed, (program, _)), values in zip(run.items(), read, strict=True):
            if isinstance(values, RuntimeError):
                failures.append(f"# seed {seed}\n{program}\n# {values}")
                continue
            for name, value, expected in zip(
                program.results, values, program.expected, strict=True
            ):
                try:
                    torch.testing.assert_close(
                        value, expected, rtol=2e-3, atol=2e-3, equal_nan=True
                    )
                except AssertionError as error:
                    failures.append(f"# seed {seed}: {name}\n{program}\n# {error}")
    assert not failures, f"{len(failures)} of {COUNT}:\n" + "\n\n".join(failures[:10])
    assert len(hlo_of) > COUNT // 4, "the programs hardly differ"


def test_programs_whose_numbers_pytorch_does_not_define() -> None:
    """A write to an expanded tensor by indices, which PyTorch only warns about, is left out."""
    assert "index_put_" not in str(Program(14043))
