// Programs that gather a sharded value, which the client makes to read it.
//
// Upstream compiles one for each read of each value.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHER_PROGRAMS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHER_PROGRAMS_H_

#include <torch/csrc/lazy/backend/lowering_context.h>

#include <functional>
#include <string>

namespace torch_xla_ext {

// Whether `program`, a serialized HloModuleProto, is one of them.
bool IsGatherProgram(const std::string& program);

// What `compile` returned for an equal program.
torch::lazy::ComputationPtr CompiledGatherProgram(
    const std::string& program,
    const std::function<torch::lazy::ComputationPtr()>& compile);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHER_PROGRAMS_H_
