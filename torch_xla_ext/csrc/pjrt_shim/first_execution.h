// Programs with cuDNN's graphs run for the first time alone.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// Changes `api` so that nothing else is given to the device while a program
// with cuDNN's graphs (attention) runs for the first time.
//
// XLA:GPU loads the graphs of a program when it first runs, and cuDNN captures
// the device's compute stream while it loads one (Graph::warmup of its front
// end). If another thread, such as one that copies the next batch, makes a
// stream wait for the compute stream meanwhile, the capture and the program
// fail: "cuda_graph_end_capture … capturing stream has unjoined work".
void IsolateFirstExecutions(PJRT_Api* api);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_FIRST_EXECUTION_H_
