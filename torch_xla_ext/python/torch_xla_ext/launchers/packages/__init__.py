"""`load_kernels`, which loads prebuilt kernels from a folder or an installed package.

Modules: `load` (the function), `variants` (chooses a folder's build), `torch_namespaces` (operators
that a package defines), `tvm_ffi_functions` (operators for TVM-FFI functions), `flashinfer` and
`transformer_engine` (facts about functions that these packages do not export).
"""
