// A profiler that torch_xla 2.8.1 can use.
//
// It takes a plugin's profiler only if the table of its functions has exactly
// the 80 bytes that it was built with. Newer plugins appended three functions;
// then starting a profile, torch_xla.debug.profiler.start_trace for instance,
// writes an error and ends the process, as it does with a plugin that has no
// profiler.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_PROFILER_H_
#define TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_PROFILER_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_bridge {

// `extensions`, a plugin's list, behind a profiler extension: XLA takes the
// first of a kind. Its functions are those of the plugin that torch_xla 2.8.1
// knows; if the plugin does not have them, functions that see nothing, of which
// the first to be called gives XLA the reason to log. There is one such
// extension in the process.
PJRT_Extension_Base* WithProfiler(PJRT_Extension_Base* extensions);

}  // namespace torch_xla_ext::pjrt_bridge

#endif  // TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_PROFILER_H_
