"""metadata: files that cannot be edited. tests/wheel/structure_test.py checks the edited ones."""

import pytest
from fakes import ENTRY_POINTS, METADATA, VERSION_PY
from metadata import Edits, edit_entry_points, edit_metadata, edit_version_py


def test_an_extra_of_upstream_is_not_replaced() -> None:
    edits = Edits("2.8.1+x", "", "", [], extras={"tpu": ["other"]})
    with pytest.raises(ValueError, match="the upstream wheel already has an extra `tpu`"):
        edit_metadata(METADATA, edits)


def test_metadata_that_is_not_understood() -> None:
    with pytest.raises(ValueError, match="a line that is not a header: '  folded'"):
        edit_metadata("Name: x\n  folded\n\n", Edits("2.8.1+x", "", "", []))


@pytest.mark.parametrize("line", ["cuda", "cuda = not a module", "cuda ="])
def test_entry_point_that_is_none(line: str) -> None:
    with pytest.raises(ValueError, match="is not `name = module:object`"):
        edit_entry_points(ENTRY_POINTS, {"torch_xla.plugins": [line]})


def test_an_entry_point_of_upstream_is_not_replaced() -> None:
    with pytest.raises(ValueError, match=r"an entry point `tpu` in torch_xla\.plugins already"):
        edit_entry_points(ENTRY_POINTS, {"torch_xla.plugins": ["tpu = a:b"]})


def test_version_py_of_another_version() -> None:
    with pytest.raises(ValueError, match=r"has 0 lines `__version__ = '2\.9\.0'`, expected one"):
        edit_version_py(VERSION_PY, "2.9.0", "2.9.0+x")
