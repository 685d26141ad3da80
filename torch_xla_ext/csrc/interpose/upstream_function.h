// Looks up the upstream binary's own function behind an interposed one.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_UPSTREAM_FUNCTION_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_UPSTREAM_FUNCTION_H_

#include <dlfcn.h>

namespace torch_xla {

// The upstream function `symbol`, which has the type of `replacement`.
template <typename Function>
Function* UpstreamFunction(Function* /*replacement*/, const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
}

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_UPSTREAM_FUNCTION_H_
