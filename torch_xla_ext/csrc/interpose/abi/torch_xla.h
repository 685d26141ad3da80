// torch_xla 2.8.1 as compiled into the upstream binary: the functions that the
// front library calls, and the one class that it derives from. Every function
// declared here is exported by the upstream binary (the build checks it).
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_TORCH_XLA_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_TORCH_XLA_H_

#include <ATen/core/Tensor.h>
#include <ATen/dlpack.h>
#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/backend/lowering_context.h>
#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/ir.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/absl.h"
#include "torch_xla_ext/csrc/interpose/abi/layout.h"
#include "torch_xla_ext/csrc/interpose/abi/xla.h"

namespace torch_xla {

class LoweringContext {
 public:
  LoweringContext() = delete;  // always the upstream binary's
  xla::XlaOp GetOutputOp(const torch::lazy::Output& output);
  xla::XlaOp GetParameter(
      const std::shared_ptr<torch::lazy::BackendData>& backend_data,
      const std::unordered_set<uint32_t>& dynamic_dims);
  // Whether a result has the shape of this data. Virtual in the upstream
  // binary.
  bool CheckResultShape(const torch::lazy::BackendDataPtr& parameter_data,
                        size_t result_idx);
};

// absl::InlinedVector<xla::XlaOp, 1>. It is only returned, through the caller's
// memory, and passed on: never constructed, copied or destroyed here. The
// declared destructor makes the compiler return it in memory, as it does the
// real class.
class XlaOpVector {
 public:
  XlaOpVector(const XlaOpVector&) = delete;
  ~XlaOpVector();

 private:
  alignas(8) char storage_[torch_xla_ext::layout::kXlaOpVectorSize];
};

// The base class of every IR node. The virtual functions and the members are in
// the order of torch_xla/csrc/ir.h; the build compares both with the upstream
// binary.
class XlaNode : public torch::lazy::Node {
 public:
  XlaNode(torch::lazy::OpKind op, torch::lazy::OpList operands,
          xla::Shape shape, size_t num_outputs, torch::lazy::hash_t hash_seed);
  ~XlaNode() override;

  const xla::Shape& xla_shape() const { return xla_shape_; }
  // Null if the result has no sharding.
  std::shared_ptr<xla::OpSharding> GetSharding(size_t index) const {
    return output_shardings_.empty() ? nullptr : output_shardings_[index];
  }
  void SetSharding(const xla::OpSharding& sharding, size_t index);

  virtual torch::lazy::NodePtr Clone(torch::lazy::OpList operands) const;
  virtual XlaOpVector Lower(LoweringContext* loctx) const;

  XlaOpVector ReturnOps(absl::Span<const xla::XlaOp> ops,
                        LoweringContext* loctx) const;

  torch::lazy::hash_t hash() const override;
  torch::lazy::hash_t shapeHash() const override;
  std::string ToString() const override;

 protected:
  std::unordered_set<uint32_t> unbounded_dynamic_dims_;

 private:
  friend struct XlaNodeLayout;

  xla::Shape xla_shape_;
  torch::lazy::hash_t node_hash_;
  torch::lazy::hash_t dag_hash_;
  torch::lazy::hash_t sharding_hash_;
  std::vector<std::shared_ptr<xla::OpSharding>> output_shardings_;
};
static_assert(sizeof(torch::lazy::Node) == 168,
              "torch's headers are not those of torch 2.8.0");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // single inheritance
struct XlaNodeLayout {
  static_assert(sizeof(XlaNode) == torch_xla_ext::layout::kXlaNodeSize);
  static_assert(offsetof(XlaNode, xla_shape_) ==
                torch_xla_ext::layout::kXlaNodeShapeOffset);
  static_assert(offsetof(XlaNode, output_shardings_) ==
                torch_xla_ext::layout::kXlaNodeShardingsOffset);
};
#pragma GCC diagnostic pop

const xla::Shape& GetXlaShape(const torch::lazy::Value& value);

namespace runtime::util {

// A reference to a value that is elsewhere, or that it stores itself.
template <typename T>
class MaybeRef {
 public:
  explicit MaybeRef(const T& elsewhere) : ref_(elsewhere) {}
  const T& get() const { return ref_; }

 private:
  std::optional<T> storage_;
  const T& ref_;
};
static_assert(sizeof(MaybeRef<xla::Shape>) ==
              torch_xla_ext::layout::kMaybeShapeRefOffset + sizeof(void*));

}  // namespace runtime::util

// Reports a graph whose shapes change from step to step, if that detector is
// on. Upstream's MakeNode calls it for every node.
void DetectDynamicShape(torch::lazy::NodePtr node);

// Adds virtual functions to torch's LazyTensor, but none that is used here.
class XLATensor : public torch::lazy::LazyTensor {
 public:
  // Always the upstream binary's.
  struct Data : public torch::lazy::LazyTensor::Data {
    Data() = delete;
    char others[torch_xla_ext::layout::kAliasIdOffset -
                sizeof(torch::lazy::LazyTensor::Data)];
    // The id of the tensor whose value it replaces, or its own.
    int64_t alias_id;
    bool is_cloned;
  };
  const std::shared_ptr<Data>& data() const;

  static c10::intrusive_ptr<XLATensor> Create(
      torch::lazy::BackendDataPtr handle,
      std::optional<at::ScalarType> logical_element_type);
  static c10::intrusive_ptr<XLATensor> Create(
      torch::lazy::Value ir_value, const torch::lazy::BackendDevice& device,
      std::optional<at::ScalarType> logical_element_type,
      bool delay_eager_execution);
  void SetXlaData(torch::lazy::BackendDataPtr handle);
  void UpdateFromTensor(at::Tensor tensor, bool sync);
  torch::lazy::BackendDataPtr GetXlaData();
  at::Tensor ToTensor(bool detached);
  runtime::util::MaybeRef<xla::Shape> shape() const;
  torch::lazy::Value GetIrValue() const;
  void SetIrValue(torch::lazy::Value ir_value, bool inplace,
                  bool delay_eager_execution);
  c10::intrusive_ptr<XLATensor> CreateFrom(
      torch::lazy::Value ir_value,
      std::optional<at::ScalarType> logical_element_type,
      bool delay_eager_execution) const;

  // Only the first member is declared; always the upstream binary's.
  struct ShardingSpec {
    ShardingSpec() = delete;
    xla::OpSharding sharding;
  };
  std::shared_ptr<ShardingSpec> sharding_spec() const;
};
using XLATensorPtr = c10::intrusive_ptr<XLATensor>;

// Makes the protected types of torch's LazyGraphExecutor public.
struct LazyGraphExecutorTypes : torch::lazy::LazyGraphExecutor {
  using torch::lazy::LazyGraphExecutor::DeviceContextArena;
  using torch::lazy::LazyGraphExecutor::PostOrderData;
  using torch::lazy::LazyGraphExecutor::SyncTensorCollection;
  using torch::lazy::LazyGraphExecutor::SyncTensorsConfig;
};

class XLAGraphExecutor {
 public:
  using PostOrderData = LazyGraphExecutorTypes::PostOrderData;
  using SyncTensorCollection = LazyGraphExecutorTypes::SyncTensorCollection;
  using SyncTensorsConfig = LazyGraphExecutorTypes::SyncTensorsConfig;
  struct Async;  // only passed on

  struct CachedComputation {
    CachedComputation(torch::lazy::ComputationPtr computation, bool is_sharded)
        : computation(std::move(computation)), is_sharded(is_sharded) {}
    // Upstream's pointer is to a derived class.
    torch::lazy::ComputationPtr computation;
    bool is_sharded;
  };
  // Only the first virtual functions are declared; the build checks their
  // order.
  struct ComputationCache {
    using TypePtr = std::shared_ptr<CachedComputation>;
    virtual TypePtr Add(torch::lazy::hash_t key, TypePtr object) = 0;
    virtual TypePtr Get(const torch::lazy::hash_t& key) = 0;
  };

  // Overrides virtual functions, but has no other that is used here.
  struct DeviceContextArena : LazyGraphExecutorTypes::DeviceContextArena {
    DeviceContextArena() = delete;  // always the upstream binary's
    static DeviceContextArena* Get();
  };

  XLAGraphExecutor() = delete;  // always the upstream binary's
  static XLAGraphExecutor* Get();
  ComputationCache* GetComputationCache();
  void ApplyEagerSync(std::vector<XLATensorPtr>& tensors);
  void SyncTensorsGraph(std::vector<XLATensorPtr>* tensors,
                        absl::Span<const std::string> devices, bool wait,
                        bool sync_ltc_data, bool warm_up_cache_only);
  void SyncLiveTensorsGraph(const torch::lazy::BackendDevice* device,
                            c10::ArrayRef<std::string> devices, bool wait);
  std::vector<XLATensorPtr> GetLiveTensors(
      const torch::lazy::BackendDevice* device);
  void WaitDeviceOps(absl::Span<const std::string> devices);
  void MarkStep(const torch::lazy::BackendDevice& device, bool reset_scope);
  std::vector<torch::lazy::BackendDataPtr> ExecuteComputationWithBarrier(
      torch::lazy::hash_t hash, const std::vector<at::IValue>& graph_inputs,
      const torch::lazy::BackendDevice& device);
  void RegisterTensor(std::shared_ptr<torch::lazy::LazyTensor::Data> data);
  torch::lazy::Value GetRngSeed(const torch::lazy::BackendDevice& device);
  void SetRngSeed(const torch::lazy::BackendDevice& device, uint64_t seed);
  uint64_t GetRunningSeed(const torch::lazy::BackendDevice& device);
  torch::lazy::BackendDataPtr GetBaseSeedData(
      const torch::lazy::BackendDevice& device);
  PostOrderData RunPostOrder(const std::vector<torch::lazy::Value>& ir_values,
                             SyncTensorCollection* collection);
  // Only returned, through the caller's memory. The declared destructor makes
  // the compiler return it there, as it does the real class.
  struct CompilationResult {
    CompilationResult(const CompilationResult&) = delete;
    ~CompilationResult();
  };
  torch::lazy::hash_t GetGraphHash(const std::vector<XLATensorPtr>& tensors);
  CompilationResult Compile(std::vector<XLATensorPtr>& tensors,
                            absl::Span<const std::string> devices,
                            const SyncTensorCollection& coll,
                            PostOrderData* po_data,
                            const std::vector<torch::lazy::Value>& ir_values,
                            const std::vector<size_t>& buffer_donor_indices);
  std::vector<size_t> GetBufferDonors(
      const std::vector<XLATensorPtr>& tensors,
      const SyncTensorCollection& coll,
      const std::vector<torch::lazy::BackendDataPtr>& parameters_data);
  std::shared_ptr<Async> SyncTensorsGraphInternal(
      std::vector<XLATensorPtr>* tensors, absl::Span<const std::string> devices,
      const SyncTensorsConfig& config, bool warm_up_cache_only);
  void ExtractIRAndPrepareXlaData_(
      std::vector<XLATensorPtr>* tensors, const SyncTensorsConfig& config,
      absl::Span<const size_t> indices,
      std::vector<torch::lazy::Value>& ir_values,
      std::vector<torch::lazy::BackendDataPtr>& tensor_data_vec);
  std::vector<torch::lazy::BackendDataPtr> SetTensorData(
      std::vector<XLATensorPtr>* tensors, const SyncTensorsConfig& config,
      absl::Span<const size_t> indices,
      const std::vector<torch::lazy::BackendDataPtr>& tensor_data_vec);
  void SetBufferDonors(LoweringContext* lowering_ctx,
                       const std::vector<size_t>& buffer_donor_indexs);
  bool UseEagerMode();  // inline in upstream; defined in init.cc
};

struct XlaHelpers {
  static int mat_mul_precision() { return s_mat_mul_precision; }
  static int s_mat_mul_precision;
};

// The data of an XLA tensor, when it has been computed, in the same memory.
DLManagedTensor* toDLPack(const at::Tensor& src);
// An XLA tensor in the memory of `src`, which is not used afterwards.
at::Tensor fromDLPack(DLManagedTensor* src);

// The device of a text such as "CPU:0" or "SPMD:0".
torch::lazy::BackendDevice ParseDeviceString(const std::string& device_spec);

// Whether programs are sharded (SPMD).
bool UseVirtualDevice(bool force_spmd);

namespace runtime {

class ComputationClient {
 public:
  ComputationClient() = delete;  // always the upstream binary's
  struct ExecuteComputationOptions {
    bool explode_tuple = true;
    bool eager_mode = false;
  };
  struct ExecuteReplicatedOptions {
    bool explode_tuple = true;
    bool eager_mode = false;
  };

  // Derives from torch's Computation and appends members.
  class Computation : public torch::lazy::Computation {
   public:
    Computation() = delete;  // always the upstream binary's
  };

  // Derives from torch's BackendData and appends members.
  class Data : public torch::lazy::BackendData {
   public:
    Data() = delete;  // always the upstream binary's
  };
  using DataPtr = std::shared_ptr<Data>;

  struct MemoryInfo {
    int64_t bytes_used;
    int64_t bytes_limit;
    int64_t peak_bytes_used;
  };

  // Data without a value. Virtual in the upstream binary, which runs
  // PjRtComputationClient's.
  DataPtr CreateDataPlaceholder(
      std::string device, xla::Shape shape,
      std::optional<xla::OpSharding> sharding = std::nullopt);
  std::vector<DataPtr> ExecuteComputation(
      const Computation& computation, absl::Span<const DataPtr> arguments,
      const std::string& device, const ExecuteComputationOptions& options);
  std::vector<DataPtr> ExecuteReplicated(
      const Computation& computation, absl::Span<const DataPtr> arguments,
      absl::Span<const std::string> devices,
      const ExecuteReplicatedOptions& options);
  std::vector<std::string> GetLocalDevices() const;
  absl::StatusOr<xla::PjRtDevice*> LookupAddressableDevice(
      int local_device_id) const;
  std::string PjRtDeviceToString(xla::PjRtDevice* device) const;
  // The address of the data on the device.
  uintptr_t UnsafeBufferPointer(DataPtr handle);
};

// Virtual in the upstream binary. Its vtable refers to these functions by their
// symbols, so a definition in the front library replaces them.
class PjRtComputationClient {
 public:
  PjRtComputationClient() = delete;  // always the upstream binary's
  ComputationClient::DataPtr CreateDataPlaceholder(
      std::string device, xla::Shape shape,
      std::optional<xla::OpSharding> sharding);
  std::vector<ComputationClient::DataPtr> ExecuteComputation(
      const ComputationClient::Computation& computation,
      absl::Span<const ComputationClient::DataPtr> arguments,
      const std::string& device,
      const ComputationClient::ExecuteComputationOptions& options);
  std::vector<ComputationClient::DataPtr> ExecuteReplicated(
      const ComputationClient::Computation& computation,
      absl::Span<const ComputationClient::DataPtr> arguments,
      absl::Span<const std::string> devices,
      const ComputationClient::ExecuteReplicatedOptions& options);

  // A std::vector<xla::Literal>; the caller provides the memory and destroys
  // it.
  struct Literals {
    ~Literals() {}
    void* begin;
    void* end;
    void* end_of_room;
  };
  Literals TransferFromDevice(
      absl::Span<const ComputationClient::DataPtr> handles);

  void WaitDeviceOps(absl::Span<const std::string> devices);

  std::optional<xla::OpSharding> GetDataSharding(
      ComputationClient::DataPtr handle);
  std::vector<std::string> GetLocalDevices() const;
  std::string GetDeviceKind(const std::string& device);
  ComputationClient::MemoryInfo GetMemoryInfo(const std::string& device);
  // Only returned, through the caller's memory, as CompilationResult is.
  struct DeviceAttributes {
    DeviceAttributes(const DeviceAttributes&) = delete;
    ~DeviceAttributes();
  };
  DeviceAttributes GetDeviceAttributes(const std::string& device);

  absl::StatusOr<xla::PjRtDevice*> LookupAddressableDevice(
      int local_device_id) const;
  std::string PjRtDeviceToString(xla::PjRtDevice* device) const;
  uintptr_t UnsafeBufferPointer(ComputationClient::DataPtr handle);

  std::shared_ptr<ComputationClient::Computation> DeserializeComputation(
      const std::string& serialized);
  torch::lazy::hash_t HashCompilationEnv();
};

inline ComputationClient::DataPtr ComputationClient::CreateDataPlaceholder(
    std::string device, xla::Shape shape,
    std::optional<xla::OpSharding> sharding) {
  return reinterpret_cast<PjRtComputationClient*>(this)->CreateDataPlaceholder(
      std::move(device), std::move(shape), std::move(sharding));
}

inline std::vector<ComputationClient::DataPtr>
ComputationClient::ExecuteComputation(
    const Computation& computation, absl::Span<const DataPtr> arguments,
    const std::string& device, const ExecuteComputationOptions& options) {
  return reinterpret_cast<PjRtComputationClient*>(this)->ExecuteComputation(
      computation, arguments, device, options);
}

inline std::vector<ComputationClient::DataPtr>
ComputationClient::ExecuteReplicated(const Computation& computation,
                                     absl::Span<const DataPtr> arguments,
                                     absl::Span<const std::string> devices,
                                     const ExecuteReplicatedOptions& options) {
  return reinterpret_cast<PjRtComputationClient*>(this)->ExecuteReplicated(
      computation, arguments, devices, options);
}

inline std::vector<std::string> ComputationClient::GetLocalDevices() const {
  return reinterpret_cast<const PjRtComputationClient*>(this)
      ->GetLocalDevices();
}

inline absl::StatusOr<xla::PjRtDevice*>
ComputationClient::LookupAddressableDevice(int local_device_id) const {
  return reinterpret_cast<const PjRtComputationClient*>(this)
      ->LookupAddressableDevice(local_device_id);
}

inline std::string ComputationClient::PjRtDeviceToString(
    xla::PjRtDevice* device) const {
  return reinterpret_cast<const PjRtComputationClient*>(this)
      ->PjRtDeviceToString(device);
}

inline uintptr_t ComputationClient::UnsafeBufferPointer(DataPtr handle) {
  return reinterpret_cast<PjRtComputationClient*>(this)->UnsafeBufferPointer(
      std::move(handle));
}

const absl::StatusOr<ComputationClient*>& GetComputationClient();
// Null while there is no client.
ComputationClient* GetComputationClientIfInitialized();

}  // namespace runtime

namespace thread {
// Runs `fn` in one of torch_xla's threads.
void Schedule(std::function<void()> fn);
}  // namespace thread

struct ShapeHelper {
  static const xla::Shape& ShapeOfXlaOp(xla::XlaOp op);
};

xla::PrimitiveType MakeXlaPrimitiveType(
    at::ScalarType scalar_type, const torch::lazy::BackendDevice* device);

// `input` itself if it has this type, else converted to it.
xla::XlaOp MaybeConvertTo(xla::XlaOp input, xla::PrimitiveType type);

namespace tensor_methods {
// The dimensions: lhs_contracting, rhs_contracting, lhs_batch, rhs_batch.
XLATensorPtr xla_dot_general(
    const XLATensorPtr& lhs, const XLATensorPtr& rhs,
    const std::vector<std::vector<int>>& dim_vectors,
    std::optional<at::ScalarType> preferred_element_type);
}  // namespace tensor_methods

namespace bridge {
// Null if `tensor` is not an XLA tensor.
XLATensorPtr TryGetXlaTensor(const at::Tensor& tensor);
XLATensorPtr GetXlaTensor(const at::Tensor& tensor);
at::Tensor AtenFromXlaTensor(XLATensorPtr xla_tensor,
                             bool skip_functionalization = false);
// The SPMD device if programs are sharded.
torch::lazy::BackendDevice GetCurrentDevice();
torch::lazy::BackendDevice AtenDeviceToXlaDevice(const c10::Device& device);
std::vector<at::Tensor> AtenFromXlaTensors(
    absl::Span<const XLATensorPtr> xla_tensors);
}  // namespace bridge

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_TORCH_XLA_H_
