// Defines a kernel that XLA calls by its name. docs/kernels.md is the
// reference.
//
// A kernel consists of a signature, optional parameters (params.h), and a
// launch function for each platform. In a header that both platforms' files
// include:
//
//   inline constexpr torch_xla_ext::Signature kScale =
//       torch_xla_ext::ParseSignature(
//           "XlaGpuScale(x: F32[*shape]) -> (out: F32[*shape])");
//
// In the .cu file, and in a .cc file:
//
//   Status LaunchScale(cudaStream_t stream, Buffer<F32> x, Result<F32> out,
//                      const ScaleParams& params);
//   XLA_KERNEL_CUDA(XlaGpuScale, kScale, LaunchScale);
//
//   Status ScaleOnHost(Buffer<F32> x, Result<F32> out, const ScaleParams& p);
//   XLA_KERNEL_HOST(XlaGpuScale, kScale, ScaleOnHost);
//
// Use the macros in the global namespace. They define the functions that XLA
// calls, which check every call: the launch function only receives arguments
// that the signature allows.
//
//   symbol                                   platform  API
//   XlaGpuScale(stream, buffers, …)          CUDA      untyped, version 3
//   XlaGpuScaleFfi(call_frame)               CUDA      FFI, version 4
//   XlaGpuScaleHost(out, operands, …)        Host      untyped, version 3
//   XlaGpuScaleHostFfi(call_frame)           Host      FFI, version 4
//   XlaGpuScaleSchema()                      returns SchemaText()
//
// torch_xla_ext.register_kernel registers a library with these symbols. Kernels
// that are compiled with TORCH_XLA_EXT_STATIC_KERNELS, as Bazel's xla_kernel
// does, register themselves: the untyped functions with XLA's
// XLA_REGISTER_CUSTOM_CALL_TARGET, the FFI ones under the same name, which
// XLA keeps in a separate registry.
//
// A kernel's entries have hidden visibility. With default visibility, two
// libraries that use the same C++ names would share one definition, and the
// second would run the functions of the first.
//
// The launch function may be followed by traits of the FFI entry:
// torch_xla_ext::kCommandBufferCompatible declares that it only enqueues work
// on its stream, so that a CUDA graph can capture it.
#ifndef TORCH_XLA_EXT_KERNEL_H_
#define TORCH_XLA_EXT_KERNEL_H_

#include <string>

#include "torch_xla_ext/buffer.h"
#include "torch_xla_ext/dtype.h"
#include "torch_xla_ext/ffi_entry.h"
#include "torch_xla_ext/launch.h"
#include "torch_xla_ext/params.h"
#include "torch_xla_ext/signature.h"
#include "torch_xla_ext/sizes.h"
#include "torch_xla_ext/static_kernel.h"
#include "torch_xla_ext/status.h"
#include "torch_xla_ext/untyped_entry.h"
#include "torch_xla_ext/untyped_payload.h"
#include "xla/service/custom_call_target_registry.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

namespace internal {

template <const Signature& kSignature, bool kHasStream, auto kLaunch>
const char* Schema() {
  using Params = typename LaunchTraits<kHasStream, decltype(kLaunch)>::Params;
  static const std::string& schema =
      *new std::string(SchemaText<Params>(kSignature));
  return schema.c_str();
}

}  // namespace internal
}  // namespace torch_xla_ext

#define XLA_KERNEL_CUDA(target, signature, launch, ...)                     \
  XLA_KERNEL_SCHEMA_(target, signature, launch, true)                       \
  XLA_KERNEL_EXPORT_ void target(cudaStream_t stream, void** buffers,       \
                                 const char* opaque, size_t opaque_len,     \
                                 XlaCustomCallStatus* status) {             \
    ::torch_xla_ext::internal::CallUntypedCuda<signature, &launch>(         \
        stream, buffers, opaque, opaque_len, status);                       \
  }                                                                         \
  XLA_KERNEL_EXPORT_ XLA_FFI_Error* target##Ffi(XLA_FFI_CallFrame* frame) { \
    return ::torch_xla_ext::internal::CallHandler<signature, &launch,       \
                                                  cudaStream_t>(            \
        "CUDA ffi", frame, {__VA_ARGS__});                                  \
  }                                                                         \
  XLA_KERNEL_REGISTER_(target, target, target##Ffi, "CUDA")

#define XLA_KERNEL_HOST(target, signature, launch, ...)                       \
  XLA_KERNEL_SCHEMA_(target, signature, launch, false)                        \
  XLA_KERNEL_EXPORT_ void target##Host(void* out, const void** operands,      \
                                       const char* opaque, size_t opaque_len, \
                                       XlaCustomCallStatus* status) {         \
    ::torch_xla_ext::internal::CallUntypedHost<signature, &launch>(           \
        out, operands, opaque, opaque_len, status);                           \
  }                                                                           \
  XLA_KERNEL_EXPORT_ XLA_FFI_Error* target##HostFfi(                          \
      XLA_FFI_CallFrame* frame) {                                             \
    return ::torch_xla_ext::internal::CallHandler<signature, &launch>(        \
        "Host ffi", frame, {__VA_ARGS__});                                    \
  }                                                                           \
  XLA_KERNEL_REGISTER_(target, target##Host, target##HostFfi, "Host")

// Defines the size of a result's dimension (sizes.h). Python calls it.
#define XLA_KERNEL_SIZE(target, signature, size, function)                    \
  static_assert(signature.HasSize(#size),                                     \
                "the signature has no size of this name");                    \
  XLA_KERNEL_EXPORT_ int64_t target##Size_##size(const int64_t* sizes,        \
                                                 const uint8_t* dtypes) {     \
    return ::torch_xla_ext::internal::CallSize<signature, &function>(sizes,   \
                                                                     dtypes); \
  }                                                                           \
  XLA_KERNEL_REGISTER_SIZE_(target, size)

// Implementation of the macros.

#define XLA_KERNEL_EXPORT_ extern "C" __attribute__((visibility("default")))

// The schema is weak, because the files of both platforms define the same one.
#define XLA_KERNEL_SCHEMA_(target_, signature, launch, has_stream)         \
  static_assert(signature.target == #target_,                              \
                "the signature is of another target");                     \
  XLA_KERNEL_EXPORT_ __attribute__((weak)) const char* target_##Schema() { \
    return ::torch_xla_ext::internal::Schema<signature, has_stream,        \
                                             &launch>();                   \
  }

#ifdef TORCH_XLA_EXT_STATIC_KERNELS
#define XLA_KERNEL_REGISTER_(target, untyped, ffi, platform)            \
  XLA_REGISTER_CUSTOM_CALL_TARGET_WITH_SYM(#target, untyped, platform); \
  [[maybe_unused]] static const bool ffi##Added =                       \
      ::torch_xla_ext::AddStaticKernel != nullptr &&                    \
      ::torch_xla_ext::AddStaticKernel(                                 \
          {#target, platform, &ffi, target##Schema()})
#define XLA_KERNEL_REGISTER_SIZE_(target, size)                   \
  [[maybe_unused]] static const bool target##Size_##size##Added = \
      ::torch_xla_ext::AddStaticSize != nullptr &&                \
      ::torch_xla_ext::AddStaticSize({#target, #size, &target##Size_##size})
#else
#define XLA_KERNEL_REGISTER_SIZE_(target, size) \
  static_assert(true, "takes the semicolon")
#define XLA_KERNEL_REGISTER_(target, untyped, ffi, platform) \
  static_assert(true, "takes the semicolon")
#endif

#endif  // TORCH_XLA_EXT_KERNEL_H_
