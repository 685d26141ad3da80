// Scatters that XLA's partitioner can divide.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SCATTER_INDICES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SCATTER_INDICES_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, with indices
// of 32 bits in place of 64 in its scatters, if it has shardings; nothing if
// none changes.
//
// Where the indices are divided unequally, which a slice of a tensor that is
// sharded can be, the partitioner pads them with a number of 32 bits, and
// aborts the process unless they are of 32 bits, too. Indices are clamped
// before: one that is out of range stays so, and its update is dropped.
std::optional<std::string> NarrowScatterIndices(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SCATTER_INDICES_H_
