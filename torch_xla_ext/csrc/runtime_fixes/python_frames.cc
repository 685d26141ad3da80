#include "torch_xla_ext/csrc/runtime_fixes/python_frames.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace torch_xla_ext {
namespace {

// The file that compiles graphs of torch.compile, and torch_xla's file that it
// replaces, with its function extract_graph_helper.
constexpr std::string_view kCompiler = "/graph/compiled_graph.py";
constexpr char kBridge[] = "torch_xla/_dynamo/dynamo_bridge.py";

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
         text.substr(text.size() - end.size()) == end;
}

}  // namespace

std::vector<std::string> FoldersOf(
    std::initializer_list<const char*> packages) {
  std::vector<std::string> folders;
  const auto modules = pybind11::module_::import("sys").attr("modules");
  for (const char* name : packages) {
    const pybind11::object module = modules.attr("get")(name);
    if (!pybind11::hasattr(module, "__path__")) continue;
    for (const auto folder : module.attr("__path__")) {
      folders.push_back(pybind11::cast<std::string>(folder) + "/");
    }
  }
  return folders;
}

bool IsInFolders(const std::string& file,
                 const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&file](const std::string& folder) {
                       return file.rfind(folder, 0) == 0;
                     });
}

std::vector<torch::lazy::SourceLocation> WithoutOwnFrames(
    std::vector<torch::lazy::SourceLocation> frames) {
  if (frames.empty()) return frames;
  const pybind11::gil_scoped_acquire gil;
  const std::vector<std::string> folders =
      FoldersOf({"torch_xla_ext", "torch_xla_ext_startup"});
  std::vector<torch::lazy::SourceLocation> others;
  for (torch::lazy::SourceLocation& frame : frames) {
    if (!IsInFolders(frame.file, folders)) {
      others.push_back(std::move(frame));
    } else if (others.empty() && EndsWith(frame.file, kCompiler)) {
      others.push_back({kBridge, "extract_graph_helper", frame.line});
    }
  }
  return others;
}

}  // namespace torch_xla_ext
