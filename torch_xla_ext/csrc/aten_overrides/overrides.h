// Operators of torch_xla that compute wrong numbers, or end the process, as
// kernels for PyTorch's dispatcher that do what PyTorch does.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERRIDES_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERRIDES_H_

namespace torch_xla_ext {

// Registers them, after torch_xla's own: the newest kernel of an operator is
// the one that runs. A second call does nothing.
void RegisterAtenOverrides();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERRIDES_H_
