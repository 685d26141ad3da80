// Interposes on torch::lazy::GetPythonFrames: hides this project's frames when
// the upstream binary reads Python's stack.
//
// This works because the upstream binary calls it through its PLT.
#include "torch_xla_ext/csrc/runtime_fixes/python_frames.h"

#include <torch/csrc/lazy/python/python_util.h>

#include <vector>

#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace torch::lazy {

std::vector<SourceLocation> GetPythonFrames() {
  static const auto upstream = torch_xla::UpstreamFunction(&GetPythonFrames);
  return torch_xla_ext::WithoutOwnFrames(upstream());
}

}  // namespace torch::lazy
