"""check_abi's findings in small libraries that stand for the front and the upstream binary."""

from pathlib import Path

import check_abi
import pytest
from fakes import compile_library

LAYOUT = """
inline constexpr size_t kNodeSize = 616;
inline constexpr size_t kLowerSlot = 1;
"""
MACHINE_CODE = """
# mov $size, %eax
node_size b8 kNodeSize
_ZTI6Tensor base _ZTI4Base
precision size 4
_ZTVN9torch_xla7XlaNodeE slot kLowerSlot Lower
_ZTVN9torch_xla7XlaNodeE slot kLowerSlot _ZN9torch_xla7XlaNode5LowerEv
"""

UPSTREAM = """
void replaced(void);
void call(void) { replaced(); }
int node_size(void) { return 616; }
int precision = 1;
extern void* _ZTVN10__cxxabiv120__si_class_type_infoE[];
extern void* _ZTI4Base[];
void* _ZTI6Tensor[] = {&_ZTVN10__cxxabiv120__si_class_type_infoE[2], "6Tensor", _ZTI4Base};
void _ZN9torch_xla7XlaNode5CloneEv(void) {}
void _ZN9torch_xla7XlaNode5LowerEv(void) {}
void* _ZTVN9torch_xla7XlaNodeE[] = {
    0, 0, _ZN9torch_xla7XlaNode5CloneEv, _ZN9torch_xla7XlaNode5LowerEv};
"""

FRONT = """
void replaced(void) {}
#define TEXT __attribute__((used)) static const char
TEXT prefix[] = "_ZN9torch_xla";
TEXT others[] = "_ZN3foo3barEv";
TEXT looked_up[] = "_ZN9torch_xla7XlaNode5CloneEv";
__attribute__((visibility("hidden"))) void _ZN13torch_xla_ext14CustomCallNode5CloneEv(void) {}
void _ZN9torch_xla7XlaNode5LowerEv(void);
__attribute__((visibility("hidden"))) void* _ZTVN13torch_xla_ext14CustomCallNodeE[] = {
    0, 0, _ZN13torch_xla_ext14CustomCallNode5CloneEv, _ZN9torch_xla7XlaNode5LowerEv};
"""


def problems(
    folder: Path, upstream: str = UPSTREAM, front: str = FRONT, machine_code: str = MACHINE_CODE
) -> list[str]:
    return check_abi.check(
        check_abi.Library(compile_library(folder / "front.so", front)),
        check_abi.Library(compile_library(folder / "upstream.so", upstream, "-O1")),
        LAYOUT,
        machine_code,
    )


def test_nothing_is_wrong(tmp_path: Path) -> None:
    assert problems(tmp_path) == []


def test_a_function_that_the_upstream_binary_does_not_call(tmp_path: Path) -> None:
    assert problems(tmp_path, front=FRONT + "void drifted(void) {}\n") == [
        "the front library exports drifted, which the upstream binary calls through no relocation"
    ]
    # The library has the function, but its own calls are bound to it and cannot be interposed.
    local = UPSTREAM.replace("void replaced(void);", "static void replaced(void) {}")
    assert "exports replaced" in problems(tmp_path, upstream=local)[0]


def test_virtual_functions_in_another_order(tmp_path: Path) -> None:
    swapped = UPSTREAM.replace(
        "0, 0, _ZN9torch_xla7XlaNode5CloneEv, _ZN9torch_xla7XlaNode5LowerEv",
        "0, 0, _ZN9torch_xla7XlaNode5LowerEv, _ZN9torch_xla7XlaNode5CloneEv",
    )
    assert problems(tmp_path, upstream=swapped) == [
        "XlaNode's virtual functions are ['Lower', 'Clone'], but abi/ has ['Clone', 'Lower']",
        "_ZTVN9torch_xla7XlaNodeE: Clone in the place of Lower",
        "_ZTVN9torch_xla7XlaNodeE: _ZN9torch_xla7XlaNode5CloneEv in the place of "
        "_ZN9torch_xla7XlaNode5LowerEv",
    ]


def test_code_that_shows_another_size(tmp_path: Path) -> None:
    assert problems(tmp_path, upstream=UPSTREAM.replace("return 616", "return 624")) == [
        "node_size has no b8 kNodeSize (b8 68 02 00 00) in its code"
    ]
    assert problems(tmp_path, machine_code="gone b8 kNodeSize\n") == [
        "the upstream binary has no gone"
    ]


def test_a_name_that_is_not_found(tmp_path: Path) -> None:
    drifted = FRONT.replace('"_ZN9torch_xla7XlaNode5CloneEv"', '"_ZN9torch_xla7XlaNode5CloneEi"')
    assert problems(tmp_path, front=drifted) == [
        "the front library looks _ZN9torch_xla7XlaNode5CloneEi up, which the upstream binary does "
        "not have"
    ]


def test_another_base(tmp_path: Path) -> None:
    other = UPSTREAM.replace('"6Tensor", _ZTI4Base}', '"6Tensor", _ZTVN9torch_xla7XlaNodeE}')
    other = other.replace("extern void* _ZTI4Base[];", "extern void* _ZTVN9torch_xla7XlaNodeE[];")
    assert problems(tmp_path, upstream=other) == [
        "_ZTI6Tensor: base _ZTVN9torch_xla7XlaNodeE, but abi/ has _ZTI4Base"
    ]
    several = UPSTREAM.replace("20__si_class_type_info", "21__vmi_class_type_info")
    assert problems(tmp_path, upstream=several) == [
        "_ZTI6Tensor: base no single base, but abi/ has _ZTI4Base"
    ]


def test_a_variable_of_another_size(tmp_path: Path) -> None:
    assert problems(tmp_path, upstream=UPSTREAM.replace("int precision", "char precision")) == [
        "precision has 1 bytes, but abi/ has 4"
    ]


def test_a_library_without_the_class(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no _ZTVN9torch_xla7XlaNodeE"):
        problems(tmp_path, upstream="int node_size(void) { return 616; }")


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZNK9torch_xla7XlaNode5CloneEN3c108ArrayRefIN5torch4lazy5ValueEEE", "Clone"),
        ("_ZNK9torch_xla7XlaNode8ToStringB5cxx11Ev", "ToString"),
        ("_ZN9torch_xla7XlaNodeD0Ev", "D0"),
    ],
)
def test_method_of_a_mangled_name(mangled: str, name: str) -> None:
    assert check_abi.method(mangled) == name
