// Registers partitioners of custom calls with a PJRT plugin.
//
// The declarations are those of
// xla/pjrt/c/pjrt_c_api_custom_partitioner_extension.h and
// xla/python/custom_partition_callback.h of XLA at JAX 0.11.1, which no Python
// package contains. jax-cuda12-pjrt 0.6.2 has the same ones.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_PARTITIONERS_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_PARTITIONERS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

struct Text {
  const char* data;
  size_t size;
};

struct ShapeAndSharding {
  Text shape;  // a serialized xla::ShapeProto
  bool has_sharding;
  Text sharding;  // a serialized xla::OpSharding, as every sharding here
};

// A callback's error and cleanup. XLA calls `cleanup` after it has read the
// results.
struct CallbackVersionAndError {
  int64_t api_version;
  void* data;
  void (*cleanup)(void* data);
  bool has_error;
  PJRT_Error_Code code;
  Text error_message;
};

struct PartitionArgs {
  CallbackVersionAndError header;
  size_t num_args;
  ShapeAndSharding* op_args;
  ShapeAndSharding op_result;
  Text backend_config;
  // Results.
  Text mlir_module;
  Text* args_sharding;
  Text result_sharding;
};

struct InferShardingArgs {
  CallbackVersionAndError header;
  size_t num_args;
  ShapeAndSharding* op_args;
  Text result_shape;
  Text backend_config;
  // Results.
  bool has_result_sharding;
  Text result_sharding;
};

struct PropagateUserShardingArgs {
  CallbackVersionAndError header;
  Text backend_config;
  Text result_shape;
  Text result_sharding;  // in and out
};

struct PartitionerCallbacks {
  int64_t version;  // 0
  void* private_data;
  void (*destroy)(PartitionerCallbacks* callbacks);
  void (*partition)(PartitionerCallbacks* callbacks, PartitionArgs* args);
  // An error from either of these two callbacks aborts the process.
  void (*infer_sharding)(PartitionerCallbacks* callbacks,
                         InferShardingArgs* args);
  void (*propagate_user_sharding)(PartitionerCallbacks* callbacks,
                                  PropagateUserShardingArgs* args);
  bool can_side_effecting_have_replicated_sharding;
};

// Registers the partitioner of the target `name`; `callbacks` is never freed.
// The first partitioner that is registered for a name stays. Throws
// std::runtime_error if the plugin has no such extension, or, with the plugin's
// text, if it rejects the partitioner.
void RegisterPartitioner(const PJRT_Api* plugin, const std::string& name,
                         PartitionerCallbacks* callbacks);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_PARTITIONERS_H_
