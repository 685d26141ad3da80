// Prevents crashes at the limit of memory mappings. XLA:CPU maps the code of a
// compiled program in dozens to hundreds of pieces. At Linux's limit per
// process, 65,530 mappings by default, mapping fails, XLA:CPU jumps into code
// that is not there, and the process crashes.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MEMORY_MAPPINGS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MEMORY_MAPPINGS_H_

namespace torch_xla_ext {

// Call this before a program is compiled or loaded for the CPU. Throws
// std::runtime_error if seven eighths of the limit are in use.
void CheckMemoryMappings();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MEMORY_MAPPINGS_H_
