#include "torch_xla_ext/csrc/runtime_fixes/passes.h"

#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/conversions.h"
#include "torch_xla_ext/csrc/runtime_fixes/gathered_weights.h"
#include "torch_xla_ext/csrc/runtime_fixes/gradient_windows.h"
#include "torch_xla_ext/csrc/runtime_fixes/partitioned_margins.h"
#include "torch_xla_ext/csrc/runtime_fixes/partitioned_operands.h"
#include "torch_xla_ext/csrc/runtime_fixes/quotients.h"
#include "torch_xla_ext/csrc/runtime_fixes/reductions.h"
#include "torch_xla_ext/csrc/runtime_fixes/shared_windows.h"

namespace torch_xla_ext {

std::optional<std::string> CorrectProgram(const std::string& module,
                                          const Precisions& precisions,
                                          bool on_cpu) {
  std::optional<std::string> corrected;
  const auto apply = [&](const auto& pass) {
    auto changed = pass(corrected ? *corrected : module);
    if (changed) corrected = std::move(changed);
  };
  // Reductions come first, because their initial values decide which windows
  // are separated. Operands come before margins, because they add pads. Weights
  // are gathered before gradients are ordered: a gathered weight is an operand
  // of a product of the backward pass. The conversions that reductions add are
  // corrected, too.
  apply([&](const std::string& one) { return CorrectReductions(one, on_cpu); });
  apply(CorrectPartitionedOperands);
  apply(CorrectPartitionedMargins);
  apply(SeparateWindows);
  apply(GatherWeights);
  apply(OrderGradients);
  apply(SeparateQuotients);
  apply(CorrectConversions);
  apply([&](const std::string& one) { return SetPrecision(one, precisions); });
  return corrected;
}

}  // namespace torch_xla_ext
