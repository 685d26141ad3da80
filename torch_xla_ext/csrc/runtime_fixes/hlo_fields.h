// Field numbers and enumeration values of xla/service/hlo.proto and
// xla/xla_data.proto, for ProtobufMessage, and what follows from them.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HLO_FIELDS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HLO_FIELDS_H_

#include <cstdint>
#include <string_view>

#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext::hlo {

namespace module {
constexpr uint32_t kComputations = 3, kEntryComputationId = 6, kAliases = 8,
                   kDonors = 18;
}
namespace alias {
constexpr uint32_t kEntries = 1, kParameter = 2;  // of an entry
}
namespace donor {
constexpr uint32_t kEntries = 1, kParameter = 1;  // of an entry
}
namespace computation {
constexpr uint32_t kName = 1, kInstructions = 2, kProgramShape = 4, kId = 5,
                   kRootId = 6;
}
namespace program_shape {
constexpr uint32_t kParameters = 1, kResult = 2;
}
namespace instruction {
constexpr uint32_t kName = 1, kOpcode = 2, kShape = 3, kMetadata = 7,
                   kLiteral = 8, kParameterNumber = 9, kTupleIndex = 13,
                   kDimensions = 14, kWindow = 15, kExponentBits = 18,
                   kMantissaBits = 19, kConvolutionDimensionNumbers = 16,
                   kSliceDimensions = 17, kPaddingConfig = 21,
                   kCustomCallTarget = 28, kDotDimensionNumbers = 30,
                   kGatherDimensionNumbers = 33, kId = 35, kOperandIds = 36,
                   kCalledComputationIds = 38, kSharding = 40,
                   kBackendConfig = 43, kScatterDimensionNumbers = 48,
                   kFeatureGroupCount = 50, kPrecisionConfig = 51,
                   kBatchGroupCount = 58, kComparisonDirection = 63,
                   kCustomCallApiVersion = 77;
}
namespace convolution {
constexpr uint32_t kKernelInputFeature = 3, kKernelOutputFeature = 4,
                   kInputBatch = 7, kInputFeature = 8, kOutputBatch = 9,
                   kOutputFeature = 10, kInputSpatial = 11;
}
namespace dot {
constexpr uint32_t kLeftContracting = 1, kRightContracting = 2, kLeftBatch = 3,
                   kRightBatch = 4;
}
namespace gather {
constexpr uint32_t kCollapsed = 2;
}
namespace slice {
constexpr uint32_t kStart = 1, kLimit = 2, kStride = 3;  // of a dimension
}
namespace scatter {
constexpr uint32_t kUpdateWindow = 1, kIndexedDimensions = 3, kIndexVector = 4,
                   kOperandBatch = 5;
}
namespace padding {
constexpr uint32_t kDimensions = 1, kLow = 1, kHigh = 2;  // of a dimension
}
namespace precision_config {
constexpr uint32_t kOperandPrecision = 1, kAlgorithm = 2;
}
namespace window {
constexpr uint32_t kDimensions = 1, kSize = 1, kStride = 2, kPaddingLow = 3,
                   kPaddingHigh = 4, kBaseDilation = 6;  // of a dimension
}
namespace sharding {
constexpr uint32_t kType = 1, kTileAssignmentDimensions = 3,
                   kTileAssignmentDevices = 4, kTupleShardings = 5,
                   kReplicateOnLastTileDim = 6, kLastTileDims = 8,
                   kIotaReshapeDimensions = 9, kIotaTransposePermutation = 10;
}
namespace shape {
constexpr uint32_t kElementType = 2, kDimensions = 3, kTupleShapes = 4,
                   kLayout = 5;
}
namespace literal {
constexpr uint32_t kShape = 1, kS64s = 5, kF32s = 8, kF64s = 9, kF16s = 11,
                   kBf16s = 13;
}
constexpr uint64_t kReplicated = 0, kOther = 3,
                   kManual = 4;  // of xla::OpSharding::Type
constexpr uint64_t kPred = 1, kS8 = 2, kS16 = 3, kS32 = 4, kS64 = 5, kU8 = 6,
                   kF16 = 10, kF32 = 11, kF64 = 12, kTuple = 13, kC64 = 15,
                   kBf16 = 16, kC128 = 18;

inline bool IsFloat(uint64_t type) {
  return type == kF16 || type == kBf16 || type == kF32 || type == kF64;
}

// The size in bytes of an array of floating-point numbers, given its serialized
// xla::ShapeProto.
inline uint64_t BytesOf(std::string_view array) {
  const ProtobufMessage message(array);
  const uint64_t type = message.Number(shape::kElementType);
  uint64_t bytes = type == kF64 ? 8 : type == kF32 ? 4 : 2;
  for (const uint64_t size : message.Numbers(shape::kDimensions)) bytes *= size;
  return bytes;
}

}  // namespace torch_xla_ext::hlo

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HLO_FIELDS_H_
