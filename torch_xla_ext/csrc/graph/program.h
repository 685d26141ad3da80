// A program that was traced and compiled once, and is run many times: a
// captured step, or a graph of torch.compile.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_PROGRAM_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_PROGRAM_H_

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/lazy/core/hash.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/graph/launch.h"
#include "torch_xla_ext/csrc/graph/storage.h"

namespace torch_xla_ext::graph {

// The source of a parameter's value in each run.
struct Source {
  enum Kind : int {
    kArgument = 0,  // arguments[index]
    kState = 1,     // state[index], a tensor that the step found by itself
    kGradient = 2,  // state[index].grad
    kConstant = 3,  // constants[index]
    kSeed = 4,      // of the random number generator
    // arguments[index], with its own values. For the other kinds, the parameter
    // has the values of the whole storage, and the program makes the views.
    kOwnValues = 5,
  };
  Kind kind;
  size_t index;
};

class Program {
 public:
  struct Description {
    torch::lazy::hash_t hash;
    std::string name;  // for errors
    std::vector<Source> parameters;
    std::vector<std::string> names;  // of the parameters, for errors
    std::vector<at::Tensor> state;   // held weakly
    std::vector<at::Tensor> constants;
    // The parameters whose new values are the program's first results, and
    // whose buffers are donated.
    std::vector<size_t> written;
    struct Output {
      at::ScalarType dtype;
      std::vector<int64_t> sizes;
      xla::Shape shape;
    };
    std::vector<Output> outputs;  // the results after those
    // For each argument, the index in `state` of a tensor with the same
    // storage, or -1.
    std::vector<int64_t> argument_state;
    // Arguments and tensors of the state whose .grad the step replaces without
    // reading it. It becomes undefined before a run, so that the new values can
    // have its memory.
    std::vector<Source> replaced_gradients;
    bool ends_step = false;  // as torch_xla.sync() does
  };

  // Another thread may still compile the program.
  explicit Program(Description description);

  // Has to be called before the first run if the program was not compiled when
  // this object was made.
  void FindComputation();

  const Description& description() const { return description_; }

  // The arguments that the program writes to, in the order of `written`.
  std::vector<size_t> WrittenArguments() const;

  // Throws std::invalid_argument if the number of arguments is wrong.
  void CheckCount(const std::vector<at::Tensor>& arguments) const;

  // The arguments of which a run needs copies, because it writes to the buffer
  // of an argument that has its own values (HasOwnValues), or the memory of
  // another argument. If the program writes to such an argument, the caller
  // must copy the copy back.
  std::vector<size_t> ArgumentsToCopy(
      const std::vector<at::Tensor>& arguments) const;

  // Whether the state, apart from its values, is the same as when the step was
  // captured: every tensor is alive, has the same shape, and shares its storage
  // with the same tensors.
  bool Matches(const std::vector<at::Tensor>& arguments);

  // Records the current shardings of the state's tensors as the program's.
  void CacheShardings();

  // Starts the program without waiting for its end, and returns the results
  // that follow those of the written parameters. Throws std::runtime_error if
  // an earlier program failed, and as CheckCount does.
  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& arguments) {
    return Run(arguments, &graph::Start);
  }

  // The same, if Matches() is true, and no tensor of the state has got another
  // sharding since CacheShardings; returns nothing if that is not certain.
  // Looks at the state's tensors with the GIL, and releases it then. With
  // `here`, runs the program as RunHere does.
  std::optional<std::vector<at::Tensor>> RunIfMatches(
      const std::vector<at::Tensor>& arguments, bool here);

  // Like Run, if ArgumentsToCopy is empty; otherwise returns nothing.
  std::optional<std::vector<at::Tensor>> RunUnlessCopied(
      const std::vector<at::Tensor>& arguments);

  // Like Run, but starts the program in this thread, and throws
  // std::runtime_error also if that fails. The device has been given the
  // program's work when it returns.
  std::vector<at::Tensor> RunHere(const std::vector<at::Tensor>& arguments) {
    return Run(arguments, &graph::StartHere);
  }

 private:
  using StartFunction = void (*)(LaunchTicket ticket,
                                 std::shared_ptr<Launch> launch);

  struct StateTensor {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    bool requires_grad, has_grad;
    bool is_view, has_new_metadata;  // metadata changed in place, as by t_()
    size_t group;  // the state's first tensor with the same storage
    const Storage* last_storage = nullptr;
    // The objects that the last call found. They may have been destroyed.
    const void *last_base = nullptr, *last_tensor = nullptr,
               *last_data = nullptr;
    // The first parameter with the value of the tensor's storage.
    std::optional<size_t> parameter;
    std::shared_ptr<torch_xla::XLATensor::ShardingSpec> sharding;
  };

  // The data of a parameter.
  struct Input {
    Storage* storage = nullptr;  // if the program may write to it
    // Keeps `storage` alive. Undefined for the seed and for tensors of the
    // state.
    at::Tensor tensor;
    torch_xla::XLATensorPtr base;
    // The data of a parameter that is the seed or a constant (ConstantOf).
    torch::lazy::BackendDataPtr data;
    bool has_data = false;  // HasDataOf
  };

  // A tensor of the state in a call, and what FindState found in it.
  struct Found {
    at::Tensor tensor;
    Storage* storage = nullptr;
    torch_xla::XLATensorPtr base;
    bool has_data = false;  // HasDataOf
  };

  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& arguments,
                              StartFunction start);
  std::vector<at::Tensor> Run(const std::vector<Input>& inputs,
                              StartFunction start);
  // Below, `state` has the tensors of state_. FindState returns whether the
  // state matches (see Matches), and if so sets `state`.
  bool FindState(const std::vector<at::Tensor>& arguments,
                 std::vector<Found>* state);
  // Prefetches the objects that FindState reads for the tensor, assuming that
  // they are those of the last call. Each object is reached through the
  // previous one, and the last program has displaced them from the processor's
  // caches.
  static void Prefetch(const StateTensor& expected);
  // Whether the tensor has the same data as after the last run, and so the same
  // shape.
  bool HasKnownBase(const StateTensor& expected, const Found& found) const;
  at::Tensor Find(const Source& source,
                  const std::vector<at::Tensor>& arguments,
                  const std::vector<Found>& state) const;
  void ReleaseGradients(const std::vector<at::Tensor>& arguments,
                        const std::vector<Found>& state) const;
  bool StorageGroupsMatch();
  // Whether there is nothing to compute.
  bool IsEmpty() const {
    return description_.written.empty() && description_.outputs.empty();
  }
  // The result is valid as long as both exist.
  std::vector<Input> Gather(const std::vector<at::Tensor>& arguments,
                            const std::vector<Found>& state);
  // The data of a tensor that is still to be computed, and all of whose values
  // are one number, like a backward pass's first gradient. Null for other
  // tensors. It is computed once, so that a run need not wait for it.
  torch::lazy::BackendDataPtr ConstantOf(size_t parameter,
                                         const torch_xla::XLATensorPtr& tensor);
  // Whether each parameter of the state has the data that it had after the last
  // run, or the sharding that CacheShardings has seen.
  bool HasCachedShardings(const std::vector<Input>& inputs) const;
  // Makes the inputs ready and returns a launch ticket. Copies the data of
  // written parameters if it is shared, so that it can be donated. With
  // may_queue, values that earlier programs have yet to compute count as ready.
  // Throws std::runtime_error with the name of a parameter without a value.
  LaunchTicket Prepare(const std::vector<Input>& inputs, bool may_queue);
  // Whether Prepare need neither copy nor wait for earlier programs.
  bool IsReady(const std::vector<Input>& inputs, const LaunchTicket& ticket);
  void CheckHaveValues(const std::vector<Input>& inputs);
  // Whether the parameter has the data that it had after the last run.
  bool HasKnownData(size_t parameter,
                    const torch_xla::XLATensorPtr& base) const;
  // Returns data without a value for the result with this number.
  torch::lazy::BackendDataPtr MakeResult(size_t number) const;
  // The same for the new value of written parameter `number`. Reuses data from
  // `free` if possible.
  torch::lazy::BackendDataPtr TakeWritten(size_t number,
                                          std::vector<Donated>* free) const;
  // These two return the results that follow those of the written parameters.
  std::vector<torch::lazy::BackendDataPtr> Start(
      LaunchTicket ticket, const std::vector<Input>& inputs,
      StartFunction start);
  // The first run of a sharded program, whose results report their shardings.
  std::vector<torch::lazy::BackendDataPtr> StartSharded(
      const std::vector<Input>& inputs);

  Description description_;
  std::vector<StateTensor> state_;
  std::unordered_map<const Storage*, size_t> state_storages_;
  torch::lazy::BackendDevice device_;
  std::string device_name_;
  torch_xla::XLAGraphExecutor::ComputationCache::TypePtr computation_;
  std::vector<bool> is_written_;  // of the parameters
  // The shapes and shardings of all results, set by the first run. Shardings
  // are null if the program is not sharded.
  std::vector<xla::Shape> result_shapes_;
  std::vector<std::shared_ptr<torch_xla::XLATensor::ShardingSpec>>
      result_shardings_;
  // The parameters' data after the last run. It has values unless NumLosses()
  // has changed. For a written parameter, only data that a run has made is
  // stored.
  std::vector<std::weak_ptr<torch::lazy::BackendData>> data_;
  uint64_t num_losses_ = 0;
  // Caches ConstantOf by parameter, with the hash of the tensor's operations.
  std::unordered_map<
      size_t, std::pair<torch::lazy::hash_t, torch::lazy::BackendDataPtr>>
      constants_;
  // Their data before each of the last runs, the oldest first: a buffer's
  // destructor may wait for the program that it was donated to.
  std::deque<std::shared_ptr<std::vector<Donated>>> donated_;
  torch::lazy::BackendDataPtr no_value_;
  // Held by the thread that prepares and starts a run. A pointer, because
  // programs are moved.
  std::unique_ptr<std::mutex> run_mutex_ = std::make_unique<std::mutex>();
};

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_PROGRAM_H_
