// Provides a profiler that torch_xla 2.8.1 can use.
//
// torch_xla 2.8.1 accepts a plugin's profiler only if its function table has
// exactly the 80 bytes that torch_xla was built with. Newer plugins have three
// more functions; with them, as with a plugin that has no profiler, starting a
// profile, for instance with torch_xla.debug.profiler.start_trace, prints an
// error and aborts the process.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_PROFILER_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_PROFILER_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// Puts a profiler extension in front of `extensions`, a plugin's list: XLA uses
// the first one of each type. The extension has only those of the plugin's
// functions that torch_xla 2.8.1 knows. If the plugin has no profiler, they
// record nothing, and the first one to be called returns an error with the
// reason, for XLA to log. There is one such extension per process.
PJRT_Extension_Base* WithProfiler(PJRT_Extension_Base* extensions);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_PROFILER_H_
