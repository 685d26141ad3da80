#include "torch_xla_ext/csrc/runtime_fixes/mixed_devices.h"

#include <torch/csrc/lazy/core/ir_metadata.h>
#include <torch/csrc/lazy/python/python_util.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/python_frames.h"

namespace torch_xla_ext {
namespace {

// The innermost running line of Python code, if possible outside PyTorch and
// torch_xla: "file:line", or "" in a thread without Python.
std::string UsersLine() {
  std::string innermost;
  const pybind11::gil_scoped_acquire gil;
  const std::vector<std::string> folders = FoldersOf(
      {"torch", "torch_xla", "torch_xla_ext", "torch_xla_ext_startup"});
  for (const torch::lazy::SourceLocation& frame :
       torch::lazy::GetPythonFrames()) {
    const std::string line = frame.file + ":" + std::to_string(frame.line);
    const bool is_in_library =
        frame.file.rfind("<frozen", 0) == 0 || IsInFolders(frame.file, folders);
    if (!is_in_library) return line;
    if (innermost.empty()) innermost = line;
  }
  return innermost;
}

bool IsRefused() {
  const char* value = std::getenv("TORCH_XLA_EXT_MIXED_DEVICES");
  return value != nullptr && std::string_view(value) == "error";
}

}  // namespace

void ReportCopyToDevice(const at::Tensor& tensor, at::Device device) {
  TORCH_CHECK(!IsRefused(),
              "Expected all tensors to be on the same device, but found at "
              "least two devices, ",
              device, " and ", tensor.device(),
              "! Please move one of them with .to().");
  const std::string line = UsersLine();
  static std::mutex mutex;
  static auto& reported = *new std::set<std::string>;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!reported.insert(line).second) return;
  }
  TORCH_WARN(line.empty() ? "" : line + ": ",
             "an operator received tensors on ", device,
             " and one on the CPU, ", tensor.toString(), " of shape ",
             tensor.sym_sizes(),
             ", which is copied to the device at each call: move it there "
             "before, with .to(\"xla\"). TORCH_XLA_EXT_MIXED_DEVICES=error "
             "makes this an error.");
}

}  // namespace torch_xla_ext
