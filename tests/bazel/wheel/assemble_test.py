"""assemble: the version, licenses, and what stops it. tests/wheel checks the content."""

import dataclasses
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import assemble
import pytest
from fakes import UPSTREAM_FILES, library_needing, write_upstream_wheel
from packaging.version import Version

NAME = re.compile(
    r"torch_xla-(2\.8\.1\+gpucc1\.[a-f][0-9a-f]{7})-cp311-cp311-manylinux_2_34_x86_64\.whl"
)


@pytest.fixture
def spec(tmp_path: Path) -> assemble.Spec:
    texts = {"init.py": "# ours\n", "README.md": "# Ours\n", "LICENSE": "ours\n"}
    for name, text in texts.items():
        Path(tmp_path, name).write_text(text)
    out = tmp_path / "out"
    out.mkdir()
    return assemble.Spec(
        upstream_wheel=str(write_upstream_wheel(tmp_path)),
        out_dir=str(out),
        local_version="gpucc1",
        archs=[],
        summary="ours",
        description=str(tmp_path / "README.md"),
        moved={"_XLAC.so": "torch_xla/lib/_XLAC.so"},
        replaced=[],
        files={"torch_xla_ext/__init__.py": str(tmp_path / "init.py")},
        binaries={"_XLAC.so": str(library_needing(tmp_path, "GLIBC_2.34"))},
        licenses={"torch_xla_ext/LICENSE": str(tmp_path / "LICENSE")},
        entry_points={},
        extras={},
    )


def test_the_version_names_unusual_architectures(spec: assemble.Spec) -> None:
    path = assemble.assemble(dataclasses.replace(spec, archs=["90", "90a"]))
    assert re.match(r"torch_xla-2\.8\.1\+gpucc1\.sm90\.sm90a\.[a-f][0-9a-f]{7}-", path.name)


def test_the_version_follows_the_content(spec: assemble.Spec, tmp_path: Path) -> None:
    """A change of any content changes the version, so that pip installs the rebuilt wheel."""
    versions = [NAME.fullmatch(assemble.assemble(spec).name)[1]]
    for path in (
        spec.files["torch_xla_ext/__init__.py"],
        spec.binaries["_XLAC.so"],
        spec.licenses["torch_xla_ext/LICENSE"],
        spec.description,
    ):
        Path(path).write_bytes(Path(path).read_bytes() + b"\n")
        versions.append(NAME.fullmatch(assemble.assemble(spec).name)[1])
    moved = Path(spec.files["torch_xla_ext/__init__.py"])
    for change in (
        {"files": {"torch_xla_ext/other.py": str(moved)}},
        {"extras": {"more": ["x"]}},
        {"summary": "another"},
    ):
        changed = dataclasses.replace(spec, **change)
        versions.append(NAME.fullmatch(assemble.assemble(changed).name)[1])
    assert len(set(versions)) == len(versions)
    assert [str(Version(version)) for version in versions] == versions  # as pip writes them
    other_place = tmp_path / "elsewhere.py"
    other_place.write_bytes(moved.read_bytes())
    same = dataclasses.replace(spec, files={"torch_xla_ext/__init__.py": str(other_place)})
    assert NAME.fullmatch(assemble.assemble(same).name)[1] == versions[4]


def test_a_module_beside_the_packages_is_in_top_level(spec: assemble.Spec) -> None:
    files = spec.files | {"ours_plugin.py": spec.files["torch_xla_ext/__init__.py"]}
    wheel = zipfile.ZipFile(assemble.assemble(dataclasses.replace(spec, files=files)))
    (name,) = [name for name in wheel.namelist() if name.endswith("/top_level.txt")]
    assert wheel.read(name) == b"_XLAC\nours_plugin\ntorch_xla\ntorch_xla_ext\n"


def test_a_upstream_wheel_with_licenses_in_their_own_folder(spec: assemble.Spec) -> None:
    """The wheels for Python 3.12 and 3.13 have them there."""
    old, new = (f"torch_xla-2.8.1.dist-info/{name}" for name in ("LICENSE", "licenses/LICENSE"))
    files = {new if name == old else name: data for name, data in UPSTREAM_FILES.items()}
    write_upstream_wheel(Path(spec.upstream_wheel).parent, files)
    path = assemble.assemble(spec)
    dist_info = f"torch_xla-{NAME.fullmatch(path.name)[1]}.dist-info"
    wheel = zipfile.ZipFile(path)
    assert wheel.read(f"{dist_info}/licenses/torch_xla/LICENSE") == UPSTREAM_FILES[old]


def test_a_upstream_wheel_without_a_license(spec: assemble.Spec) -> None:
    info = "torch_xla-2.8.1.dist-info/METADATA"
    without = UPSTREAM_FILES[info].replace(b"License-File: LICENSE\n", b"")
    write_upstream_wheel(Path(spec.upstream_wheel).parent, {**UPSTREAM_FILES, info: without})
    with pytest.raises(ValueError, match="the upstream wheel lists no license file"):
        assemble.assemble(spec)


def test_a_file_of_upstream_is_not_replaced_silently(spec: assemble.Spec) -> None:
    files = {"torch_xla/__init__.py": spec.files["torch_xla_ext/__init__.py"]}
    with pytest.raises(ValueError, match=r"upstream wheel already contains torch_xla/__init__\.py"):
        assemble.assemble(dataclasses.replace(spec, files=files))


def test_a_moved_or_replaced_file_that_upstream_lacks(spec: assemble.Spec) -> None:
    for wrong in ({"moved": {**spec.moved, "gone.so": "x"}}, {"replaced": ["gone.so"]}):
        with pytest.raises(ValueError, match=r"has no gone\.so, which should be moved or replaced"):
            assemble.assemble(dataclasses.replace(spec, **wrong))


def test_the_program_says_why_it_stops(spec: assemble.Spec, tmp_path: Path) -> None:
    bad = dataclasses.replace(spec, extras={"tpu": ["x"]})
    spec_file = tmp_path / "spec.json"
    spec_file.write_text(json.dumps(dataclasses.asdict(bad)))
    result = subprocess.run(
        [sys.executable, assemble.__file__, str(spec_file)], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr == (
        "cannot assemble the wheel: the upstream wheel already has an extra `tpu`: choose another "
        "name\n"
    )
