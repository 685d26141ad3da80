// Argument structures as long as the plugin expects them.
//
// Every function of PJRT takes a pointer to a structure that begins with its
// own size, and newer versions of the API append members. A plugin refuses a
// structure without the members that it insists on, before it does anything
// else: "Unexpected PJRT_ExecuteOptions size: expected 112, got 80. …".
//
// The bridge passes every structure as it is. When the plugin refuses one, the
// call is repeated with a copy of the length that the plugin named, whose new
// members are zero, and later calls of that function use that length at once.
// Results are copied back. So nothing has to be known about the plugin's
// version, a structure that is accepted costs nothing, and a member that the
// plugin does not insist on stays absent: its default need not be zero (that of
// PJRT_ExecuteOptions::use_major_to_minor_data_layout_for_callbacks is true).
#ifndef TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_WIDENING_H_
#define TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_WIDENING_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_bridge {

// The functions of `plugin` behind functions that widen their arguments, with
// its extensions. There is one such table in the process.
PJRT_Api* WidenedApi(const PJRT_Api* plugin);

}  // namespace torch_xla_ext::pjrt_bridge

#endif  // TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_WIDENING_H_
