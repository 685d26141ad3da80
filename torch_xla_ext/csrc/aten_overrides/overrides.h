// Replaces kernels of torch_xla that compute wrong numbers or crash the process
// by kernels that compute what PyTorch's do.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERRIDES_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERRIDES_H_

namespace torch_xla_ext {

// Registers the kernels, after torch_xla's own: PyTorch's dispatcher runs an
// operator's newest kernel. A second call does nothing.
void RegisterAtenOverrides();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERRIDES_H_
