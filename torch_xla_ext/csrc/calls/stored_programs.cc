#include "torch_xla_ext/csrc/calls/stored_programs.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace torch_xla_ext {
namespace {

constexpr size_t kBlockSize = size_t{1} << 20;

// Of the content of the file that has the function.
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

}  // namespace

torch::lazy::hash_t CompilerHash(const PJRT_Api* plugin) {
  const char* folder = std::getenv("XLA_PERSISTENT_CACHE_PATH");
  if (folder == nullptr || *folder == '\0') return 0;
  const torch::lazy::hash_t hash =
      FileHash(reinterpret_cast<const void*>(&CompilerHash));
  if (plugin == nullptr) return hash;
  // A function that the bridge leaves as it is (pjrt_bridge/widening.cc).
  return torch::lazy::HashCombine(
      hash,
      FileHash(reinterpret_cast<const void*>(plugin->PJRT_Error_Message)));
}

}  // namespace torch_xla_ext
