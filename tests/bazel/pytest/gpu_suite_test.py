"""gpu_suite.py packs and runs tests in parts, resumes, and merges results, here without a GPU."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import gpu_suite
import pytest

TESTS = {
    "tests/good_test.py": """
        import os
        def test_one(): pass
        def test_two(): pass
        def test_device(): assert os.environ["CUDA_VISIBLE_DEVICES"] in ("4", "7")
    """,
    "tests/two_test.py": """
        import os
        os.environ["CPU_NUM_DEVICES"] = "2"
        def test_devices():
            assert sorted(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == ["4", "7"]
    """,
    "tests/bad_test.py": """
        import os, time, pytest
        def test_wrong(): assert 1 == 2
        def test_end(): os.kill(os.getpid(), 11)
        @pytest.mark.skip(reason="not today")
        def test_skipped(): pass
        def test_exit(): os._exit(0)
        def test_late(): time.sleep(60)
        def test_after(): pass
    """,
    "tests/import_test.py": "import a_module_that_nobody_has\ndef test_it(): pass",
    "tests/slow_test.py": """
        import pathlib, time
        def test_quick(): pathlib.Path("runs").open("a").write("quick ")
        def test_slow(): time.sleep(float(pathlib.Path("seconds").read_text()))
    """,
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that has the tests above."""
    root = tmp_path / "root"
    for name, text in TESTS.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = text.splitlines()
        file.write_text("\n".join(line.removeprefix(" " * 8) for line in lines) + "\n")
    (root / "bazel").mkdir()
    table = gpu_suite.ROOT / "bazel/test_binaries.bzl"
    (root / "bazel/test_binaries.bzl").write_text(table.read_text())
    monkeypatch.setattr(gpu_suite, "ROOT", root)
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    return root


def run(results: Path, *arguments: str | Path, code: int = 0) -> None:
    default = {"--minutes": "1", "--results": results, "--gpus": "4,7"}
    options = [each for pair in default.items() if pair[0] not in arguments for each in pair]
    sys.argv = ["gpu_suite.py", "run", *map(str, [*options, *arguments])]
    with pytest.raises(SystemExit) as end:
        gpu_suite.main()
    assert end.value.code == code


def outcomes(results: Path) -> dict[str, str]:
    return {
        f"{Path(file).stem}::{test}": line["outcome"]
        for (file, test), line in gpu_suite.Results.read([results]).tests.items()
    }


def test_each_result_is_recorded_and_each_file_has_its_gpus(root: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    run(results, "tests/good_test.py", "tests/two_test.py", "tests/import_test.py")
    assert outcomes(results) == {
        "good_test::test_one": "passed",
        "good_test::test_two": "passed",
        "good_test::test_device": "passed",
        "two_test::test_devices": "passed",
        "import_test::(import)": "failed",
    }


def test_a_test_that_ends_the_process_or_hangs_fails_alone(root: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    run(results, "tests/bad_test.py", "--test-seconds", "4")
    assert outcomes(results) == {
        "bad_test::test_wrong": "failed",
        "bad_test::test_end": "failed",
        "bad_test::test_skipped": "skipped",
        "bad_test::test_exit": "failed",
        "bad_test::test_late": "failed",
        "bad_test::test_after": "passed",
    }
    text, good = gpu_suite.report([results], tmp_path / "none.toml")
    assert not good
    for part in (
        "1 tests passed, 4 failed (4 without an explanation), 1 were skipped",
        "`test_wrong`: assert 1 == 2",
        "`test_end`: the process ended by signal 11 (SIGSEGV)",
        "`test_late`: no result within the time limit",
        "not today",
        "- tests/good_test.py",
    ):
        assert part in text


def test_a_folder_lacks_the_files_that_are_left_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = tmp_path / "explained.toml"
    explained.write_text('not_on_a_gpu = ["tests/bad_*"]')
    monkeypatch.setattr(gpu_suite, "EXPLAINED", explained)
    for_a_gpu = sorted(set(TESTS) - {"tests/bad_test.py"})
    assert gpu_suite.test_files() == gpu_suite.test_files(["tests/"]) == for_a_gpu
    assert gpu_suite.test_files(["tests/bad_test.py"]) == ["tests/bad_test.py"]


def test_done_continues_an_earlier_run(root: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    (root / "seconds").write_text("60")
    run(first, "tests/slow_test.py", "tests/good_test.py", "--minutes", "0.1", code=3)
    assert outcomes(first)["slow_test::test_quick"] == "passed"
    assert "slow_test::test_slow" not in outcomes(first)
    (root / "seconds").write_text("0")
    run(second, "tests/slow_test.py", "tests/good_test.py", "--done", first)
    assert outcomes(second) == {"slow_test::test_slow": "passed"}
    assert (root / "runs").read_text() == "quick "
    text, _ = gpu_suite.report([second, first], tmp_path / "none.toml")
    assert "2 files: 5 tests passed, 0 failed" in text


def test_failed_tests_again(root: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    run(results, "tests/good_test.py", "tests/import_test.py")
    (root / "a_module_that_nobody_has.py").write_text("")
    (root / "conftest.py").write_text("import sys; sys.path.insert(0, '.')")
    run(results, "tests/good_test.py", "tests/import_test.py", "--again-failed")
    assert outcomes(results)["import_test::test_it"] == "passed"
    assert outcomes(results)["good_test::test_one"] == "passed"
    text, _ = gpu_suite.report([results], tmp_path / "none.toml")
    assert " 0 failed" in text


def test_a_failure_needs_an_explanation_of_its_message(root: Path, tmp_path: Path) -> None:
    results, explained = tmp_path / "results.jsonl", tmp_path / "explained.toml"
    run(results, "tests/import_test.py")
    row = '[failures.because]\n"tests/import_test.py::*" = ["a text", "{}"]\n'
    explained.write_text(row.format("another"))
    assert "1 failed (1 without an explanation)" in gpu_suite.report([results], explained)[0]
    explained.write_text(row.format("a_module_that_nobody_has"))
    assert "1 failed (0 without an explanation)" in gpu_suite.report([results], explained)[0]


def test_files_for_more_gpus_than_there_are(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "results.jsonl", "tests/two_test.py", "--gpus", "4")
    assert "not here, it needs 2 GPUs: tests/two_test.py" in capsys.readouterr().out


def test_pack_has_the_checkout_and_the_libraries(root: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    library = root / "bazel-bin/tests/csrc/libhost_kernels.so"
    library.parent.mkdir(parents=True)
    library.write_text("library")
    (root / ".gitignore").write_text("bazel-bin\n")
    archive = tmp_path / "suite.tar.gz"
    gpu_suite.pack(archive, None, build=False)
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert "test_binaries/libhost_kernels.so" in names
    assert "tests/good_test.py" in names
    assert not any(name.startswith("bazel-bin") for name in names)


def test_variables_of_libraries(tmp_path: Path) -> None:
    for name in ("libgpu_kernels.so", "libtwin2.so"):
        (tmp_path / name).touch()
    assert [*gpu_suite.library_variables(tmp_path)] == ["GPU_KERNELS"]  # TWINS has two files
    assert json.dumps(gpu_suite.library_targets()["HOST_KERNELS"]) == (
        '["//tests/csrc:libhost_kernels.so"]'
    )
