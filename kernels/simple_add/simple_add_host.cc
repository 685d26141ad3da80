// XlaGpuSimpleAdd for the CPU.
#include "kernels/simple_add/simple_add.h"
#include "torch_xla_ext/floats.h"

namespace torch_xla_ext::simple_add {
namespace {

template <typename T>
Status Add(AnyBuffer a, AnyBuffer b, AnyResult out) {
  const T* x = a.data<T>();
  const T* y = b.data<T>();
  T* sum = out.data<T>();
  for (int64_t i = 0; i < out.size(); ++i) sum[i] = static_cast<T>(x[i] + y[i]);
  return Status::Ok();
}

Status SimpleAddOnHost(AnyBuffer a, AnyBuffer b, AnyResult out) {
  switch (a.dtype()) {
    case F16:
      return Add<Half>(a, b, out);
    case BF16:
      return Add<BFloat16>(a, b, out);
    case F32:
      return Add<float>(a, b, out);
    case F64:
      return Add<double>(a, b, out);
    case S32:  // unsigned, which wraps around
      return Add<uint32_t>(a, b, out);
    default:
      return Add<uint64_t>(a, b, out);
  }
}

}  // namespace
}  // namespace torch_xla_ext::simple_add

XLA_KERNEL_HOST(XlaGpuSimpleAdd, torch_xla_ext::simple_add::kSimpleAdd,
                torch_xla_ext::simple_add::SimpleAddOnHost);
