// Custom calls in programs for several devices.
//
// XLA decides how such a program is divided among the devices when it compiles
// the program. Until then a call is a custom call of kPartitionedTarget, whose
// backend_config is a key; XLA's partitioner passes the key to the partitioner
// of this target (partitioning/), which replaces it by a call of the kernel
// with one device's operands.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_PARTITIONED_CALL_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_PARTITIONED_CALL_H_

#include <string>

#include "torch_xla_ext/csrc/custom_call/custom_call.h"

namespace torch_xla_ext {

inline constexpr char kPartitionedTarget[] = "torch_xla_ext.partitioned";

// Stores a call and returns its key, which begins with the kernel's name, so
// that a search of a program for the name finds it
// (pjrt_shim/first_execution.cc).
// Equal calls have equal keys, in every process.
std::string KeepPartitionedCall(const CustomCallConfig& config);

// Whether this thread lowers calls in programs for several devices under their
// kernels' names, with whole operands. This is for a program that leaves the
// process, because the partitioner stays in the process.
void SetLowersWholeCalls(bool lowers);
bool LowersWholeCalls();

// The call with this key. Throws std::invalid_argument for an unknown key.
const CustomCallConfig& PartitionedCall(const std::string& key);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_PARTITIONED_CALL_H_
