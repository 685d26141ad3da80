"""The compiler refuses wrong definitions of kernels, with the reason."""

import subprocess
from pathlib import Path

import pytest

import torch_xla_ext

PARAMETERS = """
#include "torch_xla_ext/params.h"
using torch_xla_ext::Field;
struct P {{
  int64_t a;
  int64_t b;
  static constexpr auto Fields() {{ return torch_xla_ext::MakeFields({}); }}
}};
size_t Size() {{ return torch_xla_ext::internal::PackedSize<P>(); }}
"""
SIGNATURE = """
#include "torch_xla_ext/signature.h"
constexpr auto kSignature = torch_xla_ext::ParseSignature("{}");
"""


def parameters(*fields: str) -> str:
    return PARAMETERS.format(", ".join(fields))


A, B = 'Field("a", &P::a)', 'Field("b", &P::b)'
RIGHT = {
    "parameters": parameters(A, B),
    "a Descriptor of the user's": (
        '#include "torch_xla_ext/kernel.h"\n'
        "using namespace torch_xla_ext;\n"
        "struct Descriptor { int n; };\n"
        "int Read(const Descriptor& descriptor) { return descriptor.n; }\n"
    ),
    "signature": SIGNATURE.format("K(x: T[2, *n]) -> (y: T[*n]) where T: F32"),
    "all": SIGNATURE.format(
        "K(x: T[n, 2 * m], y: C[n + 1, 2 * m - 1]) -> (y, z: T[k]) "
        "where T: F32 | F16, C: T | F8E4M3FN, n: 1 | 2, m: 1..8, k: 1.., n % m == 0, m % 4 == 0"
    ),
}
WRONG = {
    "a member is missing": (parameters(A), "does not list every member"),
    "a member twice": (parameters(A, 'Field("b", &P::a)'), "a member or a name twice"),
    "a name twice": (parameters(A, 'Field("a", &P::b)'), "a member or a name twice"),
    "no name": (parameters(A, 'Field("", &P::b)'), "is empty or begins with a digit"),
    "a digit": (parameters(A, 'Field("2b", &P::b)'), "is empty or begins with a digit"),
    "a space": (parameters(A, 'Field("b b", &P::b)'), "only letters, digits"),
    "our own": (parameters(A, 'Field("absent_operands", &P::b)'), "is a reserved name"),
    "limits": (parameters(A, 'Field("b", &P::b, 2, 1)'), "minimum exceeds its maximum"),
    "a type": (
        PARAMETERS.replace("int64_t b", "std::vector<bool> b").format(f"{A}, {B}")
        + "std::string Text() { return torch_xla_ext::internal::ParamsText<P>(); }",
        "a parameter is a bool, int32_t",
    ),
    "limits of text": (
        PARAMETERS.replace("int64_t b", "std::string_view b").format(
            A + ', Field("b", &P::b, "a", "b")'
        ),
        "only numbers have limits",
    ),
    "a nested member is missing": (
        "#include <cstdint>\nstruct Q;\n"
        + PARAMETERS.replace(
            "struct P {{",
            "struct Q {{ int32_t c; int32_t d; static constexpr auto Fields() {{ return "
            'torch_xla_ext::MakeFields(Field("c", &Q::c)); }} }};\nstruct P {{',
        )
        .replace("int64_t b", "Q b")
        .format(f"{A}, {B}"),
        "does not list every member",
    ),
    "variable twice": (
        SIGNATURE.format("K(x: T[n]) -> (y: T[n]) where T: F32, T: F16"),
        "declared twice after `where`",
    ),
    "no space": (
        SIGNATURE.format("K(x: T[n]) -> (y: T[n]) whereT: F32"),
        "expected `where ` or the end",
    ),
    "bracket": (SIGNATURE.format("K(x: F32[n) -> (y: F32[n])"), "expected `,` or `]` after"),
    "comma": (SIGNATURE.format("K(x: F32[n] z: F32[n]) -> (y: F32[n])"), "expected `,` or `)`"),
    "colon": (SIGNATURE.format("K(x F32[n]) -> (y: F32[n])"), "expected `:` and a dtype"),
    "shape": (SIGNATURE.format("K(x: F32) -> (y: F32[n])"), "expected `[` and a shape"),
    "arrow": (SIGNATURE.format("K(x: F32[n]) (y: F32[n])"), "expected `->` after the operands"),
    "after a constraint": (
        SIGNATURE.format("K(x: T[n]) -> (y: T[n]) where T: F32 n: 1.."),
        "expected `,`, `|` or the end",
    ),
    "large": (SIGNATURE.format("K(x: F32[99999999999999999999]) -> (y: F32[n])"), "too large"),
    "stars": (SIGNATURE.format("K(x: F32[*a, *b]) -> (y: F32[n])"), "two stars in one shape"),
    "times": (SIGNATURE.format("K(x: F32[2 * 3]) -> (y: F32[n])"), "a number times a number"),
    "alias": (
        SIGNATURE.format("K(x: F32[n]) -> (y)"),
        "a result without a dtype is not an operand",
    ),
    "optional alias": (SIGNATURE.format("K(x?: F32[n]) -> (x)"), "written to must not be optional"),
    "size": (
        SIGNATURE.format("K(x: F32[n]) -> (y: F32[n]) where m: 1 | 2"),
        "that no operand or result has",
    ),
    "range": (SIGNATURE.format("K(x: F32[n]) -> (y: F32[n]) where n: 3..2"), "an empty range"),
    "multiple": (SIGNATURE.format("K(x: F32[n]) -> (y: F32[n]) where n % 2 == 1"), "`== 0`"),
    "option": (
        SIGNATURE.format("K(x: T[n]) -> (y: C[n]) where T: F32, C: F16 | T"),
        "must be the first of the options",
    ),
    "dtype": (SIGNATURE.format("K(x: F33[n]) -> (y: F32[n])"), "that `where` does not declare"),
}


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel API's header, precompiled, because it takes longer to parse than the sources."""
    path = tmp_path_factory.mktemp("header") / "precompiled.h"
    path.write_text('#include "torch_xla_ext/kernel.h"\n')
    options = ["-std=c++17", "-xc++-header", "-isystem", torch_xla_ext.include_dir()]
    subprocess.run(["g++", *options, path, "-o", f"{path}.gch"], check=True)
    return path


def compiled(source: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["g++", "-std=c++17", "-fsyntax-only", *options, "-xc++", "-"]
    return subprocess.run(
        [*command, "-isystem", torch_xla_ext.include_dir()],
        input=source,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["kernel", "params", "signature"])
def test_each_header_compiles_alone(name: str) -> None:
    result = compiled(f'#include "torch_xla_ext/{name}.h"\n')
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_right(source: str, header: Path) -> None:
    result = compiled(source, "-Winvalid-pch", "-include", header)
    assert result.returncode == 0, result.stderr
    assert not result.stderr  # such as that the precompiled header cannot be used


@pytest.mark.parametrize(("source", "text"), WRONG.values(), ids=WRONG)
def test_wrong(source: str, text: str, header: Path) -> None:
    result = compiled(source, "-Winvalid-pch", "-include", header)
    assert result.returncode != 0
    assert text in result.stderr
