// Filters Python frames by the package of their file.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_FRAMES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_FRAMES_H_

#include <torch/csrc/lazy/core/ir_metadata.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace torch_xla_ext {

// The folders of these packages, if they are imported. Needs the GIL.
std::vector<std::string> FoldersOf(std::initializer_list<const char*> packages);

bool IsInFolders(const std::string& file,
                 const std::vector<std::string>& folders);

// The frames without those of this project's packages. PT_XLA_DEBUG derives the
// cause of an execution from torch_xla's innermost functions, and operations
// record the lines that made them; our wrappers are neither.
std::vector<torch::lazy::SourceLocation> WithoutOwnFrames(
    std::vector<torch::lazy::SourceLocation> frames);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_FRAMES_H_
