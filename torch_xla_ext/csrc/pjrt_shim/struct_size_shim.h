// Makes argument structures as long as the plugin expects.
//
// Every PJRT function takes a pointer to a structure that begins with its own
// size, and newer versions of the API append members. Before it does anything
// else, a plugin rejects a structure that lacks members that it requires:
// "Unexpected PJRT_ExecuteOptions size: expected 112, got 80. …".
//
// The shim passes every structure unchanged. If the plugin rejects one, the
// call is repeated with a copy of the size that the plugin named, whose new
// members are zero; later calls of that function use that size at once. Results
// are copied back. So the shim need not know the plugin's version, and a
// structure that is accepted costs nothing. A member that the plugin does not
// require stays absent, because its default need not be zero (that of
// PJRT_ExecuteOptions::use_major_to_minor_data_layout_for_callbacks is true).
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_STRUCT_SIZE_SHIM_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_STRUCT_SIZE_SHIM_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// The plugin's API with functions that lengthen their arguments before they
// call the plugin's, and with its extensions. There is one such table per
// process.
PJRT_Api* ShimmedApi(const PJRT_Api* plugin);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_STRUCT_SIZE_SHIM_H_
