"""Compile one instance of a kernel for one architecture, or read it from the cache."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xla_kernels.cuda_source import cache, cpp_types, headers, nvrtc

ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)([af]?)")
# From this capability on, code can be compiled for one GPU with all of its instructions ("sm_90a").
_FIRST_SPECIFIC = 90
# The compiler's message about a missing header.
MISSING_HEADER = "cannot open source file"
# A template whose instantiations have a kernel's type in their name, for kernels whose own name
# lacks it.
_PROBE = "torch_xla_ext_type_of"


@dataclass(frozen=True)
class Source:
    """A kernel's source.

    Attributes:
        text: the C++ source.
        file: the source's path; None for text that is not from a file.
        name: the kernel's name, or a name expression.
        options: further options of NVRTC.
        include_dirs: folders of headers.
    """

    text: str
    file: Path | None
    name: str
    options: tuple[str, ...]
    include_dirs: tuple[Path, ...]


@dataclass(frozen=True)
class Instance:
    """A compiled kernel.

    Attributes:
        module: a cubin, a fatbin, or the text of PTX.
        kernel: the function's name in the module.
        types: the parameters' types, as the compiler spells them; None if they are unknown.
    """

    module: bytes
    kernel: str
    types: tuple[str, ...] | None


def architecture_for(capability: int, supported: Sequence[int]) -> str:
    """Return the architecture to compile for, given a GPU's compute capability.

    Raises:
        RuntimeError: this NVRTC cannot compile for the GPU.
    """
    if capability in supported:
        return f"sm_{capability}{'a' if capability >= _FIRST_SPECIFIC else ''}"
    older = [each for each in supported if each < capability]
    if not older:
        raise RuntimeError(
            f"NVRTC compiles for compute capability {min(supported)} and newer, but the GPU has "
            f"{capability}; install an older NVRTC"
        )
    return f"compute_{max(older)}"  # PTX, which the driver compiles


def compile_instance(source: Source, architecture: str) -> Instance:
    """Compile a kernel for an architecture: "sm_90a" for a cubin, "compute_90" for PTX.

    Raises:
        nvrtc.CompilationError: the source does not compile; with the compiler's messages.
        ValueError: the architecture is malformed or unknown. nvrtc.MissingError: there is no NVRTC.
    """
    match = ARCHITECTURE.fullmatch(architecture)
    if match is None:
        raise ValueError(f"architecture {architecture!r} is not of the form sm_90 or compute_90")
    compiler = nvrtc.find()
    if int(match[2]) not in compiler.architectures:
        raise ValueError(
            f"NVRTC {'.'.join(map(str, compiler.version))} does not compile for {architecture}; "
            f"it compiles for {', '.join(map(str, compiler.architectures))}"
        )
    cuda_folders = nvrtc.header_folders(compiler)
    folders = [*source.include_dirs, *([source.file.parent] if source.file else []), *cuda_folders]
    options = [f"-arch={architecture}", *source.options]
    if not any(re.match("--?std(=|$)", option) for option in source.options):
        options.append("-std=c++17")
    options += [f"-I{folder}" for folder in folders]
    options.append(f"--pre-include={headers.FIRST}")
    own = [*source.include_dirs, *([source.file.parent] if source.file else [])]
    known = headers.built_in(folders)
    included = headers.identity(source.text, source.file and source.file.parent, own)
    key = None
    if included is not None:
        key = cache.key_of(
            {
                "source": source.text,
                "file": str(source.file),
                "name": source.name,
                "options": options,
                "included": included,
                "cuda": [headers.folder_identity(folder) for folder in cuda_folders],
                "built in": known,
                "nvrtc": [compiler.version, *headers.file_identity(compiler.path)],
            }
        )
    compiled = cache.load(key) if key is not None else None
    if compiled is None:
        compiled = _compile(compiler, source, options, known, architecture)
        if key is not None:
            cache.store(key, compiled)
    kernel = compiled.names[source.name]
    types = cpp_types.types_of(kernel)
    if types is None:
        types = cpp_types.function_types(compiled.names[_PROBE])
    return Instance(compiled.module, kernel, types)


def _compile(
    compiler: nvrtc.Nvrtc,
    source: Source,
    options: Sequence[str],
    known: Mapping[str, str],
    architecture: str,
) -> nvrtc.Compiled:
    file, ptx = str(source.file or "kernel.cu"), architecture.startswith("compute")
    try:
        compiled = compiler.compile(source.text, file, options, [source.name], known, ptx)
        if cpp_types.types_of(compiled.names[source.name]) is None:  # extern "C"
            probe = f"{_PROBE}<decltype(&{source.name})>"
            text = f"{source.text}\ntemplate <typename F> __global__ void {_PROBE}() {{}}\n"
            probed = compiler.compile(text, file, options, [probe], known, ptx)
            names = {**compiled.names, _PROBE: cpp_types.demangled(probed.names[probe])}
            compiled = nvrtc.Compiled(compiled.module, names, compiled.log)
        return compiled
    except nvrtc.CompilationError as error:
        version = ".".join(map(str, compiler.version))
        log = _of_the_source(str(error))
        parts = [
            f"cuda_kernel {source.name!r} does not compile for {architecture} with NVRTC {version}",
            *([remedy] if (remedy := _remedy(str(error), source)) else []),
        ]
        shown = f"\n{_with_lines(log, source.text, file)}" if log else ""
        raise nvrtc.CompilationError(f"{': '.join(parts)}{shown}") from None


def _of_the_source(log: str) -> str:
    """Return the compiler's messages without those about the generated list of names."""
    messages = re.split(r"\n(?=\S)", log.strip())
    if not any("__nv_name_map" in message for message in messages):
        return log
    is_count = re.compile(r"\d+ errors? detected in the compilation")
    return "\n".join(
        message
        for message in messages
        if "__nv_name_map" not in message and not is_count.match(message)
    ).rstrip()


def _with_lines(log: str, text: str, file: str) -> str:
    """Return the compiler's messages, the first with its source line."""
    match = re.search(rf"^{re.escape(file)}\((\d+)\)", log, re.MULTILINE)
    lines = text.splitlines()
    if match is None or not 1 <= int(match[1]) <= len(lines):
        return log
    number = int(match[1])
    shown = lines[number - 1].strip()
    return log if shown in log else f"{log}\nline {number}: {shown}"


# The headers of CUDA's types, by a pattern of the name.
_HEADERS = {
    r"(__)?half2?": "cuda_fp16.h",
    r"__nv_bfloat162?": "cuda_bf16.h",
    r"__nv_fp8\w*": "cuda_fp8.h",
    r"__nv_fp4\w*": "cuda_fp4.h",
}


def _remedy(log: str, source: Source) -> str:
    if header := re.search(rf'{MISSING_HEADER} "([^"]+)"', log):
        if header[1] == "nv/target":  # which CUDA's own headers include
            return "CCCL's headers are missing: pip install nvidia-cuda-cccl-cu12, for CUDA 12"
        return f"pass the folder of {header[1]} in include_dirs"
    if undefined := re.search(r'identifier "(\w+)" is undefined', log):
        for pattern, header in _HEADERS.items():
            if re.fullmatch(pattern, undefined[1]):
                return f"{undefined[1]} needs #include <{header}>"
    if "__nv_name_map" in log:
        kernels = re.findall(r"__global__[^;{}]*?(\w+)\s*\([^()]*\)\s*[{;]", source.text)
        has = ", ".join(dict.fromkeys(kernels)) or "no __global__ function"
        text = f"the name {source.name!r} is not a kernel's: the source has {has}"
        if source.name in kernels:
            text += (
                f"; if it is in a namespace or a template, name it 'ns::{source.name}' or "
                f"'{source.name}<float>'; if it is overloaded, rename it"
            )
        return text
    return ""
