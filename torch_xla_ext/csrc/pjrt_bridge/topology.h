// The description of a device that is a part of a cached program's key.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_TOPOLOGY_H_
#define TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_TOPOLOGY_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_bridge {

// Makes PJRT_TopologyDescription_Serialize give the same bytes in each process:
// `Canonical` of the plugin's.
void MakeTopologyCanonical(PJRT_Api* api);

// A protobuf message with the entries of its maps in one order, and all else
// as it is. Protobuf writes them in another order in each process.
//
// Without the schema, a map is what looks like one: fields with one number in a
// row, each a message of one field 1 and one field 2. A list of such messages
// loses its order; so this is for keys, and not to be parsed again.
std::string Canonical(std::string message);

}  // namespace torch_xla_ext::pjrt_bridge

#endif  // TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_TOPOLOGY_H_
