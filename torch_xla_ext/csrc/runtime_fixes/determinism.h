// Makes XLA:GPU's programs deterministic if PyTorch's are to be.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DETERMINISM_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DETERMINISM_H_

#include <string>

namespace torch_xla_ext {

// Fields of XLA's CompileOptionsProto in wire format, with which XLA:GPU
// compiles no operation whose result depends on the order of its threads:
// scatters add up in one order, and what has no such form is an error. Empty
// unless torch.use_deterministic_algorithms(True) has been called, or if
// warn_only is set.
std::string DeterminismOptions();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DETERMINISM_H_
