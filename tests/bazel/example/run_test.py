"""`bazel run //examples:NAME` installs what the example needs, or says why it cannot."""

from pathlib import Path

import pytest
import run

NOT_THERE = "ERROR: No matching distribution found for torch==2.8.0+cpu"
UNREACHABLE = (
    "WARNING: Retrying: NewConnectionError\n"
    "ERROR: Could not find a version that satisfies the requirement (from versions: none)\n"
    "ERROR: No matching distribution found for torch==2.8.0+cpu"
)
WHEEL = Path("/wheels/torch_xla-2.8.1+gpucc2.a0000000-cp311-cp311-manylinux_2_34_x86_64.whl")


class FakeEnvironment(run.Environment):
    """Notes what pip is asked for. `failures` are pip's outputs for what fails."""

    def __init__(self, folder: Path, failures: dict[str, str] | None = None) -> None:
        super().__init__(folder)
        self.asked: list[str] = []
        self.failures = failures or {}

    def _make(self) -> None:
        self.folder.mkdir(exist_ok=True)

    def pip(self, *arguments: str) -> str | None:
        self.asked += arguments
        return self.failures.get(arguments[0])

    def run(self, script: Path) -> int:
        self.asked.append(f"run {script}")
        return len(self.failures)


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "check_room", lambda folder, gigabytes: None)


def test_installs_once(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path / "env")
    environment.prepare("CPU", WHEEL)
    environment.install_requirements(["triton"])
    assert environment.asked == ["torch==2.8.0+cpu", str(WHEEL), "triton"]
    again = FakeEnvironment(tmp_path / "env")
    again.prepare("CPU", WHEEL)
    again.install_requirements(["triton"])
    assert again.asked == []
    newer = WHEEL.with_name(WHEEL.name.replace("a0000000", "b0000000"))
    again.prepare("CPU", newer)
    assert again.asked == [str(newer)]


def test_locked_packages_and_a_setup(tmp_path: Path) -> None:
    lock = tmp_path / "model.lock"
    lock.write_text("model==1 --hash=sha256:00")
    setup, install = Path("install.py"), ["--no-deps", "--require-hashes", "-r", str(lock)]
    environment = FakeEnvironment(tmp_path / "env")
    environment.prepare("CPU", WHEEL, [lock], setup)
    assert environment.asked[2:] == ["run install.py", *install]
    again = FakeEnvironment(tmp_path / "env")
    again.prepare("CPU", WHEEL, [lock], setup)
    assert again.asked == []
    lock.write_text("model==2 --hash=sha256:00")
    newer = WHEEL.with_name(WHEEL.name.replace("a0000000", "b0000000"))
    again.prepare("CPU", newer, [lock], setup)
    assert again.asked == [str(newer), "run install.py", *install]


def test_a_setup_that_fails(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path / "env", {"no such package": ""})
    for _ in range(2):
        with pytest.raises(run.ExampleError, match=r"install\.py failed: see above"):
            environment.prepare("CPU", WHEEL, [], Path("install.py"))
    assert environment.asked.count("run install.py") == 2


def test_takes_the_whole_torch_where_there_is_no_cpu_build(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path / "env", {run.CPU_BUILD: NOT_THERE})
    environment.prepare("CPU", WHEEL)
    assert environment.asked == ["torch==2.8.0+cpu", "torch==2.8.0", str(WHEEL)]


def test_with_a_gpu_the_libraries_of_cuda(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path / "env")
    environment.prepare("CUDA", WHEEL)
    assert environment.asked == ["torch==2.8.0", f"{WHEEL}[cuda12]"]


def test_no_network_is_one_sentence(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path / "env", {run.CPU_BUILD: UNREACHABLE})
    with pytest.raises(run.ExampleError, match=r"could not reach its package index .* check the"):
        environment.prepare("CPU", WHEEL)
    assert environment.asked == ["torch==2.8.0+cpu"]
    assert environment.installed() == {}


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(run.ExampleError, match=r"needs 1000000 GB but its disk has .* GB left: "):
        run.check_room(tmp_path, 1_000_000)
    run.check_room(tmp_path, 0)


def test_each_device_has_an_environment_folder() -> None:
    folder = run.environment_folder("CPU", {"HOME": "/home/me"})
    assert str(folder.parent) == "/home/me/.cache/torch_xla_ext"
    assert folder != run.environment_folder("CUDA", {"HOME": "/home/me"})
    assert run.environment_folder("CPU", {"TORCH_XLA_EXT_ENV": "/e"}) == Path("/e")
