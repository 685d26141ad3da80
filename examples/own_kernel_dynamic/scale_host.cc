// XlaGpuScale for the CPU.
#include "scale.h"

using torch_xla_ext::Buffer;
using torch_xla_ext::F32;
using torch_xla_ext::Result;
using torch_xla_ext::Status;

static Status ScaleOnHost(Buffer<F32> x, Result<F32> out,
                          const ScaleParams& params) {
  const float factor = static_cast<float>(params.factor);
  for (int64_t i = 0; i < out.size(); ++i) out.data()[i] = x.data()[i] * factor;
  return Status::Ok();
}

XLA_KERNEL_HOST(XlaGpuScale, kScale, ScaleOnHost);
