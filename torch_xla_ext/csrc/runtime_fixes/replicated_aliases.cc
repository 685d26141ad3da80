#include "torch_xla_ext/csrc/runtime_fixes/replicated_aliases.h"

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {

namespace instruction = hlo::instruction;

std::optional<std::string> WithoutReplicatedAliases(const std::string& module) {
  ProtobufMessage program(module);
  bool is_divided = false;
  std::unordered_set<uint64_t> replicated;  // parameters' numbers
  for (const auto computation : program.All(hlo::module::kComputations)) {
    const ProtobufMessage message(computation);
    const bool is_entry = message.Number(hlo::computation::kId) ==
                          program.Number(hlo::module::kEntryComputationId);
    for (const auto inner : message.All(hlo::computation::kInstructions)) {
      const ProtobufMessage one(inner);
      const bool is_replicated =
          ProtobufMessage(one.Bytes(instruction::kSharding))
              .Number(hlo::sharding::kType) == hlo::kReplicated;
      is_divided = is_divided || !is_replicated;
      if (is_entry && is_replicated &&
          one.Bytes(instruction::kOpcode) == "parameter") {
        replicated.insert(one.Number(instruction::kParameterNumber));
      }
    }
  }
  if (!is_divided) return std::nullopt;
  std::vector<std::string> kept;
  ProtobufMessage aliases(program.Bytes(hlo::module::kAliases));
  ProtobufMessage donors(program.Bytes(hlo::module::kDonors));
  std::vector<std::string> donor_entries;
  for (const auto entry : donors.All(hlo::donor::kEntries)) {
    donor_entries.emplace_back(entry);
  }
  const size_t num_donors = donor_entries.size();
  for (const auto entry : aliases.All(hlo::alias::kEntries)) {
    const uint64_t parameter =
        ProtobufMessage(entry).Number(hlo::alias::kParameter);
    if (replicated.count(parameter) == 0) {
      kept.emplace_back(entry);
      continue;
    }
    ProtobufMessage donor;
    donor.SetNumber(hlo::donor::kParameter, parameter);
    donor_entries.push_back(donor.Serialize());
  }
  if (donor_entries.size() == num_donors) return std::nullopt;
  aliases.Replace(hlo::alias::kEntries, kept);
  donors.Replace(hlo::donor::kEntries, donor_entries);
  program.SetBytes(hlo::module::kAliases, aliases.Serialize());
  program.SetBytes(hlo::module::kDonors, donors.Serialize());
  return program.Serialize();
}

}  // namespace torch_xla_ext
