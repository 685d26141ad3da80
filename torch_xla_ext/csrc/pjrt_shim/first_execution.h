// Keeps other work from overlapping with the first run of certain programs.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// Makes the first run of programs that name `target`, and are compiled from now
// on, exclusive: the device receives no other work during that run.
//
// XLA:GPU loads a target's resources when its program first runs. cuDNN's
// attention, for example, captures the device's compute stream while it loads a
// graph (Graph::warmup of its front end). If another thread, such as one that
// copies the next batch, makes a stream wait for the compute stream during the
// capture, the capture and the program fail: "cuda_graph_end_capture …
// capturing stream has unjoined work".
void RunFirstAlone(const std::string& target);

// Changes `api` to isolate first runs. It also does so for each program that is
// loaded, because the targets of such a program are unknown.
void IsolateFirstExecutions(PJRT_Api* api);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_
