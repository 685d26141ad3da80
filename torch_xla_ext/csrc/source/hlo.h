// HLO and XLA's SPMD partitioner for partitioning/, as XLA's source declares
// them.
#ifndef TORCH_XLA_EXT_CSRC_HLO_H_
#define TORCH_XLA_EXT_CSRC_HLO_H_

#include "absl/status/status.h"
#include "torch_xla_ext/csrc/upstream.h"
#include "xla/hlo/ir/hlo_casting_utils.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/service/custom_call_sharding_helper.h"
#include "xla/service/spmd/spmd_partitioner.h"
#include "xla/service/spmd/spmd_partitioner_util.h"

namespace torch_xla_ext {

inline void SetHasSideEffect(xla::HloInstruction* custom_call) {
  xla::Cast<xla::HloCustomCallInstruction>(custom_call)
      ->set_custom_call_has_side_effect(true);
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_HLO_H_
