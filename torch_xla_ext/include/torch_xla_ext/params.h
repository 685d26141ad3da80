// A kernel's parameters: its arguments that are numbers.
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
// error.
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

#include "torch_xla_ext/status.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

// The parameters of a kernel that has none.
struct NoParams {
  static constexpr auto Fields() { return std::tuple<>(); }
};

namespace internal {

// The names of parameter types: those of MLIR, by which Python and XLA's FFI
// know them.
template <typename T>
constexpr std::string_view ParamType() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return "i32";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "i64";
  } else if constexpr (std::is_same_v<T, float>) {
    return "f32";
  } else {
    static_assert(std::is_same_v<T, double>,
                  "a parameter is a bool, int32_t, int64_t, float or double");
    return "f64";
  }
}

// The T of another argument, so that `0` does for an int64_t.
template <typename T>
struct Identity {
  using Type = T;
};
template <typename T>
using NotDeduced = typename Identity<T>::Type;

// The attribute that lists the optional operands that a typed call omits: an
// i64, whose bit i stands for operand i. Without it, none is omitted.
inline constexpr char kAbsentOperands[] = "absent_operands";

// Python and the schema's text know a parameter by its name. Evaluated by the
// compiler, where a `throw` is an error.
constexpr std::string_view CheckedName(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) {
    throw "a parameter's name is empty or begins with a digit";
  }
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
          (c >= '0' && c <= '9') || c == '_')) {
      throw "a parameter's name has other characters than letters and digits";
    }
  }
  if (name == kAbsentOperands) throw "absent_operands is a reserved name";
  return name;
}

template <typename Params, typename T>
struct ParamField {
  using Type = T;
  using Member = T Params::*;
  std::string_view name;
  Member member;
  bool limited;
  T min;
  T max;
};

// Converts to anything but the struct itself, to count how many members that
// can be made of.
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

// The bytes that the parameters take in a payload: one after another.
template <typename Params>
size_t PackedSize() {
  size_t size = 0;
  ForEachField<Params>([&](const auto& field) {
    size += sizeof(typename std::decay_t<decltype(field)>::Type);
  });
  return size;
}

// Reads the parameters from PackedSize() bytes. A bool is 0 or 1.
template <typename Params>
Status UnpackParams(const char* bytes, Params* params) {
  std::string bad_bool;
  ForEachField<Params>([&](const auto& field) {
    using T = typename std::decay_t<decltype(field)>::Type;
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = static_cast<unsigned char>(*bytes);
      if (byte > 1 && bad_bool.empty()) bad_bool = field.name;
      params->*field.member = byte == 1;
    } else {
      std::memcpy(&(params->*field.member), bytes, sizeof(T));
    }
    bytes += sizeof(T);
  });
  if (bad_bool.empty()) return Status::Ok();
  return Status::Error("parameter ", bad_bool, ": expected a bool, 0 or 1");
}

// Whether every parameter is within its limits.
template <typename Params>
Status CheckParams(const Params& params) {
  Status status = Status::Ok();
  ForEachField<Params>([&](const auto& field) {
    const auto value = params.*field.member;
    // Written so that a NaN is out of any limits.
    if (!status.ok() || !field.limited ||
        (value >= field.min && value <= field.max)) {
      return;
    }
    status = Status::Error("parameter ", field.name, ": expected ",
                           NumberText(field.min), " to ", NumberText(field.max),
                           " but got ", NumberText(value));
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

}  // namespace internal

template <typename Params, typename T>
constexpr internal::ParamField<Params, T> Field(std::string_view name,
                                                T Params::* member) {
  return {internal::CheckedName(name), member, false, T(), T()};
}

template <typename Params, typename T>
constexpr internal::ParamField<Params, T> Field(
    std::string_view name, T Params::* member, internal::NotDeduced<T> min,
    internal::NotDeduced<T> max = std::numeric_limits<T>::max()) {
  if (!(min <= max)) throw "a parameter's minimum exceeds its maximum";
  return {internal::CheckedName(name), member, true, min, max};
}

template <typename... Fields>
constexpr std::tuple<Fields...> MakeFields(Fields... fields) {
  return {fields...};
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_PARAMS_H_
