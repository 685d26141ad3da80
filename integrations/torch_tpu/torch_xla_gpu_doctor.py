"""``python -m torch_xla_gpu_doctor`` reports installed and missing parts, and runs a self-test.

This is a separate module, because `import torch_xla_gpu` raises an error if something is missing.
"""

import contextlib
import io
import sys
import traceback
from collections.abc import Callable


def _self_test() -> str:
    """Compare a compiled step's gradients, and a call of a kernel, with the CPU's."""
    import torch
    import torch_xla_gpu
    from torch_xla_gpu import ops

    kind = torch_xla_gpu.device.TYPE

    def gradient(device: str) -> torch.Tensor:
        x = torch.linspace(-1, 1, 12, device="cpu").view(3, 4).to(device).requires_grad_()

        def loss(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(x @ x.T).sum()

        (torch.compile(loss)(x) if device != "cpu" else loss(x)).backward()
        return x.grad.cpu()

    torch.testing.assert_close(gradient(kind), gradient("cpu"), rtol=1e-3, atol=1e-3)
    a = torch.arange(6.0)
    torch.testing.assert_close(ops.simple_add(a.to(kind), a.to(kind)).cpu(), a + a)
    return "a compiled step's gradients and XlaGpuSimpleAdd are right"


def report() -> tuple[list[str], list[str]]:
    """Return the lines of the report, and the problems."""
    from torch_xla_gpu_versions import installed
    from torch_xla_gpu_versions import problems as wrong_versions

    packages = ("torch", "torch-tpu", "torch-xla-gpu", "jax-cuda13-pjrt", "jax-cuda12-pjrt")
    packages += ("lammps-jax-pjrt-cpu",)
    lines = [f"{name:<22}{installed(name) or 'not installed'}" for name in packages]
    problems = wrong_versions()
    if problems:
        return lines, problems

    def attempt(what: Callable[[], str]) -> str | None:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return what()
        except Exception as error:
            trace = traceback.extract_tb(error.__traceback__)[-1]
            problems.append(f"{type(error).__name__}: {error} ({trace.filename}:{trace.lineno})")
            return None

    def device() -> str:
        import torch_xla_gpu

        found = torch_xla_gpu.device.current()
        lines.append(f"{'plugin':<22}{found.package}, {found.plugin}")
        lines.append("{:<22}{}.{}".format("PJRT API", *torch_xla_gpu.device.api_version()))
        lines.extend(f"{name:<22}{value or 'not found'}" for name, value in found.remarks.items())
        return found.platform

    for name, what in (("device", device), ("self-test", _self_test)):
        text = attempt(what)
        if text is None:
            break
        lines.append(f"{name:<22}{text}")
    return lines, problems


def main() -> None:
    lines, problems = report()
    print("\n".join(lines))
    for problem in problems:
        print(f"{'PROBLEM':<22}{problem}")
    print("all works" if not problems else f"{len(problems)} problem(s)")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
