// Declares the parts of HLO and XLA's SPMD partitioner that partitioning/ uses,
// as compiled into the upstream binary.
#ifndef TORCH_XLA_EXT_CSRC_HLO_H_
#define TORCH_XLA_EXT_CSRC_HLO_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/absl.h"
#include "torch_xla_ext/csrc/interpose/abi/layout.h"
#include "torch_xla_ext/csrc/interpose/abi/xla.h"

namespace xla {
class HloSharding;
}  // namespace xla

namespace absl {
inline namespace lts_20230802 {

template <>
class StatusOr<xla::HloSharding>;

}  // namespace lts_20230802
}  // namespace absl

namespace xla {

// Constructed, copied and destroyed by the upstream binary.
class HloSharding {
 public:
  static absl::StatusOr<HloSharding> FromProto(const OpSharding& proto);
  HloSharding(const HloSharding& other);
  ~HloSharding();
  OpSharding ToProto() const;

 private:
  alignas(8) char storage_[torch_xla_ext::layout::kHloShardingSize];
};

}  // namespace xla

namespace absl {
inline namespace lts_20230802 {

template <>
class StatusOr<xla::HloSharding> {
 public:
  StatusOr(const StatusOr&) = delete;
  ~StatusOr() {
    if (ok()) value_.~HloSharding();
  }
  bool ok() const { return status_.ok(); }
  const xla::HloSharding& operator*() const { return value_; }

 private:
  Status status_;
  union {
    xla::HloSharding value_;
  };
};

}  // namespace lts_20230802
}  // namespace absl

namespace xla {

// Never constructed here; declared for the type of an optional argument.
class Literal {
 public:
  Literal(Literal&& other);
  ~Literal();

 private:
  alignas(64) char storage_[torch_xla_ext::layout::kLiteralSize];
};

class HloComputation;
class HloModule;

class HloInstruction {
 public:
  HloInstruction() = delete;
  ~HloInstruction();

  static std::unique_ptr<HloInstruction> CreateCustomCall(
      const Shape& shape, absl::Span<HloInstruction* const> operands,
      std::string_view target,
      absl::Span<const Shape> operand_shapes_with_layout, std::string opaque,
      CustomCallApiVersion api_version);
  static std::unique_ptr<HloInstruction> CreateGetTupleElement(
      HloInstruction* operand, int64_t index);
  static std::unique_ptr<HloInstruction> CreateTuple(
      absl::Span<HloInstruction* const> elements);

  const HloInstruction* operand(int64_t index) const;
  const Shape& shape() const;
  // A std::shared_ptr, and the text of a BackendConfigWrapper.
  bool has_sharding() const {
    return Member<void*>(torch_xla_ext::layout::kInstructionShardingOffset) !=
           nullptr;
  }
  const std::string& raw_backend_config_string() const {
    return Member<std::string>(
        torch_xla_ext::layout::kInstructionBackendConfigOffset +
        torch_xla_ext::layout::kBackendConfigTextOffset);
  }
  const HloSharding& sharding() const;
  void set_sharding(HloSharding sharding);
  void set_output_to_operand_aliasing(std::vector<Alias> aliasing);
  void set_custom_call_has_side_effect(bool has_side_effect) {
    const_cast<bool&>(Member<bool>(
        torch_xla_ext::layout::kCustomCallSideEffectOffset)) = has_side_effect;
  }

 private:
  template <typename T>
  const T& Member(size_t offset) const {
    return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(this) +
                                       offset);
  }
};

namespace spmd {

class SpmdBuilder {
 public:
  SpmdBuilder() = delete;
  HloInstruction* AddInstruction(std::unique_ptr<HloInstruction> instruction);
};

// The other functions are never called here, only destroyed.
struct SPMDCollectiveOpsCreator {
  std::function<void()> create_partition_id;
  std::function<HloInstruction*(
      SpmdBuilder*, HloInstruction* operand, HloComputation* reduction,
      const std::vector<std::vector<int64_t>>& partition_subgroups,
      int64_t channel_id)>
      create_cross_partition_all_reduce;
  std::function<void()>
      others[torch_xla_ext::layout::kNumCollectiveCreators - 2];
};

class PartitionedHlo {
 public:
  struct PartitioningState {
    PartitioningState(const PartitioningState& other);
    ~PartitioningState() = default;

    SpmdBuilder* b;
    HloModule* module;
    int64_t num_replicas;
    HloInstruction* partition_id;
    SPMDCollectiveOpsCreator collective_ops_creator;
    int64_t* next_channel_id;
    void* reshard_cache;
    void* partitioner;
  };
  static_assert(sizeof(PartitioningState) ==
                torch_xla_ext::layout::kPartitioningStateSize);

  PartitionedHlo(HloInstruction* hlo, Shape base_shape,
                 PartitioningState state);
  PartitionedHlo(const PartitionedHlo& other);

  PartitionedHlo Reshard(const HloSharding& target,
                         std::optional<Literal> pad_value = std::nullopt) const;
  HloInstruction* hlo() const { return hlo_; }

 private:
  HloInstruction* hlo_;
  Shape base_shape_;
  PartitioningState state_;
};
static_assert(sizeof(PartitionedHlo) ==
              torch_xla_ext::layout::kPartitionedHloSize);

class SpmdPartitioningVisitor {
 public:
  SpmdPartitioningVisitor() = delete;
  PartitionedHlo& GetPartitionedHlo(const HloInstruction* hlo);
  void SetPartitionedHlo(const HloInstruction* hlo,
                         const PartitionedHlo& partitioned);
  PartitionedHlo::PartitioningState MakePartitioningState();
};

HloComputation* MakeBinaryAdd(PrimitiveType type, HloModule* module);

}  // namespace spmd

// The order of the virtual functions is the vtable's (machine_code.txt).
class CustomCallShardingHelper {
 public:
  virtual HloSharding PropagateUserSharding(const HloInstruction* instruction,
                                            const HloInstruction* user,
                                            const HloSharding& sharding) const;
  virtual std::optional<HloSharding> InferShardingFromOperands(
      const HloInstruction* instruction) const;
  virtual bool IsCustomCallShardable(const HloInstruction* instruction) const;
  virtual std::vector<HloInstruction*> GetRelatedInstructions(
      HloInstruction*) const {
    return {};
  }
  virtual bool CanPropagateShardingToOperands(
      const HloInstruction* instruction) const;
  virtual ~CustomCallShardingHelper() = default;
};
static_assert(sizeof(std::optional<HloSharding>) ==
              torch_xla_ext::layout::kHloShardingSize + 8);

class CustomCallPartitioner : public CustomCallShardingHelper {
 public:
  virtual absl::Status Partition(spmd::SpmdPartitioningVisitor* partitioner,
                                 HloInstruction* hlo) const;
  virtual bool CanSideEffectingHaveReplicatedSharding() const { return false; }
};

void RegisterCustomCallPartitioner(
    std::string_view target,
    std::unique_ptr<CustomCallPartitioner> partitioner);

}  // namespace xla

namespace torch_xla_ext {

inline void SetHasSideEffect(xla::HloInstruction* custom_call) {
  custom_call->set_custom_call_has_side_effect(true);
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_HLO_H_
