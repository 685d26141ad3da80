// Sizes and offsets, in bytes, of classes of the upstream binary. The
// declarations in this folder are built from them, or checked against them.
// layout_test.cc compares them with the real headers, where those are
// published, and the build compares them with the machine code of the upstream
// binary (machine_code.txt).
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_LAYOUT_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_LAYOUT_H_

#include <cstddef>

namespace torch_xla_ext::layout {

inline constexpr size_t kStatusSize = 8;
inline constexpr size_t kStatusOrSize = 16;  // for a pointer
inline constexpr size_t kSpanSize = 16;
inline constexpr size_t kDurationSize = 12;
inline constexpr size_t kXlaOpSize = 16;
inline constexpr size_t kXlaOpVectorSize = 24;
inline constexpr size_t kShapeSize = 320;
inline constexpr size_t kMaybeShapeRefOffset = 328;  // in MaybeRef<xla::Shape>
inline constexpr size_t kCustomCallStatusSize = 40;
inline constexpr size_t kCustomCallStatusEngagedOffset = 32;
inline constexpr size_t kShapeIndexSize = 24;
inline constexpr size_t kComputationProtoOffset = 8;  // in XlaComputation
inline constexpr size_t kAliasSize = 56;  // of OutputOperandAliasing
inline constexpr size_t kOpShardingSize = 216;
inline constexpr size_t kHloShardingSize = 152;
inline constexpr size_t kLiteralSize = 320;
// In HloInstruction, BackendConfigWrapper and HloCustomCallInstruction.
inline constexpr size_t kInstructionShardingOffset = 80;
inline constexpr size_t kInstructionBackendConfigOffset = 416;
inline constexpr size_t kBackendConfigTextOffset = 16;
inline constexpr size_t kCustomCallSideEffectOffset = 696;
inline constexpr size_t kNumCollectiveCreators = 8;
inline constexpr size_t kPartitioningStateSize = 312;
inline constexpr size_t kPartitionedHloSize = 640;
inline constexpr size_t kLoadOptionsSize = 24;
inline constexpr size_t kPjRtClientOffset = 8;  // in PjRtComputationClient
inline constexpr size_t kShardsOffset = 488;    // in PjRtShardedData
inline constexpr size_t kBufferOffset = 488;    // in PjRtData
// In DistributedRuntimeClient::Options and CoordinationServiceImpl::Options.
inline constexpr size_t kClientHeartbeatOffset = 52;
inline constexpr size_t kLostCallbackOffset = 80;
inline constexpr size_t kServiceHeartbeatOffset = 16;
// Vtable slots of XLAGraphExecutor's computation cache.
inline constexpr size_t kComputationCacheAddSlot = 0;
inline constexpr size_t kComputationCacheGetSlot = 1;
// Vtable slots of PjRtClient.
inline constexpr size_t kDeserializeExecutableSlot = 23;
inline constexpr size_t kLoadSerializedExecutableSlot = 24;
inline constexpr size_t kLoadSlot = 25;
// Vtable slots of CustomCallPartitioner.
inline constexpr size_t kPropagateUserShardingSlot = 0;
inline constexpr size_t kInferShardingSlot = 1;
inline constexpr size_t kIsCustomCallShardableSlot = 2;
inline constexpr size_t kPartitionSlot = 7;
// In XLATensor::Data.
inline constexpr size_t kAliasIdOffset = 144;
inline constexpr size_t kIsClonedOffset = 152;
inline constexpr size_t kXlaNodeSize = 616;
inline constexpr size_t kXlaNodeShapeOffset = 224;
inline constexpr size_t kXlaNodeShardingsOffset = 592;
// In DynamicShapeDetector, which begins with a std::unordered_map.
inline constexpr size_t kCurrentSessionOffset = 56;
inline constexpr size_t kTrieBuilderOffset = 64;

}  // namespace torch_xla_ext::layout

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_LAYOUT_H_
