#include "torch_xla_ext/csrc/calls/composite_operators.h"

#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include <optional>

namespace torch_xla_ext {
namespace {

at::Tensor StdOfAll(const at::Tensor& self, bool unbiased) {
  return at::native::std(self, unbiased);
}

at::Tensor StdOfDimensions(const at::Tensor& self, at::OptionalIntArrayRef dim,
                           bool unbiased, bool keepdim) {
  return at::native::std(self, dim, unbiased, keepdim);
}

torch::Library Composed() {
  torch::Library library(torch::Library::IMPL, "aten",
                         c10::DispatchKey::AutogradXLA, __FILE__, __LINE__);
  library.impl("cross", at::native::cross);
  library.impl("diag", at::native::diag);
  library.impl("inverse", at::native::inverse);
  library.impl("kl_div", at::native::kl_div);
  library.impl("logdet", at::native::logdet);
  library.impl("qr", at::native::qr);
  library.impl("selu", at::native::selu);
  library.impl("selu_", at::native::selu_);
  library.impl("std", StdOfAll);
  library.impl("std.dim", StdOfDimensions);
  library.impl("svd", at::native::svd);
  return library;
}

}  // namespace

void ComposeOperators() {
  // Never destroyed: torch's registry may be gone before.
  static auto* const library = new torch::Library(Composed());
  static_cast<void>(library);
}

}  // namespace torch_xla_ext
