#include "torch_xla_ext/csrc/calls/definitions.h"

namespace torch_xla_ext {
namespace {

std::vector<Definitions>& Added() {
  static auto& added = *new std::vector<Definitions>;
  return added;
}

}  // namespace

bool AddDefinitions(Definitions define) {
  Added().push_back(define);
  return true;
}

const std::vector<Definitions>& AddedDefinitions() { return Added(); }

}  // namespace torch_xla_ext
