// A kernel's parameters: its arguments that are not arrays of the device.
//
//   struct GatherParams {
//     int64_t window;
//     double scale;
//     static constexpr auto Fields() {
//       return MakeFields(Field("window", &GatherParams::window, 1, 4096),
//                         Field("scale", &GatherParams::scale));
//     }
//   };
//
// Fields() lists all members in order, each with its name and, optionally, its
// minimum and maximum. A member that is missing or listed twice is a compile
// error. Members are numbers (bool, int32_t, int64_t, float, double), text
// (std::string_view, which lives as long as the call), arrays of numbers
// (std::vector of one of them but bool), and other such structs.
#ifndef TORCH_XLA_EXT_PARAMS_H_
#define TORCH_XLA_EXT_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_xla_ext/byte_reader.h"
#include "torch_xla_ext/status.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

// The parameters of a kernel that has none.
struct NoParams {
  static constexpr auto Fields() { return std::tuple<>(); }
};

namespace internal {

template <typename T>
inline constexpr bool kIsNumber =
    std::is_same_v<T, bool> || std::is_same_v<T, int32_t> ||
    std::is_same_v<T, int64_t> || std::is_same_v<T, float> ||
    std::is_same_v<T, double>;

template <typename T>
struct IsNumbers : std::false_type {};
template <typename T>
struct IsNumbers<std::vector<T>>
    : std::bool_constant<kIsNumber<T> && !std::is_same_v<T, bool>> {};

// A struct with parameters of its own.
template <typename T, typename = void>
struct IsNested : std::false_type {};
template <typename T>
struct IsNested<T, std::void_t<decltype(T::Fields())>> : std::true_type {};

// Functions that depend on a struct of parameters have internal linkage, here
// and in other headers. Two kernels of one library may both have a struct named
// Params. With external linkage, the linker would keep one of two functions of
// the same name, for both kernels.
namespace {  // NOLINT: see above

template <typename Params>
std::string ParamsText();

// The names of parameter types: for numbers those of MLIR, by which Python and
// XLA's FFI know them.
template <typename T>
std::string ParamType() {
  if constexpr (IsNested<T>::value) {
    return "{" + ParamsText<T>() + "}";
  } else if constexpr (IsNumbers<T>::value) {
    return ParamType<typename T::value_type>() + "[]";
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    return "str";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return "i32";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "i64";
  } else if constexpr (std::is_same_v<T, float>) {
    return "f32";
  } else {
    static_assert(std::is_same_v<T, double>,
                  "a parameter is a bool, int32_t, int64_t, float, double, "
                  "std::string_view, std::vector of numbers, or a struct with "
                  "Fields()");
    return "f64";
  }
}

}  // namespace

// T as a non-deduced type, so that `0` is accepted for an int64_t.
template <typename T>
struct Identity {
  using Type = T;
};
template <typename T>
using NotDeduced = typename Identity<T>::Type;

// The attribute that lists the optional operands that an FFI call omits: an
// i64, whose bit i stands for operand i. Without it, none is omitted.
inline constexpr char kAbsentOperands[] = "absent_operands";

// Returns a parameter's name, which Python and the schema use, if it is valid.
// Evaluated by the compiler, where a `throw` is an error.
constexpr std::string_view CheckedName(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) {
    throw "a parameter's name is empty or begins with a digit";
  }
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
          (c >= '0' && c <= '9') || c == '_')) {
      throw "a parameter's name may have only letters, digits and underscores";
    }
  }
  if (name == kAbsentOperands) throw "absent_operands is a reserved name";
  return name;
}

template <typename Params, typename T>
struct ParamField {
  using Type = T;
  using Member = T Params::*;
  // Only numbers have limits.
  using Limit = std::conditional_t<kIsNumber<T>, T, bool>;
  std::string_view name;
  Member member;
  bool limited;
  Limit min;
  Limit max;
};

// Converts to anything but the struct itself, which counts the struct's
// members.
template <typename Params>
struct AnyMember {
  template <typename T, typename = std::enable_if_t<!std::is_same_v<T, Params>>>
  constexpr operator T() const;
};

template <typename T, typename Indices, typename = void>
struct CanBeMadeOf : std::false_type {};
template <typename T, size_t... kIndices>
struct CanBeMadeOf<
    T, std::index_sequence<kIndices...>,
    std::void_t<decltype(T{(static_cast<void>(kIndices), AnyMember<T>{})...})>>
    : std::true_type {};

template <typename T, size_t kCount = 0>
constexpr size_t NumMembers() {
  if constexpr (CanBeMadeOf<T, std::make_index_sequence<kCount + 1>>::value) {
    return NumMembers<T, kCount + 1>();
  } else {
    return kCount;
  }
}

template <typename A, typename B>
constexpr bool AreAlike(const A& a, const B& b) {
  if constexpr (std::is_same_v<A, B>) {
    if (a.member == b.member) return true;
  }
  return a.name == b.name;
}

template <typename Field, typename Fields>
constexpr int CountAlike(const Field& field, const Fields& fields) {
  return std::apply(
      [&](const auto&... other) {
        return (0 + ... + (AreAlike(field, other) ? 1 : 0));
      },
      fields);
}

// Whether all fields have different names and members.
template <typename Fields>
constexpr bool AreDistinct(const Fields& fields) {
  return std::apply(
      [&](const auto&... field) {
        return (true && ... && (CountAlike(field, fields) == 1));
      },
      fields);
}

template <typename T>
std::string NumberText(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.17g", static_cast<double>(value));
    return text;
  } else {
    return std::to_string(value);
  }
}

namespace {  // NOLINT: as above

// Calls `visit` with each field of Params.
template <typename Params, typename Visitor>
void ForEachField(Visitor&& visit) {
  static_assert(std::is_aggregate_v<Params>,
                "parameters are a plain struct, without constructors");
  static_assert(
      std::tuple_size_v<decltype(Params::Fields())> == NumMembers<Params>(),
      "Fields() does not list every member of the parameters");
  constexpr auto kFields = Params::Fields();
  static_assert(AreDistinct(kFields),
                "Fields() lists a member or a name twice");
  std::apply([&](const auto&... field) { (visit(field), ...); }, kFields);
}

// The size of parameters that differs from call to call.
inline constexpr size_t kVariableSize = static_cast<size_t>(-1);

// The bytes that the parameters take in a payload, one after another.
template <typename Params>
size_t PackedSize() {
  size_t size = 0;
  ForEachField<Params>([&](const auto& field) {
    using T = typename std::decay_t<decltype(field)>::Type;
    size_t own = kVariableSize;
    if constexpr (IsNested<T>::value) {
      own = PackedSize<T>();
    } else if constexpr (kIsNumber<T>) {
      own = sizeof(T);
    }
    const bool varies = size == kVariableSize || own == kVariableSize;
    size = varies ? kVariableSize : size + own;
  });
  return size;
}

template <typename Params>
Status UnpackFields(const std::string& prefix, ByteReader* reader,
                    Params* params);

template <typename T>
Status UnpackValue(const std::string& name, ByteReader* reader, T* value) {
  const auto truncated = [&name] {
    return Status::Error("parameter ", name, ": truncated");
  };
  if constexpr (IsNested<T>::value) {
    return UnpackFields(name + ".", reader, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    uint8_t byte = 0;
    if (!reader->Read(&byte)) return truncated();
    if (byte > 1) {
      return Status::Error("parameter ", name, ": expected a bool, 0 or 1");
    }
    *value = byte == 1;
  } else if constexpr (kIsNumber<T>) {
    if (!reader->Read(value)) return truncated();
  } else {
    uint32_t count = 0;
    if (!reader->Read(&count)) return truncated();
    const size_t size = count * sizeof(typename T::value_type);
    const char* bytes = reader->Take(size);
    if (bytes == nullptr) return truncated();
    if constexpr (std::is_same_v<T, std::string_view>) {
      *value = T(bytes, size);
    } else {
      value->resize(count);
      if (size > 0) std::memcpy(value->data(), bytes, size);
    }
  }
  return Status::Ok();
}

template <typename Params>
Status UnpackFields(const std::string& prefix, ByteReader* reader,
                    Params* params) {
  Status status = Status::Ok();
  ForEachField<Params>([&](const auto& field) {
    if (!status.ok()) return;
    status = UnpackValue(prefix + std::string(field.name), reader,
                         &(params->*field.member));
  });
  return status;
}

// Reads the parameters from all of `size` bytes. Text parameters then refer to
// these bytes.
template <typename Params>
Status UnpackParams(const char* bytes, size_t size, Params* params) {
  ByteReader reader(bytes, size);
  XLA_KERNEL_RETURN_IF_ERROR(UnpackFields("", &reader, params));
  if (reader.left() == 0) return Status::Ok();
  return Status::Error("payload: ", reader.left(),
                       " bytes follow the parameters");
}

// Whether every parameter is within its limits.
template <typename Params>
Status CheckParams(const Params& params, const std::string& prefix = "") {
  Status status = Status::Ok();
  ForEachField<Params>([&](const auto& field) {
    using T = typename std::decay_t<decltype(field)>::Type;
    const T& value = params.*field.member;
    if (!status.ok()) return;
    if constexpr (IsNested<T>::value) {
      status = CheckParams(value, prefix + std::string(field.name) + ".");
    } else if constexpr (kIsNumber<T>) {
      // Written so that a NaN is out of any limits.
      if (!field.limited || (value >= field.min && value <= field.max)) return;
      status =
          Status::Error("parameter ", prefix, field.name, ": expected ",
                        NumberText(field.min), " to ", NumberText(field.max),
                        " but got ", NumberText(value));
    }
  });
  return status;
}

// "window: i64 in [1, 4096], scale: f64".
template <typename Params>
std::string ParamsText() {
  std::string text;
  ForEachField<Params>([&](const auto& field) {
    using T = typename std::decay_t<decltype(field)>::Type;
    if (!text.empty()) text += ", ";
    text.append(field.name).append(": ").append(ParamType<T>());
    if (field.limited) {
      text +=
          " in [" + NumberText(field.min) + ", " + NumberText(field.max) + "]";
    }
  });
  return text;
}

}  // namespace
}  // namespace internal

template <typename Params, typename T>
constexpr internal::ParamField<Params, T> Field(std::string_view name,
                                                T Params::* member) {
  using Limit = typename internal::ParamField<Params, T>::Limit;
  return {internal::CheckedName(name), member, false, Limit(), Limit()};
}

template <typename Params, typename T>
constexpr internal::ParamField<Params, T> Field(
    std::string_view name, T Params::* member, internal::NotDeduced<T> min,
    internal::NotDeduced<T> max = std::numeric_limits<T>::max()) {
  static_assert(internal::kIsNumber<T>, "only numbers have limits");
  if (!(min <= max)) throw "a parameter's minimum exceeds its maximum";
  return {internal::CheckedName(name), member, true, min, max};
}

template <typename... Fields>
constexpr std::tuple<Fields...> MakeFields(Fields... fields) {
  return {fields...};
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_PARAMS_H_
