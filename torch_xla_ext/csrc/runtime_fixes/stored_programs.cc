#include "torch_xla_ext/csrc/runtime_fixes/stored_programs.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla_ext {
namespace {

constexpr size_t kBlockSize = size_t{1} << 20;

// The hash of the file that contains the function.
torch::lazy::hash_t FileHash(const void* function) {
  Dl_info info;
  const char* path =
      dladdr(function, &info) == 0 ? "that is unknown" : info.dli_fname;
  std::ifstream file(path, std::ios::binary);
  torch::lazy::hash_t hash = 0;
  std::vector<char> block(kBlockSize);
  do {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    hash = torch::lazy::HashBlock(block.data(),
                                  static_cast<size_t>(file.gcount()), hash);
  } while (file);
  if (!file.eof()) {
    throw std::runtime_error(
        std::string("programs cannot be stored by initialize_cache: the "
                    "library ") +
        path + " cannot be read");
  }
  return hash;
}

// Whether an instruction is a custom call for which XLA's CPU compiler emits
// the code. Inside a string, quotes are escaped, so they do not match.
bool IsXlasOwn(std::string_view instruction) {
  constexpr std::string_view kOwn[] = {"custom_call_target=\"TopK\"",
                                       "custom_call_target=\"SliceToDynamic\""};
  return std::any_of(std::begin(kOwn), std::end(kOwn), [&](auto own) {
    return instruction.find(own) != instruction.npos;
  });
}

// An instruction without its strings, which have the user's text: a kernel's
// name, a payload.
std::string WithoutStrings(std::string_view instruction) {
  std::string rest;
  bool inside = false;
  for (size_t i = 0; i < instruction.size(); ++i) {
    if (instruction[i] == '"') {
      inside = !inside;
    } else if (!inside) {
      rest += instruction[i];
    } else if (instruction[i] == '\\') {
      ++i;
    }
  }
  return rest;
}

}  // namespace

torch::lazy::hash_t CompilerHash(const PJRT_Api* plugin) {
  const char* folder = std::getenv("XLA_PERSISTENT_CACHE_PATH");
  if (folder == nullptr || *folder == '\0') return 0;
  const torch::lazy::hash_t hash =
      FileHash(reinterpret_cast<const void*>(&CompilerHash));
  if (plugin == nullptr) return hash;
  // A function that the shim does not replace (pjrt_shim/struct_size_shim.cc).
  return torch::lazy::HashCombine(
      hash,
      FileHash(reinterpret_cast<const void*>(plugin->PJRT_Error_Message)));
}

bool HasUntypedCalls(std::string_view hlo) {
  while (!hlo.empty()) {
    const size_t end = std::min(hlo.find('\n'), hlo.size());
    const std::string_view line = hlo.substr(0, end);
    hlo.remove_prefix(std::min(end + 1, hlo.size()));
    if (line.find(" custom-call(") == line.npos || IsXlasOwn(line)) continue;
    const std::string call = WithoutStrings(line);
    if (call.find(" custom-call(") != call.npos &&
        call.find(", api_version=API_VERSION_TYPED_FFI") == call.npos) {
      return true;
    }
  }
  return false;
}

}  // namespace torch_xla_ext
