// XLA:CPU maps the code of a compiled program in dozens to hundreds of pieces.
// At the kernel's limit of a process, 65,530 by default, it runs into code that
// is not there: the process dies.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_MEMORY_MAPPINGS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_MEMORY_MAPPINGS_H_

namespace torch_xla_ext {

// Call this before a program is compiled or loaded for the CPU. Throws
// std::runtime_error if seven eighths of the limit are in use.
void CheckMemoryMappings();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_MEMORY_MAPPINGS_H_
