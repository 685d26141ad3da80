"""Register a kernel: all its entries, or a function with another ABI."""

from collections.abc import Mapping

from torch_xla_ext.registry import ffi_handlers, registration
from torch_xla_ext.registry.platforms import PLATFORMS
from torch_xla_ext.registry.registration import Target
from xla_kernels import kernel_symbols, libraries, tvm_ffi


def register_kernel(
    name: str,
    library: object,
    *,
    abi: str = "kernel.h",
    sharding_rule: str | None = None,
    **options: object,
) -> list[Target]:
    """Register all entries of a kernel that uses torch_xla_ext/kernel.h.

    Also registers FFI handlers with several stages: the library's functions <name>Bundle (CUDA) and
    <name>HostBundle return them as an XLA_FFI_Handler_Bundle.

    With ``abi="tvm-ffi"``, registers a TVM-FFI function
    (`xla_kernels.tvm_ffi.register_tvm_ffi_kernel`).

    Args:
        name: the target: the name in the kernel's signature.
        library: the path of the shared library.
        abi: "kernel.h" or "tvm-ffi".
        sharding_rule: the default for custom_calls of the target that pass none.
        options: for "tvm-ffi", the function's platform, symbol, arguments, signature, parameters
            and cuda_graph.

    Returns:
        The registered targets: for each platform in the library, the untyped and the FFI entry, or
        only the FFI entry if the library returns bundles.

    Raises:
        As register_custom_call; also AttributeError if the library has no kernel of this name.
    """
    targets = _register(name, library, abi, options)
    registration.set_sharding_rule(name, sharding_rule)
    return targets


def _register(name: str, library: object, abi: str, options: Mapping[str, object]) -> list[Target]:
    registration.check_name("register_kernel", name)
    if abi == "tvm-ffi":
        registration.check_choice("platform", options.get("platform", "CUDA"), PLATFORMS)
        return tvm_ffi.register_tvm_ffi_kernel(name, library, **options)
    loaded = kernel_symbols.load(library, abi, options)
    if kernel_symbols.schema_of(loaded, name) is None:
        bundles = [
            Target(name, platform, "ffi")
            for platform in PLATFORMS
            if libraries.function_of(loaded, ffi_handlers.bundle_symbol(name, platform)) is not None
        ]
        if bundles:
            for target in bundles:
                registration.register_custom_call(name, loaded, platform=target.platform, api="ffi")
            return bundles
        if name in libraries.exported(loaded):
            raise AttributeError(
                f"{library} exports a function {name!r}, but no kernel made with XLA_KERNEL_CUDA "
                "or XLA_KERNEL_HOST: register it with register_cuda_custom_call(name, library) if "
                "it is (stream, buffers, opaque, opaque_len), or with register_custom_call"
            )
        raise kernel_symbols.missing(library, loaded, name)
    registered = []
    for platform, api in kernel_symbols.ENTRIES:
        if libraries.function_of(loaded, kernel_symbols.entry(name, platform, api)) is not None:
            registration.register_custom_call(name, loaded, platform=platform, api=api)
            registered.append(Target(name, platform, api))
    return registered
