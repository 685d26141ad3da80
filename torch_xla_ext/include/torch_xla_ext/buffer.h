// Views of a call's operands and results, which a launch function receives.
//
// All arrays are in the platform's memory (GPU memory for a CUDA launch
// function), and row-major unless the signature gives them a layout. A view is
// cheap to copy and valid until the launch function returns.
#ifndef TORCH_XLA_EXT_BUFFER_H_
#define TORCH_XLA_EXT_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "torch_xla_ext/dtype.h"

namespace torch_xla_ext {

inline constexpr int kAnyRank = -1;

// The run-time description of a buffer. An absent optional operand has the
// dtype kAbsent.
struct BufferView {
  void* data = nullptr;
  DType dtype = DType::kAbsent;
  int rank = 0;
  const int64_t* dims = nullptr;
  // The dimensions in memory order, the fastest-changing first; null for a
  // row-major array.
  const int* layout = nullptr;
};

namespace internal {

template <bool kMutable>
class AnyView {
 public:
  using VoidPointer = std::conditional_t<kMutable, void*, const void*>;
  template <typename T>
  using Pointer = std::conditional_t<kMutable, T*, const T*>;

  explicit AnyView(const BufferView& view) : view_(view) {}

  DType dtype() const { return view_.dtype; }
  int rank() const { return view_.rank; }
  int64_t dim(int i) const { return view_.dims[i]; }
  const int64_t* dims() const { return view_.dims; }
  // The number of elements: 1 for a scalar.
  int64_t size() const {
    int64_t size = 1;
    for (int i = 0; i < view_.rank; ++i) size *= view_.dims[i];
    return size;
  }
  // The distance, in elements, between two neighbors along a dimension.
  int64_t stride(int i) const {
    int64_t stride = 1;
    if (view_.layout == nullptr) {
      for (int j = i + 1; j < view_.rank; ++j) stride *= view_.dims[j];
    } else {
      for (int j = 0; view_.layout[j] != i; ++j) {
        stride *= view_.dims[view_.layout[j]];
      }
    }
    return stride;
  }
  size_t size_bytes() const {
    return static_cast<size_t>(size()) * FindDType(view_.dtype)->byte_width;
  }

  VoidPointer untyped_data() const { return view_.data; }
  // T must be a type of dtype(); this is not checked.
  template <typename T>
  Pointer<T> data() const {
    return static_cast<Pointer<T>>(view_.data);
  }

 private:
  BufferView view_;
};

template <bool kMutable, DType kDType, int kRank>
class TypedView : public AnyView<kMutable> {
 public:
  static constexpr DType kElementType = kDType;
  static constexpr int kStaticRank = kRank;
  using Element = NativeType<kDType>;

  using AnyView<kMutable>::AnyView;

  // T is another type of the same size: __half for F16, for example.
  template <typename T = Element>
  auto data() const {
    static_assert(sizeof(T) == sizeof(Element),
                  "the size of T differs from that of the dtype");
    return AnyView<kMutable>::template data<T>();
  }
};

}  // namespace internal

// An operand of any dtype and rank that the signature allows.
using AnyBuffer = internal::AnyView</*kMutable=*/false>;
// An operand of one dtype and, if given, one rank.
template <DType dtype, int rank = kAnyRank>
using Buffer = internal::TypedView</*kMutable=*/false, dtype, rank>;

// Results are the same, but can be written. A result that the call aliases with
// an operand has the operand's address.
using AnyResult = internal::AnyView</*kMutable=*/true>;
template <DType dtype, int rank = kAnyRank>
using Result = internal::TypedView</*kMutable=*/true, dtype, rank>;

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_BUFFER_H_
