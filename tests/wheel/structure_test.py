"""The wheel has the structure of a wheel, and its metadata is right."""

import base64
import csv
import email
import hashlib
import io
import os
import re
import subprocess
import zipfile
from functools import cache
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

(WHEEL,) = Path(os.environ["WHEEL_DIR"]).glob("*")
UPSTREAM = Path(os.environ["UPSTREAM_WHEEL"])
WORK_TREE = Path("README.md").resolve().parent
VERSION = WHEEL.name.split("-")[1]
DIST_INFO = f"torch_xla-{VERSION}.dist-info"
UPSTREAM_DIST_INFO = "torch_xla-2.8.1.dist-info"
UPSTREAM_BINARY = "torch_xla/lib/_XLAC.so"

wheel = zipfile.ZipFile(WHEEL)
upstream = zipfile.ZipFile(UPSTREAM)
(FRONT,) = (name for name in wheel.namelist() if re.fullmatch(r"_XLAC\.cpython-.*\.so", name))
FILES = set(wheel.namelist())
UPSTREAM_FILES = set(upstream.namelist())


@cache
def sha256(archive: zipfile.ZipFile, name: str) -> str:
    """Returns the digest as RECORD writes it."""
    with archive.open(name) as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def metadata(archive: zipfile.ZipFile, dist_info: str) -> email.message.Message:
    return email.message_from_bytes(archive.read(f"{dist_info}/METADATA"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The shared libraries that the upstream wheel does not have."""
    folder = tmp_path_factory.mktemp("ours")
    added = FILES - UPSTREAM_FILES - {UPSTREAM_BINARY} | {FRONT}
    return [Path(wheel.extract(name, folder)) for name in sorted(added) if name.endswith(".so")]


def readelf(option: str, library: Path) -> str:
    command = ["readelf", "--wide", option, str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_zip_is_sound() -> None:
    assert wheel.testzip() is None
    assert len(FILES) == len(wheel.namelist())


def test_record_names_every_file_with_its_hash_and_size() -> None:
    rows = list(csv.reader(io.StringIO(wheel.read(f"{DIST_INFO}/RECORD").decode())))
    assert {name for name, _, _ in rows} == FILES
    assert len(rows) == len(FILES)
    for name, digest, size in rows:
        if name == f"{DIST_INFO}/RECORD":
            assert (digest, size) == ("", "")
        else:
            assert (name, digest) == (name, sha256(wheel, name))
            assert (name, int(size)) == (name, wheel.getinfo(name).file_size)


def test_upstream_binary_is_unchanged() -> None:
    assert sha256(wheel, UPSTREAM_BINARY) == sha256(upstream, FRONT)


def test_everything_else_of_upstream_is_there_unchanged() -> None:
    for name in UPSTREAM_FILES - {FRONT, "torch_xla/version.py"}:
        if not name.startswith(UPSTREAM_DIST_INFO):
            assert (name, sha256(wheel, name)) == (name, sha256(upstream, name))


def test_only_the_front_and_our_package_are_new() -> None:
    new = {name for name in FILES - UPSTREAM_FILES if not name.startswith(DIST_INFO)}
    assert UPSTREAM_BINARY in new
    packages = (
        "torch_xla_ext/",
        "torch_xla_ext_startup/",
        "torch_xla_huggingface/",
        "xla_kernels/",
    )
    assert {name for name in new if not name.startswith(packages)} == {UPSTREAM_BINARY, "_XLAC.pyi"}
    assert not [name for name in FILES if name.startswith(UPSTREAM_DIST_INFO)]


def test_version_py() -> None:
    text = wheel.read("torch_xla/version.py").decode()
    assert re.fullmatch(r"2\.8\.1\+gpucc2\.[a-f][0-9a-f]{7}", VERSION)
    assert f"__version__ = '{VERSION}'\n" in text
    upstream_text = upstream.read("torch_xla/version.py").decode()
    ours = "\n\nimport torch_xla_ext_startup.lazy_dynamo  # noqa: F401"
    assert text.replace(VERSION, "2.8.1").rstrip() == upstream_text.rstrip() + ours


def test_metadata_is_upstreams_plus_ours() -> None:
    our, theirs = metadata(wheel, DIST_INFO), metadata(upstream, UPSTREAM_DIST_INFO)
    assert our["Name"] == "torch_xla"
    assert our["Version"] == VERSION
    assert our["Requires-Python"] == theirs["Requires-Python"]
    requirements = our.get_all("Requires-Dist")
    assert set(theirs.get_all("Requires-Dist")) <= set(requirements)
    for added in set(requirements) - set(theirs.get_all("Requires-Dist")):
        assert "extra ==" in added, "only an extra may require more than the upstream wheel"
    assert our["Summary"] != theirs["Summary"]
    assert our["Description-Content-Type"] == "text/markdown"
    readme = Path("README.md").read_text(encoding="utf-8")
    assert wheel.read(f"{DIST_INFO}/METADATA").decode().split("\n\n", 1)[1] == readme


def test_licenses_of_all_parts() -> None:
    listed = metadata(wheel, DIST_INFO).get_all("License-File")
    licenses = {name: wheel.read(f"{DIST_INFO}/licenses/{name}") for name in listed}
    (upstream_license,) = (
        n for n in UPSTREAM_FILES if re.match(UPSTREAM_DIST_INFO + ".*/LICENSE$", n)
    )
    assert licenses["torch_xla/LICENSE"] == upstream.read(upstream_license)
    assert licenses["torch_xla_ext/LICENSE"] == Path("LICENSE").read_bytes()
    assert b"Apache License" in licenses["openxla/LICENSE"]  # of the headers in include/xla
    # libcudart_static is in the front library, so NVIDIA's license is needed.
    assert b"NVIDIA" in licenses["nvidia_cuda_runtime/License.txt"]
    assert {n for n in FILES if "/licenses/" in n} == {f"{DIST_INFO}/licenses/{n}" for n in listed}


def test_entry_points_of_upstream_are_kept() -> None:
    ours = wheel.read(f"{DIST_INFO}/entry_points.txt").decode().split("\n")
    for line in upstream.read(f"{UPSTREAM_DIST_INFO}/entry_points.txt").decode().split("\n"):
        assert line in ours


def test_top_level() -> None:
    assert set(wheel.read(f"{DIST_INFO}/top_level.txt").decode().split()) == {
        "_XLAC",
        "_XLAC_cuda_functions",
        "torch_xla",
        "torch_xla_ext",
        "torch_xla_ext_startup",
        "torch_xla_huggingface",
        "torchax",
        "xla_kernels",
    }


def test_tag_is_in_the_name_and_in_the_wheel_file() -> None:
    name, version, _, tags = parse_wheel_filename(WHEEL.name)
    assert (name, str(version)) == ("torch-xla", VERSION)
    (tag,) = tags
    assert (tag.interpreter, tag.abi) == (f"cp{FRONT.split('-')[1]}",) * 2
    wheel_file = email.message_from_bytes(wheel.read(f"{DIST_INFO}/WHEEL"))
    assert wheel_file.get_all("Tag") == [str(tag)]
    assert wheel_file["Root-Is-Purelib"] == "false"


# The newest symbol versions on the oldest Linux that each tag stands for, by distribution:
# manylinux_2_28 is AlmaLinux 8, 2_31 Debian 11, 2_34 AlmaLinux 9, 2_35 Ubuntu 22.04.
RUNTIMES = {
    28: {"GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    31: {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (10, 0, 0)},
    34: {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11, 0)},
    35: {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0)},
    38: {"GLIBCXX": (3, 4, 32), "CXXABI": (1, 3, 14), "GCC": (13, 0)},
    39: {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0)},
}


def test_platform_tag_is_the_oldest_that_our_libraries_permit(ours: list[Path]) -> None:
    needed: dict[str, tuple[int, ...]] = {}
    for library in ours:
        for kind, number in re.findall(
            r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)", readelf("--version-info", library)
        ):
            version = tuple(int(part) for part in number.split("."))
            needed[kind] = max(version, needed.get(kind, ()))
    honest = min(
        minor
        for minor, runtime in RUNTIMES.items()
        if needed["GLIBC"] <= (2, minor)
        and all(needed.get(kind, ()) <= newest for kind, newest in runtime.items())
    )
    assert WHEEL.name.endswith(f"-manylinux_2_{honest}_x86_64.whl")


def test_our_libraries_find_only_the_upstream_binary_by_path(ours: list[Path]) -> None:
    front = next(library for library in ours if library.name == FRONT)
    dynamic = readelf("--dynamic", front)
    assert re.findall(r"\(RUNPATH\)\s+Library runpath: \[(.*)\]", dynamic) == [
        "$ORIGIN/torch_xla/lib"
    ]
    assert "(RPATH)" not in dynamic
    assert re.findall(r"\(SONAME\)\s+Library soname: \[(.*)\]", dynamic) == ["_XLAC_front.so"]
    assert "[_XLAC.so]" in dynamic


def test_no_cuda_library_is_needed(ours: list[Path]) -> None:
    for library in ours:
        needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.*)\]", readelf("--dynamic", library))
        assert needed, library
        assert not [n for n in needed if re.match(r"lib(cu|nv|nccl)", n)], library


def test_no_path_of_the_build_is_in_our_libraries(ours: list[Path]) -> None:
    for library in ours:
        content = library.read_bytes()
        for part in ("/execroot/", "/sandbox/", "bazel-out", "/external/", str(WORK_TREE)):
            assert (library.name, part, content.find(part.encode())) == (library.name, part, -1)


def test_file_modes() -> None:
    for info in wheel.infolist():
        mode = info.external_attr >> 16
        assert (info.filename, oct(mode & 0o170000)) == (info.filename, oct(0o100000))
        added = info.filename not in UPSTREAM_FILES or info.filename == FRONT
        expected = 0o755 if added and info.filename.endswith(".so") else 0o644
        if info.filename == UPSTREAM_BINARY:
            expected = 0o644  # as in the upstream wheel
        assert (info.filename, oct(mode & 0o777)) == (info.filename, oct(expected))
