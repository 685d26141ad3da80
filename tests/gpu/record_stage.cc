// A target with the stage `record`: out = 2 * x + 1 by two kernels, the second
// of which depends on the first. With RECORD, this file is the handler that
// puts them into XLA's command buffer, with jaxlib 0.12's headers. Without, it
// is the handler that launches them, with this wheel's headers, which every
// plugin accepts.
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// PTX with two functions that compute each element of `out`.
constexpr char kPtx[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry doubled(.param .u64 x, .param .u64 out, .param .u32 n) {
  .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %a<5>; .reg .f32 %v;
  ld.param.u64 %a0, [x]; ld.param.u64 %a1, [out]; ld.param.u32 %r0, [n];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p ret;
  mul.wide.u32 %a2, %r4, 4; add.u64 %a3, %a0, %a2; add.u64 %a4, %a1, %a2;
  ld.global.f32 %v, [%a3]; add.f32 %v, %v, %v; st.global.f32 [%a4], %v;
  ret;
}
.visible .entry next(.param .u64 x, .param .u64 out, .param .u32 n) {
  .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %a<5>; .reg .f32 %v;
  ld.param.u64 %a0, [x]; ld.param.u64 %a1, [out]; ld.param.u32 %r0, [n];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p ret;
  mul.wide.u32 %a2, %r4, 4; add.u64 %a3, %a0, %a2; add.u64 %a4, %a1, %a2;
  ld.global.f32 %v, [%a3]; add.f32 %v, %v, 0f3F800000; st.global.f32 [%a4], %v;
  ret;
}
)";
constexpr int kThreads = 256;

int Blocks(int64_t size) {
  return static_cast<int>((size + kThreads - 1) / kThreads);
}

}  // namespace

#ifdef RECORD

#include <array>

#include "xla/ffi/api/record_api.h"

namespace {

int created = 0, updated = 0;

using F32 = ffi::Buffer<ffi::F32>;
using Context = ffi::internal::RecordContextBase<ffi::internal::ErrorPolicy>;
struct Extension : ffi::internal::RecordExtensionBase<Context> {};

ffi::Error Record(Context context, F32 x, ffi::Result<F32> out) {
  const uint32_t size = x.element_count();
  const ffi::HostValue number = {&size, sizeof size};
  void* result = out->untyped_data();
  const std::array<ffi::KernelArg, 3> first = {
      ffi::DevicePointer{x.untyped_data()}, ffi::DevicePointer{result}, number};
  const std::array<ffi::KernelArg, 3> second = {
      ffi::DevicePointer{result}, ffi::DevicePointer{result}, number};
  if (context.action() == ffi::RecordAction::kUpdate) {
    ++updated;
    ffi::Error error = context.UpdateLaunch(context.commands()[0], first);
    if (error.failure()) return error;
    return context.UpdateLaunch(context.commands()[1], second);
  }
  ++created;
  const XLA_FFI_LaunchDims dims = {{Blocks(size), 1, 1}, {kThreads, 1, 1}, {}};
  auto before =
      context.CreateLaunch("doubled", kPtx, sizeof kPtx,
                           ffi::SourceFormat::kPtx, dims, 0, false, first);
  if (before.has_error()) return before.error();
  const std::array<const XLA_FFI_Command*, 1> dependencies = {before.value()};
  auto after =
      context.CreateLaunch("next", kPtx, sizeof kPtx, ffi::SourceFormat::kPtx,
                           dims, 0, false, second, dependencies);
  return after.has_error() ? after.error() : ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(RecordedRecord, Record,
                              ffi::Ffi::BindRecord()
                                  .Ctx<ffi::Extension<Extension>>()
                                  .Arg<F32>()
                                  .Ret<F32>());

extern "C" int RecordsCreated() { return created; }
extern "C" int RecordsUpdated() { return updated; }

#else

#include <dlfcn.h>

namespace {

template <typename... Arguments>
int Call(const char* name, Arguments... arguments) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver, name));
  return function(arguments...);
}

int Launch(const char* kernel, void* stream, void* x, void* out,
           int64_t elements) {
  static void* module = nullptr;  // of one GPU, as the test has
  if (module == nullptr) {
    if (int error = Call("cuModuleLoadData", &module, +kPtx)) return error;
  }
  void* function = nullptr;
  if (int error = Call("cuModuleGetFunction", &function, module, kernel)) {
    return error;
  }
  uint32_t size = elements;
  void* parameters[] = {&x, &out, &size};
  return Call("cuLaunchKernel", function, Blocks(elements), 1, 1, kThreads, 1,
              1, 0, stream, +parameters, static_cast<void**>(nullptr));
}

using F32 = ffi::Buffer<ffi::F32>;

ffi::Error Execute(void* stream, F32 x, ffi::Result<F32> out) {
  const int64_t size = x.element_count();
  void* result = out->untyped_data();
  int error = Launch("doubled", stream, x.untyped_data(), result, size);
  if (error == 0) error = Launch("next", stream, result, result, size);
  return error == 0
             ? ffi::Error::Success()
             : ffi::Error::Internal("CUDA error " + std::to_string(error));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Recorded, Execute,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Arg<F32>().Ret<F32>());

#endif
