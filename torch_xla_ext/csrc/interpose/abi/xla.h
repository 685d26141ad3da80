// XLA as compiled into the upstream binary: openxla/xla at commit 9084478f (the
// pin of torch_xla 2.8.1). Every function declared here is exported by the
// upstream binary; the build fails if a signature has drifted. layout_test.cc
// compares the classes with XLA's own headers.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_XLA_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_XLA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/interpose/abi/absl.h"
#include "torch_xla_ext/csrc/interpose/abi/layout.h"

namespace google::protobuf {

class Arena;

class MessageLite {
 public:
  bool ParseFromString(const std::string& data);
  std::string SerializeAsString() const;
};

}  // namespace google::protobuf

namespace xla {

// Only destroyed.
class HloModuleProto : public google::protobuf::MessageLite {
 public:
  HloModuleProto() = delete;
  ~HloModuleProto();
};

// A protocol buffer: constructed, copied and destroyed by the upstream binary.
// Nothing here accesses its members.
class OpSharding : public google::protobuf::MessageLite {
 public:
  OpSharding() : OpSharding(nullptr, false) {}
  OpSharding(const OpSharding& other);
  OpSharding& operator=(const OpSharding&) = delete;
  ~OpSharding();

 private:
  OpSharding(google::protobuf::Arena* arena, bool is_message_owned);

  alignas(8) char storage_[torch_xla_ext::layout::kOpShardingSize];
};
static_assert(sizeof(OpSharding) == torch_xla_ext::layout::kOpShardingSize);

// Only passed through by pointer.
class Literal;
class PjRtDevice;

// Protobuf enums: int, with the values of xla_data.proto.
enum PrimitiveType : int {
  PRED = 1,
  S8 = 2,
  S16 = 3,
  S32 = 4,
  S64 = 5,
  U8 = 6,
  U16 = 7,
  U32 = 8,
  U64 = 9,
  F16 = 10,
  F32 = 11,
  F64 = 12,
  C64 = 15,
  BF16 = 16,
  C128 = 18,
  F8E5M2 = 19,
  F8E4M3FN = 20,
};
enum CustomCallSchedule : int { SCHEDULE_NONE = 0 };
enum CustomCallApiVersion : int {
  API_VERSION_UNSPECIFIED = 0,
  API_VERSION_ORIGINAL = 1,
  API_VERSION_STATUS_RETURNING = 2,
  API_VERSION_STATUS_RETURNING_UNIFIED = 3,
  API_VERSION_TYPED_FFI = 4,
};

class XlaBuilder;

// A handle and its builder: trivially copyable, returned in two registers.
class XlaOp {
 public:
  XlaBuilder* builder() const { return builder_; }

 private:
  int64_t handle_ = -1;
  XlaBuilder* builder_ = nullptr;
};
static_assert(sizeof(XlaOp) == torch_xla_ext::layout::kXlaOpSize);

// An element type and a std::variant of the state of each kind of shape.
// Nothing here accesses its members: shapes are constructed, copied and
// destroyed by the upstream binary.
class Shape {
 public:
  Shape(const Shape& other);
  Shape(Shape&& other) noexcept;
  Shape& operator=(const Shape& other);
  Shape& operator=(Shape&& other) noexcept;
  ~Shape();

  // Whether every dimension has a fixed size, not a bound or an unknown size.
  bool is_static() const;
  absl::Span<const int64_t> dimensions() const;
  std::string ToString(bool print_layout = false) const;

 private:
  alignas(8) char storage_[torch_xla_ext::layout::kShapeSize];
};

class ShapeUtil {
 public:
  static Shape MakeShape(PrimitiveType element_type,
                         absl::Span<const int64_t> dimensions);
  static Shape MakeTupleShape(absl::Span<const Shape> shapes);
  static const Shape& GetTupleElementShape(const Shape& shape, int64_t index);
  static int64_t TupleElementCount(const Shape& shape);
  // Keeps the order in memory.
  static Shape PermuteDimensions(absl::Span<const int64_t> permutation,
                                 const Shape& shape);
};

class LayoutUtil {
 public:
  // Sets the row-major (descending minor-to-major) layout; for a tuple, on
  // every element.
  static void SetToDefaultLayout(Shape* shape);
};

XlaOp GetTupleElement(XlaOp tuple, int64_t index);

// A path into nested tuples: absl::InlinedVector<int64_t, 2>, which stores up
// to two elements inline. No longer ones are constructed here, so nothing is
// ever allocated or freed.
class ShapeIndex {
 public:
  ShapeIndex() = default;
  ShapeIndex(std::initializer_list<int64_t> indices)
      : metadata_(indices.size() << 1) {
    if (indices.size() > std::size(elements_)) std::abort();
    std::copy(indices.begin(), indices.end(), elements_);
  }

 private:
  size_t metadata_ = 0;  // twice the size; odd if heap-allocated
  int64_t elements_[2] = {};
};
static_assert(sizeof(ShapeIndex) == torch_xla_ext::layout::kShapeIndexSize);

class HloInputOutputAliasConfig {
 public:
  enum AliasKind { kMayAlias, kMustAlias };
};

class XlaBuilder {
 public:
  XlaBuilder() =
      delete;  // always the upstream binary's: its members are not declared
  absl::Status SetInstructionFrontendAttribute(XlaOp op, std::string attribute,
                                               std::string value);
  absl::Status SetInstructionSharding(
      XlaOp op, const std::optional<OpSharding>& sharding);
  void SetUpAlias(const ShapeIndex& output_index, int64_t param_number,
                  const ShapeIndex& param_index,
                  HloInputOutputAliasConfig::AliasKind kind);
  void AddBufferDonor(int64_t param_number, const ShapeIndex& param_index);
};

using Alias = std::pair<ShapeIndex, std::pair<int64_t, ShapeIndex>>;
static_assert(sizeof(Alias) == torch_xla_ext::layout::kAliasSize);
using OutputOperandAliasing = absl::Span<const Alias>;

XlaOp Div(XlaOp lhs, XlaOp rhs, absl::Span<const int64_t> broadcast_dimensions);
XlaOp ReducePrecision(XlaOp operand, int exponent_bits, int mantissa_bits);

XlaOp CustomCall(XlaBuilder* builder, const std::string& call_target_name,
                 absl::Span<const XlaOp> operands, const Shape& shape,
                 const std::string& opaque, bool has_side_effect,
                 OutputOperandAliasing output_operand_aliasing,
                 const Literal* literal, CustomCallSchedule schedule,
                 CustomCallApiVersion api_version);

XlaOp CustomCallWithLayout(XlaBuilder* builder,
                           const std::string& call_target_name,
                           absl::Span<const XlaOp> operands, const Shape& shape,
                           absl::Span<const Shape> operand_shapes_with_layout,
                           const std::string& opaque, bool has_side_effect,
                           OutputOperandAliasing output_operand_aliasing,
                           const Literal* literal, CustomCallSchedule schedule,
                           CustomCallApiVersion api_version);

}  // namespace xla

struct PJRT_Api;

namespace pjrt {
// The PJRT plugin that is loaded for a type of device.
absl::StatusOr<const PJRT_Api*> PjrtApi(std::string_view device_type);
}  // namespace pjrt

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_XLA_H_
