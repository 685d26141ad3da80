#include "torch_xla_ext/csrc/runtime_fixes/lowered.h"

#include <utility>

namespace torch_xla_ext {
namespace {

thread_local LoweringScope* lowering_scope = nullptr;

}  // namespace

LoweringScope::LoweringScope() { lowering_scope = this; }
LoweringScope::~LoweringScope() { lowering_scope = nullptr; }

bool IsOnlyLowering() { return lowering_scope != nullptr; }

void StopLowered(CompileFunction compile) {
  lowering_scope->compile = std::move(compile);
  throw OnlyLowered();
}

}  // namespace torch_xla_ext
