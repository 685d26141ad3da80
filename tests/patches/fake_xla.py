"""A small git repository in pytorch/xla's place, and a patch series for it."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

DEFAULT = '"triton_kernel_call"'

# Just enough source for check.py to follow the target through it.
BEFORE = {
    "torch_xla/csrc/xla_lower_util.h": "#pragma once\n",
    "torch_xla/csrc/xla_lower_util.cpp": "".join(f"// line {i}\n" for i in range(20))
    + "std::vector<xla::XlaOp> BuildGpuCustomCall(payload) {\n"
    + f"  return CustomCallWithLayout(inputs[0].builder(), {DEFAULT}, payload);\n"
    + "}\n",
    "torch_xla/csrc/ops/gpu_custom_call.cpp": "GpuCustomCall::GpuCustomCall(payload) {\n"
    "  MHash(payload);\n"
    "}\n\n"
    "NodePtr GpuCustomCall::Clone(operands) {\n"
    "  return MakeNode<GpuCustomCall>(operands, payload_);\n"
    "}\n\n"
    "XlaOpVector GpuCustomCall::Lower(loctx) {\n"
    "  return BuildGpuCustomCall(inputs, payload_);\n"
    "}\n",
    "torch_xla/csrc/tensor_methods.cpp": "std::vector<XLATensorPtr> gpu_custom_call(payload) {\n"
    "  return MakeNode<GpuCustomCall>(inputs, payload);\n"
    "}\n",
    "torch_xla/csrc/init_python_bindings.cpp": '      .def("_xla_gpu_custom_call",\n'
    "           [](payload) { return tensor_methods::gpu_custom_call(payload); })\n"
    '      .def("another", nothing);\n',
    "test/test_custom_call.py": "# no test\n",
}

AFTER = {
    "torch_xla/csrc/xla_lower_util.h": "#pragma once\n"
    f"inline constexpr char kDefaultGpuCustomCallTarget[] = {DEFAULT};\n",
    "torch_xla/csrc/xla_lower_util.cpp": BEFORE["torch_xla/csrc/xla_lower_util.cpp"]
    .replace(DEFAULT, "/*call_target_name=*/target")
    .replace("(payload) {", "(payload, target) {"),
    "torch_xla/csrc/ops/gpu_custom_call.cpp": BEFORE["torch_xla/csrc/ops/gpu_custom_call.cpp"]
    .replace("payload_)", "payload_, target_)")
    .replace("MHash(payload)", "MHash(payload, target)"),
    "torch_xla/csrc/tensor_methods.cpp": BEFORE["torch_xla/csrc/tensor_methods.cpp"].replace(
        "payload)", "payload, target)"
    ),
    "torch_xla/csrc/init_python_bindings.cpp": BEFORE[
        "torch_xla/csrc/init_python_bindings.cpp"
    ].replace(
        "payload); })", 'payload, target); },\n  py::arg("target") = kDefaultGpuCustomCallTarget)'
    ),
    "test/test_custom_call.py": "# a test\n",
}

MESSAGES = (
    "Name the target\n\nIt had no name.\n\nIt has one.\n\nTest plan:\n- python test\n",
    "Test the target\n\nIt had no test.\n\nIt has one.\n\nTest plan:\n- python test\n",
)


def git(tree: Path, *args: str) -> str:
    return subprocess.run(
        ["git", "-C", str(tree), *args], check=True, capture_output=True, text=True
    ).stdout.strip()


def write(tree: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def commit(tree: Path, message: str) -> str:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", message)
    return git(tree, "rev-parse", "HEAD")


@dataclasses.dataclass
class FakeXla:
    """`tree` stands on the release v1.2.3; `patches` has a series for it."""

    tree: Path
    patches: Path
    release_commit: str

    @property
    def series(self) -> Path:
        return self.patches / "torch_xla-1.2.3"

    def patch(self, number: int) -> Path:
        return sorted(self.series.glob("*.patch"))[number - 1]

    def write_series(self, after: dict[str, str], messages: tuple[str, ...] = MESSAGES) -> None:
        """Makes the series anew: the sources in the first patch, the test in each."""
        git(self.tree, "checkout", "--quiet", "--detach", self.release_commit)
        for number, message in enumerate(messages):
            files = {k: v for k, v in after.items() if number == 0 and not k.startswith("test/")}
            files["test/test_custom_call.py"] = f"{after['test/test_custom_call.py']}# {number}\n"
            write(self.tree, files)
            commit(self.tree, message)
        self.series.mkdir(parents=True, exist_ok=True)
        for old in self.series.glob("*"):
            old.unlink()
        git(self.tree, "format-patch", "-q", "--stat=200", "-o", str(self.series), "v1.2.3")
        self.write_list()
        git(self.tree, "checkout", "--quiet", "--detach", self.release_commit)

    def write_list(self) -> None:
        names = sorted(path.name for path in self.series.glob("*.patch"))
        lines = [f"# pytorch/xla v1.2.3 {self.release_commit}", *names]
        (self.series / "series").write_text("\n".join(lines) + "\n")


def make(folder: Path) -> FakeXla:
    tree = folder / "xla"
    tree.mkdir()
    git(tree, "init", "--quiet")
    git(tree, "config", "user.name", "Someone")
    git(tree, "config", "user.email", "someone@invalid")
    write(tree, BEFORE)
    release_commit = commit(tree, "The release")
    git(tree, "tag", "v1.2.3")
    fake = FakeXla(tree, folder / "patches", release_commit)
    fake.write_series(AFTER)
    return fake
