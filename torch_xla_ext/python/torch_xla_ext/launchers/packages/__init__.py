"""`load_kernels`: kernels that others have built, from a folder or an installed package.

Modules: `load` (the function), `variants` (chooses a folder's build), `torch_namespaces` (operators
that a package defines), `tvm_ffi_functions` (operators of functions of TVM-FFI), `flashinfer` and
`transformer_engine` (facts about functions that these packages do not export).
"""
