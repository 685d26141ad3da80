// Programs whose first run must not overlap with other work.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// Makes the first run of programs that name `target`, and are compiled from now
// on, exclusive: the device gets no other work during it.
//
// XLA:GPU loads a target's resources when its program first runs. cuDNN's
// attention, for example, captures the device's compute stream while it loads a
// graph (Graph::warmup of its front end). If another thread, such as one that
// copies the next batch, makes a stream wait for the compute stream during the
// capture, the capture and the program fail: "cuda_graph_end_capture …
// capturing stream has unjoined work".
void RunFirstAlone(const std::string& target);

// Changes `api` so that it does this, also for each program that is loaded,
// whose targets are not known.
void IsolateFirstExecutions(PJRT_Api* api);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_
