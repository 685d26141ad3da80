// XlaGpuSimpleAdd for the CPU.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

#include "kernels/simple_add/simple_add.h"

namespace torch_xla_ext::simple_add {
namespace {

template <typename T>
Status Add(AnyBuffer a, AnyBuffer b, AnyResult out) {
  const T* x = a.data<T>();
  const T* y = b.data<T>();
  T* sum = out.data<T>();
  for (int64_t i = 0; i < out.size(); ++i) {
    if constexpr (std::is_integral_v<T>) {
      // Integers wrap, like torch's. The addition is unsigned, for which
      // wrapping is defined.
      using U = std::make_unsigned_t<T>;
      sum[i] = static_cast<T>(static_cast<U>(x[i]) + static_cast<U>(y[i]));
    } else {
      sum[i] = x[i] + y[i];
    }
  }
  return Status::Ok();
}

Status SimpleAddOnHost(AnyBuffer a, AnyBuffer b, AnyResult out) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckSimpleAddSize(out.size()));
  switch (a.dtype()) {
    case F16:
      return Add<c10::Half>(a, b, out);
    case BF16:
      return Add<c10::BFloat16>(a, b, out);
    case F32:
      return Add<float>(a, b, out);
    case F64:
      return Add<double>(a, b, out);
    case S32:
      return Add<int32_t>(a, b, out);
    default:  // the signature allows nothing else
      return Add<int64_t>(a, b, out);
  }
}

}  // namespace
}  // namespace torch_xla_ext::simple_add

XLA_KERNEL_HOST(XlaGpuSimpleAdd, torch_xla_ext::simple_add::kSimpleAdd,
                torch_xla_ext::simple_add::SimpleAddOnHost);
