// Divides calls among devices: XLA asks this folder for the shardings of a
// call's results and operands, and for the call of one device.
//
// XLA:CPU asks through CustomCallPartitioner (host_partitioner.cc), and a CUDA
// plugin through an extension of PJRT (plugin_partitioner.cc). Both pass
// shardings, as serialized xla::OpSharding, to torch_xla_ext.sharding, which
// knows the calls' sharding rules.
#ifndef TORCH_XLA_EXT_CSRC_PARTITIONING_PARTITIONING_H_
#define TORCH_XLA_EXT_CSRC_PARTITIONING_PARTITIONING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/custom_call.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext {

using Shardings = std::vector<std::optional<std::string>>;

// The call of one device.
struct DeviceCall {
  // Shapes and shardings of the operands and results of XLA's call.
  std::vector<std::string> operand_shardings;
  std::string result_sharding;
  std::vector<std::vector<int64_t>> operand_shapes;
  // All results of the kernel. The traced call has only the first
  // num_traced_results.
  OutputTypes results;
  size_t num_traced_results = 0;
  // For each traced result, the groups of devices whose results are added;
  // empty if none are.
  std::vector<std::vector<std::vector<int64_t>>> sums;
  std::string payload;
};

// The functions of torch_xla_ext.sharding. `partition` is the call's key
// (CustomCallConfig). They throw std::runtime_error.
struct PartitionFunctions {
  // The sharding of the results that follows from the operands' shardings, if
  // any.
  std::function<std::optional<std::string>(const std::string& partition,
                                           const Shardings& operands)>
      infer;
  // The sharding of the results if a consumer asks for the sharding `result`.
  std::function<std::string(const std::string& partition,
                            const std::string& result)>
      propagate;
  std::function<DeviceCall(const std::string& partition,
                           const Shardings& operands,
                           const std::optional<std::string>& result)>
      divide;
};

// Registers partitioners of kPartitionedTarget with XLA and, for CUDA, with the
// plugin; another call replaces their functions. Throws std::runtime_error if
// the plugin does not accept partitioners.
void RegisterPartitioners(PartitionFunctions functions);

// The registered functions.
const PartitionFunctions& GetPartitionFunctions();

// Defined in host_partitioner.cc and plugin_partitioner.cc.
void RegisterHostPartitioner();
void RegisterPluginPartitioner(const PJRT_Api* plugin);

// The program of one device's call, as the text of an MLIR module, in
// StableHLO.
std::string DeviceProgram(const CustomCallConfig& config,
                          const DeviceCall& call);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_PARTITIONING_PARTITIONING_H_
