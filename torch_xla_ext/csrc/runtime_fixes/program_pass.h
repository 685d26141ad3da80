// Walks and rewrites a program before it is compiled.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROGRAM_PASS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROGRAM_PASS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {

// One pass over a program, a serialized xla::HloModuleProto.
class ProgramPass {
 public:
  // `prefix` begins the names of added instructions.
  ProgramPass(const std::string& serialized, std::string_view prefix)
      : module_(serialized), prefix_(prefix) {}
  virtual ~ProgramPass() = default;

  // Returns the changed program; nothing if nothing changes.
  std::optional<std::string> Run();

 protected:
  // First, these look at each computation and instruction. Nothing changes
  // unless IsNeeded() then returns true.
  virtual void LookAtComputation(const ProtobufMessage& computation) {}
  virtual void LookAt(const ProtobufMessage& one) {}
  virtual bool IsNeeded() const { return true; }

  // Then this changes each computation. By default, it calls Change for each
  // instruction and makes a computation of `instructions_`.
  virtual void ChangeComputation(ProtobufMessage* computation);
  virtual void Begin(const ProtobufMessage& computation) {}
  // Changes an instruction, and adds to `instructions_` before it. By default,
  // Rewrite calls it and appends the instruction.
  virtual void Change(ProtobufMessage* one) {}
  virtual void Rewrite(ProtobufMessage one) {
    Change(&one);
    instructions_.push_back(one.Serialize());
  }

  // Appends an instruction and returns its id; `message` has the fields that
  // only this kind of instruction has, and its id if it takes over another
  // one's. AddSerialized needs the id last_id_ + 1.
  uint64_t Add(std::string_view opcode, std::string_view shape,
               const std::vector<uint64_t>& operands,
               ProtobufMessage message = {});
  uint64_t AddSerialized(std::string serialized);
  // Appends a scalar with this element type; `message` is as for Add.
  uint64_t AddNumber(int64_t value, uint64_t type,
                     const ProtobufMessage& message = {});

  ProtobufMessage module_;
  uint64_t last_id_ = 0;
  bool is_changed_ = false;
  bool is_sharded_ = false;         // any instruction
  bool is_divided_ = false;         // any parameter
  bool has_manual_region_ = false;  // cannot be recognized in a computation
  std::vector<std::string> computations_;  // changed ones
  // These describe the computation that is being changed.
  std::unordered_map<uint64_t, std::string> shapes_;
  std::vector<std::string> instructions_;

 private:
  const std::string prefix_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROGRAM_PASS_H_
