// The untyped entry, which calls a launch function with the contents of an
// untyped payload. For kernel.h; authors do not need it.
#ifndef TORCH_XLA_EXT_UNTYPED_ENTRY_H_
#define TORCH_XLA_EXT_UNTYPED_ENTRY_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "torch_xla_ext/buffer.h"
#include "torch_xla_ext/launch.h"
#include "torch_xla_ext/params.h"
#include "torch_xla_ext/signature.h"
#include "torch_xla_ext/status.h"
#include "torch_xla_ext/untyped_payload.h"
#include "xla/service/custom_call_status.h"

// Weak, so that a library of kernels need not be linked with torch_xla.
extern "C" __attribute__((weak)) void XlaCustomCallStatusSetFailure(
    XlaCustomCallStatus* status, const char* message, size_t message_len);

namespace [[gnu::visibility("hidden")]] torch_xla_ext {
namespace internal {

using SetFailure = void (*)(XlaCustomCallStatus*, const char*, size_t);

// XlaCustomCallStatusSetFailure, if it is linked; otherwise from torch_xla's
// binary, which a process that calls kernels has loaded under its SONAME.
inline SetFailure FindSetFailure() {
  if (XlaCustomCallStatusSetFailure != nullptr) {
    return XlaCustomCallStatusSetFailure;
  }
  void* binary = dlopen("_XLAC.so", RTLD_LAZY | RTLD_NOLOAD);
  void* function = binary == nullptr
                       ? nullptr
                       : dlsym(binary, "XlaCustomCallStatusSetFailure");
  return reinterpret_cast<SetFailure>(function);
}

inline void ReportFailure(const Signature& signature, const Status& status,
                          XlaCustomCallStatus* xla_status) {
  static const SetFailure set_failure = FindSetFailure();
  const std::string text =
      std::string(signature.target) + ": " + status.message();
  if (set_failure == nullptr) {
    // The error cannot be reported, and continuing would give wrong numbers.
    std::fprintf(stderr, "%s (torch_xla is not loaded)\n", text.c_str());
    std::abort();
  }
  set_failure(xla_status, text.data(), text.size());
}

// `operands` are the buffers of the operands that are present. The results
// follow them in the same array where `results` is null, as on CUDA.
template <const Signature& kSignature, auto kLaunch, typename... Stream>
void CallUntyped(const char* entry, void* const* operands, void* const* results,
                 const char* opaque, size_t opaque_len,
                 XlaCustomCallStatus* xla_status, Stream... stream) {
  using Params =
      typename LaunchTraits<sizeof...(Stream) != 0, decltype(kLaunch)>::Params;
  static const uint64_t schema_hash =
      SchemaHash(SchemaText<Params>(kSignature));
  const auto call = [&] {
    UntypedPayload payload;
    XLA_KERNEL_RETURN_IF_ERROR(ParseUntypedPayload(kSignature, schema_hash,
                                                   PackedSize<Params>(), opaque,
                                                   opaque_len, &payload));
    Params params{};
    XLA_KERNEL_RETURN_IF_ERROR(
        UnpackParams(payload.params, payload.params_size, &params));
    void* const* next = operands;
    for (int i = 0; i < kSignature.num_arguments(); ++i) {
      if (i == kSignature.num_operands && results != nullptr) next = results;
      BufferView& view = payload.views[i];
      if (view.dtype != DType::kAbsent) view.data = *next++;
    }
    return Launch<kSignature, kLaunch>(entry, payload.views.data(), params,
                                       stream...);
  };
  const Status status = call();
  if (!status.ok()) ReportFailure(kSignature, status, xla_status);
}

// API version 3 on CUDA.
template <const Signature& kSignature, auto kLaunch, typename Stream>
void CallUntypedCuda(Stream stream, void** buffers, const char* opaque,
                     size_t opaque_len, XlaCustomCallStatus* status) {
  CallUntyped<kSignature, kLaunch>("CUDA untyped", buffers, nullptr, opaque,
                                   opaque_len, status, stream);
}

// API version 3 on the Host. `out` is an array of results, since the result of
// the call is a tuple: torch_xla_ext's calls always make one.
template <const Signature& kSignature, auto kLaunch>
void CallUntypedHost(void* out, const void** operands, const char* opaque,
                     size_t opaque_len, XlaCustomCallStatus* status) {
  CallUntyped<kSignature, kLaunch>("Host untyped", const_cast<void**>(operands),
                                   static_cast<void**>(out), opaque, opaque_len,
                                   status);
}

}  // namespace internal
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_UNTYPED_ENTRY_H_
