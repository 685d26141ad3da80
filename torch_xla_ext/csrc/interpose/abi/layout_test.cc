// Compares layout.h with XLA's and Abseil's own headers, at compile time.
//
// The headers come from a TensorFlow of about the same date as XLA's commit
// 9084478f, with a newer Abseil; nothing here links with either. torch_xla's
// own headers are not published; torch_xla.h says how the sizes of its classes
// are checked.
#include "torch_xla_ext/csrc/interpose/abi/layout.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/ir/hlo_sharding.h"
#include "xla/literal.h"
#include "xla/service/custom_call_sharding_helper.h"
#include "xla/service/custom_call_status_internal.h"
#include "xla/service/spmd/spmd_partitioner.h"
#include "xla/shape.h"
#include "xla/shape_util.h"
#include "xla/xla_data.pb.h"

namespace torch_xla_ext::layout {

static_assert(sizeof(absl::Status) == kStatusSize);
static_assert(sizeof(absl::StatusOr<int*>) == kStatusOrSize);
static_assert(!std::is_trivially_copyable_v<absl::StatusOr<int*>>,
              "layout.h assumes that a StatusOr is returned in memory");
static_assert(static_cast<int>(absl::StatusToStringMode::kWithNoExtraData) ==
              0);
static_assert(sizeof(absl::Duration) == kDurationSize &&
              alignof(absl::Duration) == 4);
static_assert(sizeof(absl::Span<const int64_t>) == kSpanSize);
static_assert(std::is_trivially_copyable_v<absl::Span<const int64_t>>,
              "layout.h assumes that a Span is passed in registers");
static_assert(sizeof(xla::XlaOp) == kXlaOpSize);
static_assert(std::is_trivially_copyable_v<xla::XlaOp>,
              "layout.h assumes that an XlaOp is returned in registers");
static_assert(sizeof(absl::InlinedVector<xla::XlaOp, 1>) == kXlaOpVectorSize);
static_assert(!std::is_trivially_copyable_v<absl::InlinedVector<xla::XlaOp, 1>>,
              "layout.h assumes that an XlaOpVector is returned in memory");
static_assert(sizeof(XlaCustomCallStatus) == kCustomCallStatusSize);
static_assert(std::is_same_v<decltype(XlaCustomCallStatus::message),
                             std::optional<std::string>>);
static_assert(sizeof(xla::Shape) == kShapeSize && alignof(xla::Shape) == 8);

static_assert(sizeof(xla::Literal) == kLiteralSize);
static_assert(sizeof(xla::HloSharding) == kHloShardingSize);
static_assert(sizeof(std::optional<xla::HloSharding>) == kHloShardingSize + 8);
static_assert(sizeof(xla::spmd::SPMDCollectiveOpsCreator) ==
              kNumCollectiveCreators * sizeof(std::function<void()>));
static_assert(sizeof(xla::spmd::PartitionedHlo::PartitioningState) ==
              kPartitioningStateSize);
static_assert(sizeof(xla::spmd::PartitionedHlo) == kPartitionedHloSize);

// As large with values of any type.
static_assert(sizeof(std::unordered_map<std::string, xla::Shape>) ==
              kCurrentSessionOffset);

// The element storage of InlinedVector is tested by the HLO of a call with
// aliases (tests/csrc/custom_call/hlo_golden.txt).
static_assert(sizeof(xla::ShapeIndex) == kShapeIndexSize);
static_assert(
    std::is_base_of_v<absl::InlinedVector<int64_t, 2>, xla::ShapeIndex>);
static_assert(
    sizeof(std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>) ==
    kAliasSize);

// The values of the enums that xla.h declares.
static_assert(xla::PRED == 1 && xla::S8 == 2 && xla::S16 == 3 && xla::S32 == 4);
static_assert(xla::S64 == 5 && xla::U8 == 6 && xla::U16 == 7 && xla::U32 == 8);
static_assert(xla::U64 == 9 && xla::F16 == 10 && xla::F32 == 11);
static_assert(xla::F64 == 12 && xla::C64 == 15 && xla::BF16 == 16);
static_assert(xla::C128 == 18 && xla::F8E5M2 == 19 && xla::F8E4M3FN == 20);
static_assert(xla::SCHEDULE_NONE == 0);
static_assert(xla::API_VERSION_UNSPECIFIED == 0);
static_assert(xla::API_VERSION_ORIGINAL == 1);
static_assert(xla::API_VERSION_STATUS_RETURNING == 2);
static_assert(xla::API_VERSION_STATUS_RETURNING_UNIFIED == 3);
static_assert(xla::API_VERSION_TYPED_FFI == 4);

}  // namespace torch_xla_ext::layout

int main() { return 0; }
