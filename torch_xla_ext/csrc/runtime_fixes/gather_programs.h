// Caches the programs with which the client gathers a sharded value to read it.
//
// Upstream compiles such a program for each read of each value.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHER_PROGRAMS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHER_PROGRAMS_H_

#include <torch/csrc/lazy/backend/lowering_context.h>

#include <functional>
#include <string>

namespace torch_xla_ext {

// Whether `program`, a serialized HloModuleProto, gathers a value.
bool IsGatherProgram(const std::string& program);

// The result of `compile` for an equal program, which is cached.
torch::lazy::ComputationPtr CompiledGatherProgram(
    const std::string& program,
    const std::function<torch::lazy::ComputationPtr()>& compile);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHER_PROGRAMS_H_
