// The FFI entry, which makes a launch function a handler of XLA's FFI. For
// kernel.h; authors do not need it.
//
// It reads a call with the structures of XLA's C API. xla/ffi/api/ffi.h has C++
// classes for this, but nvcc needs 2 s for each architecture to compile them,
// longer than for most kernels.
#ifndef TORCH_XLA_EXT_FFI_ENTRY_H_
#define TORCH_XLA_EXT_FFI_ENTRY_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "torch_xla_ext/buffer.h"
#include "torch_xla_ext/check.h"
#include "torch_xla_ext/dtype.h"
#include "torch_xla_ext/launch.h"
#include "torch_xla_ext/params.h"
#include "torch_xla_ext/signature.h"
#include "torch_xla_ext/status.h"
#include "xla/ffi/api/c_api.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

// A trait of an FFI entry. XLA's own traits, xla::ffi::Traits, are accepted,
// too.
struct HandlerTrait {
  template <typename E, typename = std::enable_if_t<std::is_enum_v<E>>>
  constexpr HandlerTrait(E trait)  // NOLINT(google-explicit-constructor)
      : bits(static_cast<XLA_FFI_Handler_Traits>(trait)) {}

  XLA_FFI_Handler_Traits bits;
};

// The kernel only enqueues work on its stream: a CUDA graph can capture it.
inline constexpr HandlerTrait kCommandBufferCompatible =
    XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;

namespace internal {

inline Status DecodeView(bool is_buffer, const void* argument,
                         BufferView* view) {
  if (!is_buffer) return Status::Error("expected an array");
  const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(argument);
  view->data = buffer.data;
  view->dtype = static_cast<DType>(buffer.dtype);
  view->rank = static_cast<int>(buffer.rank);
  view->dims = buffer.dims;
  return Status::Ok();
}

inline Status DecodeViews(const Signature& signature, uint64_t absent,
                          const XLA_FFI_Args& args, const XLA_FFI_Rets& rets,
                          std::vector<BufferView>* views) {
  views->resize(signature.num_arguments());
  const auto decode = [&](int index, bool is_buffer, const void* argument) {
    const Status status = DecodeView(is_buffer, argument, &(*views)[index]);
    return status.ok() ? status
                       : Status::Error(ArgumentName(signature, index), ": ",
                                       status.message());
  };
  int64_t next = 0;
  for (int i = 0; i < signature.num_operands; ++i) {
    if (absent >> i & 1) {
      if (signature.arguments[i].optional) continue;
      return Status::Error("attribute ", kAbsentOperands, ": ",
                           ArgumentName(signature, i), " is not optional");
    }
    if (next < args.size) {
      XLA_KERNEL_RETURN_IF_ERROR(decode(
          i, args.types[next] == XLA_FFI_ArgType_BUFFER, args.args[next]));
    }
    ++next;
  }
  if (next != args.size) {
    return Status::Error("expected ", next, " operands but got ", args.size);
  }
  if (signature.num_results != rets.size) {
    return Status::Error("expected ", signature.num_results,
                         " results but got ", rets.size);
  }
  for (int i = 0; i < signature.num_results; ++i) {
    XLA_KERNEL_RETURN_IF_ERROR(decode(signature.num_operands + i,
                                      rets.types[i] == XLA_FFI_RetType_BUFFER,
                                      rets.rets[i]));
  }
  return CheckArguments(signature, views->data());
}

// The position of an attribute, or -1.
inline int64_t FindAttribute(const XLA_FFI_Attrs& attributes,
                             std::string_view name) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const XLA_FFI_ByteSpan& found = *attributes.names[i];
    if (std::string_view(found.ptr, found.len) == name) return i;
  }
  return -1;
}

// The type of a number that is a parameter.
template <typename T>
constexpr XLA_FFI_DataType NumberType() {
  if constexpr (std::is_same_v<T, bool>) {
    return XLA_FFI_DataType_PRED;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return XLA_FFI_DataType_S32;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return XLA_FFI_DataType_S64;
  } else if constexpr (std::is_same_v<T, float>) {
    return XLA_FFI_DataType_F32;
  } else {
    static_assert(std::is_same_v<T, double>);
    return XLA_FFI_DataType_F64;
  }
}

// Describes an attribute's type, in the words of ParamType().
inline std::string AttributeType(XLA_FFI_AttrType type, const void* attribute) {
  const auto number = [](XLA_FFI_DataType dtype) {
    switch (dtype) {
      case XLA_FFI_DataType_PRED:
        return ParamType<bool>();
      case XLA_FFI_DataType_S32:
        return ParamType<int32_t>();
      case XLA_FFI_DataType_S64:
        return ParamType<int64_t>();
      case XLA_FFI_DataType_F32:
        return ParamType<float>();
      case XLA_FFI_DataType_F64:
        return ParamType<double>();
      default:
        return DTypeName(static_cast<DType>(dtype));
    }
  };
  switch (type) {
    case XLA_FFI_AttrType_SCALAR:
      return number(static_cast<const XLA_FFI_Scalar*>(attribute)->dtype);
    case XLA_FFI_AttrType_ARRAY:
      return number(static_cast<const XLA_FFI_Array*>(attribute)->dtype) + "[]";
    case XLA_FFI_AttrType_STRING:
      return ParamType<std::string_view>();
    default:
      return "a dictionary";
  }
}

namespace {  // NOLINT: as in params.h

template <typename Params>
Status DecodeFields(const XLA_FFI_Attrs& attributes, const std::string& prefix,
                    Params* params);

// Reads an attribute, if it has the type of *value.
template <typename T>
bool DecodeValue(XLA_FFI_AttrType type, const void* attribute, T* value) {
  if constexpr (IsNumbers<T>::value) {
    using Number = typename T::value_type;
    if (type != XLA_FFI_AttrType_ARRAY) return false;
    const auto& array = *static_cast<const XLA_FFI_Array*>(attribute);
    if (array.dtype != NumberType<Number>()) return false;
    const auto* const data = static_cast<const Number*>(array.data);
    value->assign(data, data + array.size);
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    if (type != XLA_FFI_AttrType_STRING) return false;
    const auto& text = *static_cast<const XLA_FFI_ByteSpan*>(attribute);
    *value = {text.ptr, text.len};
  } else {
    if (type != XLA_FFI_AttrType_SCALAR) return false;
    const auto& scalar = *static_cast<const XLA_FFI_Scalar*>(attribute);
    if (scalar.dtype != NumberType<T>()) return false;
    *value = *static_cast<const T*>(scalar.value);
  }
  return true;
}

template <typename T>
Status DecodeAttribute(const XLA_FFI_Attrs& attributes,
                       const std::string& prefix, std::string_view name,
                       T* value) {
  const int64_t at = FindAttribute(attributes, name);
  if (at < 0) {
    return Status::Error("attribute ", prefix, name, ": ", ParamType<T>(),
                         " is missing");
  }
  const XLA_FFI_AttrType type = attributes.types[at];
  const void* const attribute = attributes.attrs[at];
  if constexpr (IsNested<T>::value) {
    if (type == XLA_FFI_AttrType_DICTIONARY) {
      const auto& inner = *static_cast<const XLA_FFI_Attrs*>(attribute);
      XLA_KERNEL_RETURN_IF_ERROR(
          DecodeFields(inner, prefix + std::string(name) + ".", value));
      if (inner.size == std::tuple_size_v<decltype(T::Fields())>) {
        return Status::Ok();
      }
      return Status::Error("attribute ", prefix, name, ": expected ",
                           ParamType<T>(), " but got other attributes, too");
    }
  } else {
    if (DecodeValue(type, attribute, value)) return Status::Ok();
  }
  return Status::Error("attribute ", prefix, name, ": expected ",
                       ParamType<T>(), " but got ",
                       AttributeType(type, attribute));
}

template <typename Params>
Status DecodeFields(const XLA_FFI_Attrs& attributes, const std::string& prefix,
                    Params* params) {
  Status status = Status::Ok();
  ForEachField<Params>([&](const auto& field) {
    if (!status.ok()) return;
    status = DecodeAttribute(attributes, prefix, field.name,
                             &(params->*field.member));
  });
  return status;
}

// Reads the parameters, and which operands are absent. Unknown attributes are
// refused, because they are most likely misspelt.
template <typename Params>
Status DecodeAttributes(const XLA_FFI_Attrs& attributes, Params* params,
                        uint64_t* absent) {
  int64_t known = std::tuple_size_v<decltype(Params::Fields())>;
  XLA_KERNEL_RETURN_IF_ERROR(DecodeFields(attributes, "", params));
  if (FindAttribute(attributes, kAbsentOperands) >= 0) {
    ++known;
    int64_t bits = 0;
    XLA_KERNEL_RETURN_IF_ERROR(
        DecodeAttribute(attributes, "", kAbsentOperands, &bits));
    *absent = static_cast<uint64_t>(bits);
  }
  if (attributes.size == known) return Status::Ok();
  return Status::Error("attributes: expected params(", ParamsText<Params>(),
                       ") but got ", attributes.size - known,
                       " more attributes");
}

}  // namespace

inline Status GetStream(const XLA_FFI_CallFrame& frame, void** stream) {
  XLA_FFI_Stream_Get_Args args = {};
  args.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE;
  args.ctx = frame.ctx;
  if (XLA_FFI_Error* error = frame.api->XLA_FFI_Stream_Get(&args)) {
    XLA_FFI_Error_GetMessage_Args text = {};
    text.struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE;
    text.error = error;
    frame.api->XLA_FFI_Error_GetMessage(&text);
    const Status status = Status::Error("XLA has no stream: ", text.message);
    XLA_FFI_Error_Destroy_Args destroyed = {};
    destroyed.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
    destroyed.error = error;
    frame.api->XLA_FFI_Error_Destroy(&destroyed);
    return status;
  }
  *stream = args.stream;
  return Status::Ok();
}

// Runs the kernel. Stream: cudaStream_t, or nothing on the Host.
template <const Signature& kSignature, auto kLaunch, typename... Stream>
Status CallFfi(const char* entry, const XLA_FFI_CallFrame& frame) {
  using Params =
      typename LaunchTraits<sizeof...(Stream) != 0, decltype(kLaunch)>::Params;
  Params params{};
  uint64_t absent = 0;
  XLA_KERNEL_RETURN_IF_ERROR(DecodeAttributes(frame.attrs, &params, &absent));
  if (absent >> kSignature.num_operands != 0) {
    return Status::Error("attribute ", kAbsentOperands,
                         ": there are no such operands");
  }
  std::vector<BufferView> views;
  XLA_KERNEL_RETURN_IF_ERROR(
      DecodeViews(kSignature, absent, frame.args, frame.rets, &views));
  void* stream = nullptr;
  if constexpr (sizeof...(Stream) != 0) {
    XLA_KERNEL_RETURN_IF_ERROR(GetStream(frame, &stream));
  }
  return Launch<kSignature, kLaunch>(entry, views.data(), params,
                                     static_cast<Stream>(stream)...);
}

inline XLA_FFI_Error* ErrorOf(const XLA_FFI_CallFrame& frame,
                              const std::string& message) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message.c_str();
  args.errc = XLA_FFI_Error_Code_INVALID_ARGUMENT;
  return frame.api->XLA_FFI_Error_Create(&args);
}

using HandlerTraits = std::initializer_list<HandlerTrait>;

// Answers a call with which XLA asks for the version and the traits. Returns
// whether the call was of this kind.
inline bool AnswerMetadata(const XLA_FFI_CallFrame& frame,
                           HandlerTraits traits) {
  const XLA_FFI_Extension_Base* const asked = frame.extension_start;
  if (asked == nullptr || asked->type != XLA_FFI_Extension_Metadata) {
    return false;
  }
  XLA_FFI_Metadata& metadata =
      *reinterpret_cast<const XLA_FFI_Metadata_Extension*>(asked)->metadata;
  metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr,
                          XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  metadata.traits = 0;
  for (const HandlerTrait& trait : traits) metadata.traits |= trait.bits;
  return true;
}

// Stream: as in CallFfi.
template <const Signature& kSignature, auto kLaunch, typename... Stream>
XLA_FFI_Error* CallHandler(const char* entry, XLA_FFI_CallFrame* frame,
                           HandlerTraits traits) {
  if (AnswerMetadata(*frame, traits)) return nullptr;
  const auto call = [&] {
    if (frame->struct_size < XLA_FFI_CallFrame_STRUCT_SIZE) {
      return Status::Error("XLA is older than this kernel: its calls have ",
                           frame->struct_size, " bytes, and ",
                           static_cast<size_t>(XLA_FFI_CallFrame_STRUCT_SIZE),
                           " are expected");
    }
    if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) {
      return Status::Error("expected a call to execute, but got stage ",
                           static_cast<int>(frame->stage));
    }
    return CallFfi<kSignature, kLaunch, Stream...>(entry, *frame);
  };
  const Status status = call();
  if (status.ok()) return nullptr;
  return ErrorOf(*frame,
                 std::string(kSignature.target) + ": " + status.message());
}

}  // namespace internal
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_FFI_ENTRY_H_
