#include "torch_xla_ext/csrc/registry/module_extensions.h"

namespace torch_xla_ext {
namespace {

std::vector<ModuleExtension>& Added() {
  static auto& added = *new std::vector<ModuleExtension>;
  return added;
}

}  // namespace

bool AddModuleExtension(ModuleExtension define) {
  Added().push_back(define);
  return true;
}

const std::vector<ModuleExtension>& ModuleExtensions() { return Added(); }

}  // namespace torch_xla_ext
