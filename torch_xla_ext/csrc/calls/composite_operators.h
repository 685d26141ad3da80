// Gradients of operators that torch composes of others.
//
// torch_xla has kernels of its own for some of them, of which torch knows no
// gradient. torch.compile would therefore return none: after
// `F.kl_div(x, y).backward()`, x.grad was None, with a warning.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_COMPOSITE_OPERATORS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_COMPOSITE_OPERATORS_H_

namespace torch_xla_ext {

// Composes these operators of others, which have gradients. A second call does
// nothing.
void ComposeOperators();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_COMPOSITE_OPERATORS_H_
