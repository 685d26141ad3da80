// Abseil as the upstream binary was compiled with it: LTS 20230802, whose
// inline namespace is part of every mangled name. Only what the front library
// passes across the boundary is declared; layout_test.cc compares it with
// Abseil's own headers.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_ABSL_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_ABSL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/layout.h"

namespace absl {
inline namespace lts_20230802 {

enum class StatusToStringMode : int { kWithNoExtraData = 0 };

// A tagged word: 0 is OK, an odd value points to a counted representation.
class Status {
 public:
  Status() = default;
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  ~Status() {
    if (rep_ & 1) UnrefNonInlined(rep_);
  }
  bool ok() const { return rep_ == 0; }
  // Only for a status that is not OK.
  std::string ToStringSlow(StatusToStringMode mode) const
      __attribute__((abi_tag("cxx11")));

 private:
  static void UnrefNonInlined(uintptr_t rep);

  uintptr_t rep_ = 0;
};
static_assert(sizeof(Status) == torch_xla_ext::layout::kStatusSize);

Status InvalidArgumentError(std::string_view message);

// Holds a pointer. A StatusOr of a std::unique_ptr is returned in the same way,
// and its pointee is not destroyed here. `value_` is valid if ok().
template <typename T>
class StatusOr {
  static_assert(std::is_pointer_v<T>);

 public:
  explicit StatusOr(T value) : value_(value) {}
  bool ok() const { return status_.ok(); }
  T operator*() const { return value_; }

 private:
  Status status_;
  T value_;
};
static_assert(sizeof(StatusOr<int*>) == torch_xla_ext::layout::kStatusOrSize);

// A pointer and a length, passed in two registers.
template <typename T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, size_t size) : data_(data), size_(size) {}
  template <typename U, typename = std::enable_if_t<
                            std::is_same_v<std::remove_const_t<T>, U>>>
  Span(const std::vector<U>& values)  // NOLINT: implicit, as Abseil's
      : data_(values.data()), size_(values.size()) {}

  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};
static_assert(sizeof(Span<const int>) == torch_xla_ext::layout::kSpanSize);

}  // namespace lts_20230802
}  // namespace absl

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_ABSL_H_
