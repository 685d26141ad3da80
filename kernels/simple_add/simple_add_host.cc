// XlaGpuSimpleAdd for the CPU.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

#include "kernels/simple_add/simple_add.h"
#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

template <typename T>
void Add(const void** operands, void* result, int64_t count) {
  const T* a = static_cast<const T*>(operands[0]);
  const T* b = static_cast<const T*>(operands[1]);
  T* out = static_cast<T*>(result);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      // Integers wrap, as torch's do: in unsigned arithmetic, where that is
      // defined.
      using U = std::make_unsigned_t<T>;
      out[i] = static_cast<T>(static_cast<U>(a[i]) + static_cast<U>(b[i]));
    } else {
      out[i] = a[i] + b[i];
    }
  }
}

}  // namespace
}  // namespace torch_xla_ext

// API version 3 of the untyped ABI: `out` is an array of result buffers, since
// the call's result is a tuple.
extern "C" void XlaGpuSimpleAddHost(void* out, const void** operands,
                                    const char* opaque, size_t opaque_len,
                                    XlaCustomCallStatus* status) {
  using torch_xla_ext::SimpleAddDType;
  torch_xla_ext::SimpleAddDescriptor descriptor;
  if (!torch_xla_ext::ParseSimpleAddDescriptor(opaque, opaque_len, &descriptor,
                                               status)) {
    return;
  }
  void* result = static_cast<void**>(out)[0];
  const int64_t count = descriptor.count;
  switch (descriptor.dtype) {
    case SimpleAddDType::kS32:
      return torch_xla_ext::Add<int32_t>(operands, result, count);
    case SimpleAddDType::kS64:
      return torch_xla_ext::Add<int64_t>(operands, result, count);
    case SimpleAddDType::kF16:
      return torch_xla_ext::Add<c10::Half>(operands, result, count);
    case SimpleAddDType::kF32:
      return torch_xla_ext::Add<float>(operands, result, count);
    case SimpleAddDType::kF64:
      return torch_xla_ext::Add<double>(operands, result, count);
    case SimpleAddDType::kBF16:
      return torch_xla_ext::Add<c10::BFloat16>(operands, result, count);
  }
}

XLA_REGISTER_CUSTOM_CALL_TARGET_WITH_SYM("XlaGpuSimpleAdd", XlaGpuSimpleAddHost,
                                         "Host");
