// Makes the device description, which is part of a cached program's key,
// reproducible.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_TOPOLOGY_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_TOPOLOGY_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// Makes PJRT_TopologyDescription_Serialize return the same bytes in every
// process: `Canonical` of the plugin's bytes.
void MakeTopologyCanonical(PJRT_Api* api);

// Sorts the entries of maps in a protobuf message, and leaves everything else
// unchanged. Protobuf writes map entries in a different order in each process.
//
// Without the schema, anything that looks like a map counts as one: consecutive
// fields of the same number, each a message of one field 1 and one field 2. A
// list of such messages loses its order, so the result is only for keys, and
// must not be parsed again.
std::string Canonical(std::string message);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_TOPOLOGY_H_
