// Compiled for two libraries whose authors chose the same C++ names: TARGET
// multiplies by FACTOR.
#include "torch_xla_ext/kernel.h"

#define TWIN_TEXT_(text) #text
#define TWIN_SIGNATURE_(target) \
  TWIN_TEXT_(target) "(x: F32[*shape]) -> (out: F32[*shape])"
#define TWIN_KERNEL_(target, ...) XLA_KERNEL_HOST(target, __VA_ARGS__)

inline constexpr torch_xla_ext::Signature kSignature =
    torch_xla_ext::ParseSignature(TWIN_SIGNATURE_(TARGET));

torch_xla_ext::Status Run(torch_xla_ext::Buffer<torch_xla_ext::F32> x,
                          torch_xla_ext::Result<torch_xla_ext::F32> out) {
  for (int64_t i = 0; i < out.size(); ++i) out.data()[i] = x.data()[i] * FACTOR;
  return torch_xla_ext::Status::Ok();
}

TWIN_KERNEL_(TARGET, kSignature, Run);
