"""The text of attributes, and the values that XLA parses from it."""

import numpy as np
import pytest

from xla_kernels.signature.ffi_attributes import encode

CASES = {
    "none": ({}, "{}"),
    "numbers": (
        {"b": True, "a": -3, "c": 0.5, "d": "s"},
        '{a = -3 : i64, b = true, c = 0.5 : f64, d = "s"}',
    ),
    "widths": (
        {"a": np.int32(3), "b": np.float32(0.1), "c": np.uint8(255)},
        "{a = 3 : i32, b = 0.10000000149011612 : f32, c = 255 : ui8}",
    ),
    "nested": ({"a": {"b": {}, "c": "d"}, "e": 1}, '{a = {b = {}, c = "d"}, e = 1 : i64}'),
    "exponents": ({"a": 1e-5, "b": 1e300}, "{a = 1.0e-05 : f64, b = 1.0e+300 : f64}"),
    "not finite": (
        {"a": float("inf"), "b": np.float32("-inf")},
        "{a = 0x7FF0000000000000 : f64, b = 0xFF800000 : f32}",
    ),
    "arrays": (
        {"a": [1, 2], "b": (0.5,), "c": np.array([1, 2], np.int32), "d": []},
        "{a = array<i64: 1, 2>, b = array<f64: 0.5>, c = array<i32: 1, 2>, d = array<i64>}",
    ),
    "text": ({"a": 'q"\\\n\u00e9'}, r'{a = "q\22\5C\0A\C3\A9"}'),
    "names": ({"a b": 1}, '{"a b" = 1 : i64}'),
}


@pytest.mark.parametrize(("attributes", "text"), CASES.values(), ids=CASES)
def test_text(attributes: dict[str, object], text: str) -> None:
    assert encode(attributes) == text


@pytest.mark.parametrize(
    "value", [None, object, [True], ["s"], {"a": None}, np.zeros((2, 2))], ids=repr
)
def test_wrong_value(value: object) -> None:
    with pytest.raises(TypeError, match=r"attribute x(\.a)?: expected a bool, int, float, str"):
        encode({"x": value})


@pytest.mark.parametrize("value", [2**63, [2**63]], ids=repr)
def test_int_out_of_range(value: object) -> None:
    with pytest.raises(ValueError, match=r"attribute x: .* does not fit into i64"):
        encode({"x": value})


@pytest.mark.parametrize("name", ["", 3], ids=repr)
def test_wrong_name(name: object) -> None:
    with pytest.raises(TypeError, match="an attribute's name must be a str that is not empty"):
        encode({"a": 1, name: 1})


def test_no_text() -> None:
    with pytest.raises(ValueError, match=r"attribute 'x': '\\ud800' is not valid text"):
        encode({"x": "\ud800"})
