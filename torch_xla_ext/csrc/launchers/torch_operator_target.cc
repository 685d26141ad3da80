// Registers the target "XlaGpuTorchOperator", which runs any PyTorch operator.
//
// A call's attributes are the members of OperatorCall; `arguments` and
// `returns` refer to its operands and results by number.
#include <stdexcept>
#include <string>
#include <string_view>

#include "torch_xla_ext/csrc/launchers/torch_operator.h"
#include "torch_xla_ext/csrc/registry/registration.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext::torch_operator_target {
namespace {

using xla::ffi::AnyBuffer;
using xla::ffi::Dictionary;
using xla::ffi::RemainingArgs;
using xla::ffi::RemainingRets;

constexpr char kTarget[] = "XlaGpuTorchOperator";

at::ScalarType ScalarTypeOf(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::PRED:
      return at::kBool;
    case xla::ffi::S8:
      return at::kChar;
    case xla::ffi::S16:
      return at::kShort;
    case xla::ffi::S32:
      return at::kInt;
    case xla::ffi::S64:
      return at::kLong;
    case xla::ffi::U8:
      return at::kByte;
    case xla::ffi::U16:
      return at::kUInt16;
    case xla::ffi::U32:
      return at::kUInt32;
    case xla::ffi::U64:
      return at::kUInt64;
    case xla::ffi::F16:
      return at::kHalf;
    case xla::ffi::F32:
      return at::kFloat;
    case xla::ffi::F64:
      return at::kDouble;
    case xla::ffi::BF16:
      return at::kBFloat16;
    case xla::ffi::C64:
      return at::kComplexFloat;
    case xla::ffi::C128:
      return at::kComplexDouble;
    case xla::ffi::F8E5M2:
      return at::kFloat8_e5m2;
    case xla::ffi::F8E4M3FN:
      return at::kFloat8_e4m3fn;
    default:
      throw std::invalid_argument("torch has no dtype for XLA's type " +
                                  std::to_string(static_cast<int>(type)));
  }
}

at::Tensor TensorOf(const AnyBuffer& buffer, c10::Device device) {
  const auto dims = buffer.dimensions();
  return TensorOnBuffer(buffer.untyped_data(), {dims.begin(), dims.size()},
                        ScalarTypeOf(buffer.element_type()), device);
}

template <typename T>
T Attribute(const Dictionary& attributes, std::string_view name) {
  const auto value = attributes.get<T>(name);
  if (value.has_value()) return *value;
  throw std::invalid_argument("attribute " + std::string(name) + ": " +
                              value.error().message() +
                              "; call it by torch_xla_ext.run_torch_operator");
}

OperatorCall CallOf(const RemainingArgs& args, const RemainingRets& rets,
                    const Dictionary& attributes, c10::Device device) {
  OperatorCall call = {Attribute<std::string_view>(attributes, "operator"),
                       Attribute<std::string_view>(attributes, "overload"),
                       Attribute<std::string_view>(attributes, "arguments"),
                       Attribute<std::string_view>(attributes, "returns"),
                       Attribute<bool>(attributes, "python"),
                       device,
                       {},
                       {}};
  for (size_t i = 0; i < args.size(); ++i) {
    call.operands.push_back(TensorOf(*args.get<AnyBuffer>(i), device));
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    call.results.push_back(TensorOf(**rets.get<AnyBuffer>(i), device));
  }
  return call;
}

xla::ffi::Error RunOn(bool cuda, void* stream, const RemainingArgs& args,
                      const RemainingRets& rets, const Dictionary& attributes) {
  std::string text;
  try {
    const c10::Device device =
        cuda ? CurrentCudaDevice() : c10::Device(c10::DeviceType::CPU);
    text = RunTorchOperator(CallOf(args, rets, attributes, device), stream);
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  if (text.empty()) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(std::string(kTarget) + ": " + text);
}

XLA_FFI_Error* OnHost(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      xla::ffi::Ffi::Bind()
          .RemainingArgs()
          .RemainingRets()
          .Attrs()
          .To([](RemainingArgs args, RemainingRets rets,
                 Dictionary attributes) {
            return RunOn(false, nullptr, args, rets, attributes);
          })
          .release();
  return handler->Call(frame);
}

// Must not be captured into a CUDA graph: an operator may allocate memory, and
// may read its operands from the host.
XLA_FFI_Error* OnCuda(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      xla::ffi::Ffi::Bind()
          .Ctx<xla::ffi::PlatformStream<void*>>()
          .RemainingArgs()
          .RemainingRets()
          .Attrs()
          .To([](void* stream, RemainingArgs args, RemainingRets rets,
                 Dictionary attributes) {
            return RunOn(true, stream, args, rets, attributes);
          })
          .release();
  return handler->Call(frame);
}

const bool registered = [] {
  RegisterTarget(kTarget, reinterpret_cast<void*>(&OnHost), kHostPlatform,
                 TargetApi::kFfi);
  RegisterTarget(kTarget, reinterpret_cast<void*>(&OnCuda), kCudaPlatform,
                 TargetApi::kFfi);
  return true;
}();

}  // namespace
}  // namespace torch_xla_ext::torch_operator_target
