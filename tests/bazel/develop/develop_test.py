"""`bazel run //:develop` links, unpacks and copies the right files."""

import json
import zipfile
from pathlib import Path

import develop
import pytest
import run


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name in (
        "python/package/__init__.py",
        "python/package/graph/__init__.py",
        "python/package/graph/step.py",
        "python/package/ops/__init__.py",
        "python/startup/__init__.py",
        "include/package/kernel.h",
        "kernels/add/op.py",
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return folder


def sources(checkout: Path) -> develop.Sources:
    files = (checkout / "python").rglob("*.py")
    return {
        "package/include/xla/ffi.h": None,
        **{str(file.relative_to(checkout / "python")): file for file in files},
        "package/ops/add.py": checkout / "kernels/add/op.py",
        "package/include/package/kernel.h": checkout / "include/package/kernel.h",
    }


def links(site: Path, checkout: Path) -> dict[str, str]:
    return {
        str(path.relative_to(site)): str(path.readlink().relative_to(checkout))
        for path in sorted(site.rglob("*"))
        if path.is_symlink()
    }


LINKS = {
    "package/__init__.py": "python/package/__init__.py",
    "package/graph": "python/package/graph",
    "package/include/package": "include/package",
    "package/ops/__init__.py": "python/package/ops/__init__.py",
    "package/ops/add.py": "kernels/add/op.py",
    "startup": "python/startup",
}


def test_folders_are_linked_as_a_whole_where_they_are_the_checkouts(
    tmp_path: Path, checkout: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    develop.link_files(sources(checkout), site)
    assert links(site, checkout) == LINKS
    (checkout / "python/package/graph/new.py").touch()
    assert (site / "package/graph/new.py").exists()


def test_links_are_brought_up_to_date(tmp_path: Path, checkout: Path) -> None:
    site = tmp_path / "site"
    (site / "package/graph").mkdir(parents=True)
    (site / "package/graph/step.py").write_text("of a wheel")
    (site / "package/gone.py").symlink_to(checkout / "gone.py")
    (site / "package/gone").mkdir()
    (site / "package/ops").symlink_to(checkout / "python/package/ops")
    develop.link_files(sources(checkout), site)
    assert links(site, checkout) == LINKS
    assert not (site / "package/gone").exists()
    assert (checkout / "python/package/ops/__init__.py").read_text()


def test_nothing_is_unpacked_into_the_checkout(tmp_path: Path, checkout: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    develop.link_files(sources(checkout), site)
    wheel = make_wheel(tmp_path, "1", **{"package/graph/unknown.py": ""})
    with pytest.raises(run.ExampleError, match=r"graph/unknown\.py would write into "):
        develop.unpack(wheel, site, [])


def make_wheel(folder: Path, version: str, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"torch_xla-{version}-cp311-cp311-any.whl"
    info = f"torch_xla-{version}.dist-info"
    names = [*files, f"{info}/METADATA", f"{info}/RECORD"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", version)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\r\n" for name in names))
    return path


def test_only_changed_files_are_unpacked(tmp_path: Path) -> None:
    site = tmp_path / "site"
    files = {"_XLAC.so": "1", "torch_xla/a.py": "a", "package/b.py": "b"}
    first = make_wheel(tmp_path, "1", **files)
    assert set(develop.unpack(first, site, ["package/b.py"])) == {
        "_XLAC.so",
        "torch_xla/a.py",
        "torch_xla-1.dist-info/METADATA",
        "torch_xla-1.dist-info/RECORD",
    }
    assert develop.unpack(first, site, ["package/b.py"]) == []
    record = (site / "torch_xla-1.dist-info/RECORD").read_text()
    assert "_XLAC.so" in record
    assert "package/b.py" not in record  # pip would remove the checkout's file
    inode = (site / "torch_xla/a.py").stat().st_ino
    second = make_wheel(tmp_path, "2", **files | {"_XLAC.so": "2"})
    assert "_XLAC.so" in develop.unpack(second, site, ["package/b.py"])
    assert (site / "torch_xla/a.py").stat().st_ino == inode
    assert [folder.name for folder in site.glob("*.dist-info")] == ["torch_xla-2.dist-info"]
    assert not (site / "package").exists()


def test_requirements_of_an_extra() -> None:
    metadata = (
        "Requires-Dist: numpy\n"
        'Requires-Dist: jax-cuda12-pjrt >=0.6.2, <0.13; extra == "cuda12"\n'
        'Requires-Dist: jax-cuda13-pjrt >=0.7.2; extra == "cuda13"\n'
    )
    assert develop.requirements_of_extra(metadata, "cuda12") == ["jax-cuda12-pjrt >=0.6.2, <0.13"]


def test_libraries_of_tests(tmp_path: Path) -> None:
    built = [tmp_path / name for name in ("liba.so", "libb.so")]
    for file in built:
        file.write_text(file.name)
    folder = tmp_path / "test_binaries"
    develop.copy_binaries({"A": built[:1], "BOTH": built}, folder)
    variables = json.loads((folder / "variables.json").read_text())
    assert variables == {"A": f"{folder}/liba.so", "BOTH": f"{folder}/liba.so {folder}/libb.so"}
    assert (folder / "libb.so").read_text() == "libb.so"


def test_a_lock_without_cudas_libraries(tmp_path: Path) -> None:
    lock = tmp_path / "test_env.lock"
    lock.write_text(
        "# made\n"
        "numpy==2 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
        "nvidia-nccl-cu12==2 \\\n    --hash=sha256:3\n"
        "torch==2.8.0 \\\n    --hash=sha256:4\n"
    )
    result = develop.without_cuda(lock, tmp_path / "locks")
    assert result.name == lock.name
    assert result.read_text() == (
        "# made\n"
        "numpy==2 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
        "torch==2.8.0 \\\n    --hash=sha256:4\n"
    )
