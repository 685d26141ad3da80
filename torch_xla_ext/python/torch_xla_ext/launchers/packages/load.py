"""Load the kernels of a folder or of an installed package, for XLA tensors."""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

from torch_xla_ext.launchers.packages import (
    flashinfer,
    torch_namespaces,
    transformer_engine,
    tvm_ffi_functions,
    variants,
)
from torch_xla_ext.launchers.torch_operator.operator_overload import Rule
from torch_xla_ext.registry import registration
from xla_kernels import elf

_TVM_FFI = "__tvm_ffi_"
_loaded: dict[Path, ModuleType] = {}


def load_kernels(
    source: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    functions: Mapping[str, Mapping[str, object]] | None = None,
    fakes: Mapping[str, Callable[..., object]] | None = None,
    sharding_rules: Mapping[str, Rule] | None = None,
) -> ModuleType | SimpleNamespace:
    """Load prebuilt kernels, and make them accept XLA tensors.

    ::

        activation = torch_xla_ext.load_kernels("./activation")  # a folder of Hugging Face's Hub
        activation.silu_and_mul(out, x)

        vllm = torch_xla_ext.load_kernels("vllm._custom_ops")  # a package with operators of torch
        flashinfer = torch_xla_ext.load_kernels("flashinfer", names=["rmsnorm"])
        y = flashinfer.rmsnorm(x, weight)  # torch.ops.flashinfer.rmsnorm

    Nothing is downloaded.

    - **A folder** in the layout of Hugging Face's `kernels` package, with ``build/<variant>/``, or
      one of these variants: the one that fits is imported, and the operators that it defines accept
      XLA tensors (`register_torch_operator`). Triton kernels do so anyway.
    - **A variant for TVM-FFI** of such a folder, if it is the only one that fits, or with
      `functions`: each becomes an operator ``torch.ops.<kernel>.<function>``, which returns the
      results. The library does not contain their signatures; the folder's Python code is not run,
      because it does not accept XLA tensors.
    - **A package** by its name: it is imported, and the operators that its import defines accept
      XLA tensors. For a package that is imported already, pass `names`.
    - ``"flashinfer"``: operators ``torch.ops.flashinfer.<name>`` of FlashInfer's functions whose
      signatures are known here: norms, gated activations and rotary embeddings. FlashInfer compiles
      their library if it has none for the GPU.
    - ``"transformer_engine"``: operators ``torch.ops.transformer_engine.layernorm``, ``rmsnorm``,
      ``gemm`` and ``gemm_fp8``, and all handlers of transformer_engine_jax for `custom_call`, for
      which the caller passes the shapes of results and workspaces.

    Args:
        source: the folder's path, or a package's name.
        names: for a package that is imported already, the operators, ``"namespace::name"``, or
            whole namespaces, ``"namespace"``; for FlashInfer, the functions (by default all).
        functions: for a TVM-FFI build, each function's options of ``register_kernel(…,
            abi="tvm-ffi")``: signature, parameters, arguments, cuda_graph, and symbol, which is by
            default the name, or ``<name>_cpu`` and ``<name>_cuda``; `defaults` of parameters;
            sharding_rule and check as of `define_operator`.
        fakes: by operator, a fake function for torch.library.register_fake, for operators that come
            without one.
        sharding_rules: by operator, the sharding_rule of `register_torch_operator`.

    Returns:
        The imported module; for TVM-FFI functions, their operators by name.

    Raises:
        FileNotFoundError: there is no such folder or package; the message says how to download a
            kernel.
        ImportError: no build fits this process (the message has the reasons), or the import fails.
        NotImplementedError: none of the operators can be part of an XLA program. If only some
            cannot, these raise the error when they are called.
        TypeError, ValueError: a wrong argument.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            "load_kernels: source must be a folder's path or a package's name, but is of type "
            f"{type(source).__name__}"
        )
    names = [names] if isinstance(names, str) else names
    given = {
        "names": names,
        "functions": functions,
        "fakes": fakes,
        "sharding_rules": sharding_rules,
    }

    def allow(*options: str) -> None:
        if wrong := [key for key, value in given.items() if value and key not in options]:
            raise TypeError(f"load_kernels: {wrong[0]} has no effect on the kernels of {source}")

    fakes, rules = fakes or {}, sharding_rules or {}
    folder = Path(source)
    if source == "flashinfer":
        allow("names")
        return _flashinfer(names)
    if source in ("transformer_engine", "transformer_engine_jax"):
        allow()
        return transformer_engine.load()
    if folder.is_dir():
        allow("functions", *([] if functions else ["fakes", "sharding_rules"]))
        return _folder(folder.resolve(), functions, fakes, rules)
    if isinstance(source, str) and _is_package(source):
        allow("names", "fakes", "sharding_rules")
        return _package(source, names, fakes, rules)
    text = f"load_kernels: {source} is neither a folder nor an installed package"
    if isinstance(source, str) and source.count("/") == 1 and not source.startswith((".", "/")):
        text += (
            "; download a kernel of Hugging Face's hub first, for example by "
            f"`hf download --repo-type kernel {source} --local-dir {folder.name}`"
        )
    raise FileNotFoundError(text)


def _is_package(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _package(
    name: str,
    names: Sequence[str] | None,
    fakes: Mapping[str, Callable[..., object]],
    rules: Mapping[str, Rule],
) -> ModuleType:
    before = torch_namespaces.all_names()
    module = importlib.import_module(name)
    operators = torch_namespaces.all_names() - before
    if names is not None:
        known = torch_namespaces.all_names()
        operators = {each for each in known if each in names or each.split("::")[0] in names}
    if not operators:
        raise ValueError(
            f"load_kernels: importing {name} defined no operators; if it was imported before, name "
            "them or their namespace: names=[…]"
        )
    torch_namespaces.register(operators, fakes, rules)
    return module


def _flashinfer(names: Sequence[str] | None) -> SimpleNamespace:
    names = list(flashinfer.FUNCTIONS) if names is None else names
    if unknown := sorted(set(names) - set(flashinfer.FUNCTIONS)):
        raise ValueError(
            f"load_kernels: the signature of FlashInfer's {unknown[0]} is not known; known are "
            f"{', '.join(flashinfer.FUNCTIONS)}; use register_kernel(…, abi='tvm-ffi')"
        )
    platform = registration.device_platform()
    return SimpleNamespace(
        **{
            name: tvm_ffi_functions.define(
                flashinfer.NAMESPACE,
                name,
                flashinfer.library(name),
                flashinfer.FUNCTIONS[name][2],
                platform,
            )
            for name in names
        }
    )


def _folder(
    folder: Path,
    functions: Mapping[str, Mapping[str, object]] | None,
    fakes: Mapping[str, Callable[..., object]],
    rules: Mapping[str, Rule],
) -> ModuleType | SimpleNamespace:
    builds = folder / "build" if (folder / "build").is_dir() else folder
    if variants.Variant.parse(folder.name) is not None:
        builds, found = folder.parent, [folder.name]
    else:
        found = sorted(each.name for each in builds.iterdir() if each.is_dir())
        found = [name for name in found if variants.Variant.parse(name) is not None]
    if not found:
        raise ImportError(
            f"load_kernels: {folder} has no builds: neither build/<variant> nor <variant>, as in "
            "torch28-cxx11-cu128-x86_64-linux"
        )
    platform = registration.device_platform()
    variant, refused = variants.choose(
        found, variants.System.current(platform), None if functions is None else ["tvm-ffi"]
    )
    if variant is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ImportError(f"load_kernels: no build in {builds} fits this process: {reasons}")
    build = builds / variant.name
    described = _described(build)
    _check_dependencies(described, build)
    if variant.framework == "tvm-ffi":
        return _tvm_ffi(build, described, functions, platform)
    if build not in _loaded:
        before = torch_namespaces.all_names()
        module = _imported(build, described)
        # Triton kernels are not PyTorch operators.
        if operators := torch_namespaces.all_names() - before:
            torch_namespaces.register(operators, fakes, rules)
        _loaded[build] = module
    return _loaded[build]


def _described(build: Path) -> dict[str, object]:
    """Return the name, as a Python identifier, and the id from a build's metadata.json."""
    try:
        described = json.loads((build / "metadata.json").read_text())
    except FileNotFoundError:
        described = {}  # for earlier versions of the layout
    folders = [each.name for each in build.iterdir() if (each / "__init__.py").is_file()]
    repository = build.parent.parent if build.parent.name == "build" else build.parent
    name = described.get("name") or (folders[0] if len(folders) == 1 else repository.name)
    name = str(name).replace("-", "_")
    digest = hashlib.sha256(os.fsencode(build)).hexdigest()[:12]
    return {"id": f"{name}_{digest}", **described, "name": name}


def _check_dependencies(described: Mapping[str, object], build: Path) -> None:
    # Names of packages in the package index that differ from their modules' names.
    modules = {"nvidia-cutlass-dsl": "cutlass", "tvm-ffi": "tvm_ffi"}
    packages = {"tvm-ffi": "apache-tvm-ffi"}
    for each in described.get("python-depends") or ():
        if importlib.util.find_spec(modules.get(each, each.replace("-", "_"))) is None:
            raise ImportError(
                f"load_kernels: {build} needs {each}; pip install {packages.get(each, each)}"
            )


def _imported(build: Path, described: Mapping[str, object]) -> ModuleType:
    files = [build / "__init__.py", build / described["name"] / "__init__.py"]
    file = next((each for each in files if each.is_file()), None)
    if file is None:
        raise ImportError(f"load_kernels: {build} has no __init__.py")
    spec = importlib.util.spec_from_file_location(described["id"], file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[described["id"]] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(described["id"], None)
        raise
    return module


def _tvm_ffi(
    build: Path,
    described: Mapping[str, object],
    functions: Mapping[str, Mapping[str, object]] | None,
    platform: str,
) -> SimpleNamespace:
    libraries = {
        library: [f for f in elf.exported_functions(library) if f.startswith(_TVM_FFI)]
        for library in sorted(build.glob("*.so"))
    }
    symbols = {
        symbol.removeprefix(_TVM_FFI): library
        for library, exported in libraries.items()
        for symbol in exported
        if not symbol.startswith(f"{_TVM_FFI}_")
    }
    if not functions:
        raise TypeError(
            f"load_kernels: {build} is for TVM-FFI, whose functions do not declare the shapes of "
            f"their results; pass functions={{name: {{'signature': …}}}} of {', '.join(symbols)}"
        )
    operators = {}
    for function, options in functions.items():
        names = [function, function + tvm_ffi_functions.ENDINGS[platform]]
        names = [options["symbol"]] if "symbol" in options else names
        symbol = next((each for each in names if each in symbols), None)
        if symbol is None:
            raise AttributeError(
                f"load_kernels: {build} has no function {function!r} for {platform}; it has "
                f"{', '.join(symbols) or 'none'}"
            )
        operators[function] = tvm_ffi_functions.define(
            described["name"],
            function,
            symbols[symbol],
            {**options, "symbol": symbol},
            platform,
            described["id"],
        )
    return SimpleNamespace(**operators)
