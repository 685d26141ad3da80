"""metadata: each edit changes the part that it names and nothing else."""

import pytest
from fakes import ENTRY_POINTS, METADATA, VERSION_PY
from metadata import Edits, edit_entry_points, edit_metadata, edit_version_py, wheel_file

EDITS = Edits(
    version="2.8.1+gpucc1",
    summary="ours",
    description="# Ours\n\nText with\n\nblank lines.\n",
    license_files=["a/LICENSE", "b/LICENSE"],
    extras={"cuda": ["jax-cuda12-pjrt", "x>=1"]},
)


def test_metadata() -> None:
    assert edit_metadata(METADATA, EDITS) == (
        "Metadata-Version: 2.4\n"
        "Name: torch_xla\n"
        "Version: 2.8.1+gpucc1\n"
        "Summary: ours\n"
        "Author: PyTorch/XLA Dev Team\n"
        "Requires-Python: >=3.10.0\n"
        "Description-Content-Type: text/markdown\n"
        "Requires-Dist: numpy\n"
        "Provides-Extra: tpu\n"
        'Requires-Dist: libtpu==0.0.17; extra == "tpu"\n'
        "License-File: a/LICENSE\n"
        "License-File: b/LICENSE\n"
        "Provides-Extra: cuda\n"
        'Requires-Dist: jax-cuda12-pjrt; extra == "cuda"\n'
        'Requires-Dist: x>=1; extra == "cuda"\n'
        "\n"
        "# Ours\n\nText with\n\nblank lines.\n"
    )


def test_an_extra_of_upstream_is_not_replaced() -> None:
    edits = Edits("2.8.1+x", "", "", [], extras={"tpu": ["other"]})
    with pytest.raises(ValueError, match="the upstream wheel already has an extra `tpu`"):
        edit_metadata(METADATA, edits)


def test_metadata_that_is_not_understood() -> None:
    with pytest.raises(ValueError, match="a line that is not a header: '  folded'"):
        edit_metadata("Name: x\n  folded\n\n", EDITS)


def test_entry_points() -> None:
    added = {"torch_xla.plugins": ["cuda = torch_xla_ext.plugin:Plugin"], "new": ["a = b.c"]}
    text = edit_entry_points(ENTRY_POINTS, added)
    assert text == ENTRY_POINTS.replace(
        "TpuPlugin\n", "TpuPlugin\ncuda = torch_xla_ext.plugin:Plugin\n"
    ) + ("\n[new]\na = b.c\n\n")


def test_entry_points_stay_when_nothing_is_added() -> None:
    assert edit_entry_points(ENTRY_POINTS, {}).strip() == ENTRY_POINTS.strip()


@pytest.mark.parametrize("line", ["cuda", "cuda = not a module", "cuda ="])
def test_entry_point_that_is_none(line: str) -> None:
    with pytest.raises(ValueError, match="is not `name = module:object`"):
        edit_entry_points(ENTRY_POINTS, {"torch_xla.plugins": [line]})


def test_an_entry_point_of_upstream_is_not_replaced() -> None:
    with pytest.raises(ValueError, match=r"an entry point `tpu` in torch_xla\.plugins already"):
        edit_entry_points(ENTRY_POINTS, {"torch_xla.plugins": ["tpu = a:b"]})


def test_version_py() -> None:
    expected = VERSION_PY.replace("'2.8.1'", "'2.8.1+gpucc1'")
    assert edit_version_py(VERSION_PY, "2.8.1", "2.8.1+gpucc1") == (
        f"{expected}\nimport torch_xla_ext_startup.lazy_dynamo  # noqa: F401\n"
    )


def test_version_py_of_another_version() -> None:
    with pytest.raises(ValueError, match=r"has 0 lines `__version__ = '2\.9\.0'`, expected one"):
        edit_version_py(VERSION_PY, "2.9.0", "2.9.0+x")


def test_wheel_file() -> None:
    assert "\nTag: cp311-cp311-manylinux_2_34_x86_64\n" in wheel_file(
        "cp311-cp311-manylinux_2_34_x86_64"
    )
