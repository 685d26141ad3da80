"""examples/train_step.py learns, and is compiled once."""

import re

from testing.scripts import run_program


def test_train_step() -> None:
    result = run_program("examples/train_step.py")
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"^step +(\d+)  loss ([\d.]+)  compilations (\d+)$", result.stdout, re.M)
    assert [int(step) for step, _, _ in lines] == [5, 10, 15, 20]
    losses = [float(loss) for _, loss, _ in lines]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.6 * losses[0]
    # The first step has no gradients before it, the others have those of the previous step. Both
    # are one program.
    assert {int(compilations) for _, _, compilations in lines} == {1}
    assert "Metric: CompileTime\n  TotalSamples: 1\n" in result.stdout
    # .item() is the only thing that runs outside of XLA.
    assert re.findall("aten::.*", result.stdout) == ["aten::_local_scalar_dense"]
    times = re.search(
        r"^a step in ms: captured ([\d.]+), openxla ([\d.]+), lazy ([\d.]+)$", result.stdout, re.M
    )
    assert times
    assert all(float(time) > 0 for time in times.groups())
