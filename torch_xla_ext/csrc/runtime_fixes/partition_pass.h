// Makes operands and results of a program whole that XLA would divide wrongly.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITION_PASS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITION_PASS_H_

#include <cstdint>
#include <string>

#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"
#include "torch_xla_ext/csrc/runtime_fixes/tiling.h"

namespace torch_xla_ext {

// A pass over a program with shardings. Change may replace operands, and call
// GatherResult.
class PartitionPass : public ProgramPass {
 public:
  using ProgramPass::ProgramPass;

 protected:
  void LookAt(const ProtobufMessage& one) override;
  bool IsNeeded() const override { return is_sharded_; }
  void Rewrite(ProtobufMessage one) override;

  Sizes SizesOf(uint64_t operand) const;
  // The operand, replicated in these dimensions.
  uint64_t WholeIn(uint64_t operand, const Sizes& dimensions);
  // The operand, replicated except in these dimensions, whose sharding XLA
  // decides.
  uint64_t WholeBut(uint64_t operand, Sizes dimensions);
  // Replicates the result, too, except in these dimensions. Otherwise its users
  // could divide the result, and with it the operands.
  void GatherResult(ProtobufMessage* one, const Sizes& others);
  // The other dimensions of an operand.
  Sizes Others(uint64_t operand, const Sizes& dimensions) const;

  uint64_t devices_ = 1;

 private:
  std::string following_;  // what takes the place of the changed instruction
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITION_PASS_H_
