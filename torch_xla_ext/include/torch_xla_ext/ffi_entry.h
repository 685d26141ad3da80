// The FFI entry: a launch function as a handler of XLA's FFI. For kernel.h.
#ifndef TORCH_XLA_EXT_FFI_ENTRY_H_
#define TORCH_XLA_EXT_FFI_ENTRY_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "torch_xla_ext/buffer.h"
#include "torch_xla_ext/check.h"
#include "torch_xla_ext/launch.h"
#include "torch_xla_ext/params.h"
#include "torch_xla_ext/signature.h"
#include "torch_xla_ext/status.h"
#include "xla/ffi/api/ffi.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {
namespace internal {

inline BufferView ViewOf(const xla::ffi::AnyBuffer& buffer) {
  BufferView view;
  view.data = buffer.untyped_data();
  view.dtype = static_cast<DType>(buffer.element_type());
  view.rank = static_cast<int>(buffer.dimensions().size());
  view.dims = buffer.dimensions().begin();
  return view;
}

inline Status DecodeViews(const Signature& signature, uint64_t absent,
                          const xla::ffi::RemainingArgs& args,
                          const xla::ffi::RemainingRets& rets,
                          std::vector<BufferView>* views) {
  size_t next = 0;
  for (int i = 0; i < signature.num_operands; ++i) {
    views->emplace_back();
    if (absent >> i & 1) {
      if (signature.arguments[i].optional) continue;
      return Status::Error("attribute ", kAbsentOperands, ": ",
                           ArgumentName(signature, i), " is not optional");
    }
    const auto buffer = args.get<xla::ffi::AnyBuffer>(next++);
    if (next <= args.size() && !buffer.has_value()) {
      return Status::Error(ArgumentName(signature, i), ": ",
                           buffer.error().message());
    }
    if (buffer.has_value()) views->back() = ViewOf(*buffer);
  }
  if (next != args.size()) {
    return Status::Error("expected ", next, " operands but got ", args.size());
  }
  if (static_cast<size_t>(signature.num_results) != rets.size()) {
    return Status::Error("expected ", signature.num_results,
                         " results but got ", rets.size());
  }
  for (int i = 0; i < signature.num_results; ++i) {
    auto buffer = rets.get<xla::ffi::AnyBuffer>(i);
    if (!buffer.has_value()) {
      return Status::Error(ArgumentName(signature, signature.num_operands + i),
                           ": ", buffer.error().message());
    }
    views->push_back(ViewOf(**buffer));
  }
  return CheckArguments(signature, views->data());
}

template <typename Params>
Status DecodeFields(const xla::ffi::Dictionary& attributes,
                    const std::string& prefix, Params* params);

// How XLA's FFI hands over a parameter.
template <typename T>
auto AttributeType() {
  if constexpr (IsNested<T>::value) {
    return Identity<xla::ffi::Dictionary>();
  } else if constexpr (IsNumbers<T>::value) {
    return Identity<xla::ffi::Span<const typename T::value_type>>();
  } else {
    return Identity<T>();
  }
}

template <typename T>
Status DecodeAttribute(const xla::ffi::Dictionary& attributes,
                       const std::string& prefix, std::string_view name,
                       T* value) {
  using Attribute = typename decltype(AttributeType<T>())::Type;
  if (!attributes.contains(name)) {
    return Status::Error("attribute ", prefix, name, ": ", ParamType<T>(),
                         " is missing");
  }
  const auto attribute = attributes.get<Attribute>(name);
  if (!attribute.has_value()) {
    return Status::Error("attribute ", prefix, name, ": expected ",
                         ParamType<T>(), ": ", attribute.error().message());
  }
  if constexpr (IsNested<T>::value) {
    const std::string inner = prefix + std::string(name) + ".";
    XLA_KERNEL_RETURN_IF_ERROR(DecodeFields(*attribute, inner, value));
    if (attribute->size() == std::tuple_size_v<decltype(T::Fields())>) {
      return Status::Ok();
    }
    return Status::Error("attribute ", prefix, name, ": expected ",
                         ParamType<T>(), " and got other attributes, too");
  } else if constexpr (IsNumbers<T>::value) {
    value->assign(attribute->begin(), attribute->end());
  } else {
    *value = *attribute;
  }
  return Status::Ok();
}

template <typename Params>
Status DecodeFields(const xla::ffi::Dictionary& attributes,
                    const std::string& prefix, Params* params) {
  Status status = Status::Ok();
  ForEachField<Params>([&](const auto& field) {
    if (!status.ok()) return;
    status = DecodeAttribute(attributes, prefix, field.name,
                             &(params->*field.member));
  });
  return status;
}

// Reads the parameters, and which operands are absent. Unknown attributes are
// refused: they are most likely misspelt.
template <typename Params>
Status DecodeAttributes(const xla::ffi::Dictionary& attributes, Params* params,
                        uint64_t* absent) {
  size_t known = std::tuple_size_v<decltype(Params::Fields())>;
  XLA_KERNEL_RETURN_IF_ERROR(DecodeFields(attributes, "", params));
  if (attributes.contains(kAbsentOperands)) {
    ++known;
    int64_t bits = 0;
    XLA_KERNEL_RETURN_IF_ERROR(
        DecodeAttribute(attributes, "", kAbsentOperands, &bits));
    *absent = static_cast<uint64_t>(bits);
  }
  if (attributes.size() == known) return Status::Ok();
  return Status::Error("attributes: expected params(", ParamsText<Params>(),
                       ") and got ", attributes.size() - known,
                       " attributes more");
}

template <const Signature& kSignature, auto kLaunch, typename... Stream>
xla::ffi::Error CallFfi(const char* entry, Stream... stream,
                        const xla::ffi::RemainingArgs& args,
                        const xla::ffi::RemainingRets& rets,
                        const xla::ffi::Dictionary& attributes) {
  using Params =
      typename LaunchTraits<sizeof...(Stream) != 0, decltype(kLaunch)>::Params;
  const auto call = [&] {
    Params params{};
    uint64_t absent = 0;
    XLA_KERNEL_RETURN_IF_ERROR(DecodeAttributes(attributes, &params, &absent));
    if (absent >> kSignature.num_operands != 0) {
      return Status::Error("attribute ", kAbsentOperands,
                           ": there are no such operands");
    }
    std::vector<BufferView> views;
    views.reserve(kSignature.num_arguments());
    XLA_KERNEL_RETURN_IF_ERROR(
        DecodeViews(kSignature, absent, args, rets, &views));
    return Launch<kSignature, kLaunch>(entry, views.data(), params, stream...);
  };
  const Status status = call();
  if (status.ok()) return xla::ffi::Error::Success();
  return xla::ffi::Error::InvalidArgument(std::string(kSignature.target) +
                                          ": " + status.message());
}

// A handler's traits.
using HandlerTraits = std::initializer_list<xla::ffi::Traits>;

template <const Signature& kSignature, auto kLaunch, typename Stream>
XLA_FFI_Error* CallCudaHandler(XLA_FFI_CallFrame* frame, HandlerTraits traits) {
  using xla::ffi::Dictionary, xla::ffi::RemainingArgs, xla::ffi::RemainingRets;
  static auto* handler =
      xla::ffi::Ffi::Bind()
          .Ctx<xla::ffi::PlatformStream<Stream>>()
          .RemainingArgs()
          .RemainingRets()
          .Attrs()
          .To(
              [](Stream stream, RemainingArgs args, RemainingRets rets,
                 Dictionary attributes) {
                return CallFfi<kSignature, kLaunch, Stream>(
                    "CUDA ffi", stream, args, rets, attributes);
              },
              traits)
          .release();
  return handler->Call(frame);
}

template <const Signature& kSignature, auto kLaunch>
XLA_FFI_Error* CallHostHandler(XLA_FFI_CallFrame* frame, HandlerTraits traits) {
  using xla::ffi::Dictionary, xla::ffi::RemainingArgs, xla::ffi::RemainingRets;
  static auto* handler = xla::ffi::Ffi::Bind()
                             .RemainingArgs()
                             .RemainingRets()
                             .Attrs()
                             .To(
                                 [](RemainingArgs args, RemainingRets rets,
                                    Dictionary attributes) {
                                   return CallFfi<kSignature, kLaunch>(
                                       "Host ffi", args, rets, attributes);
                                 },
                                 traits)
                             .release();
  return handler->Call(frame);
}

}  // namespace internal
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_FFI_ENTRY_H_
