// A step that was traced and compiled once, as it is run again.
#ifndef TORCH_XLA_EXT_CSRC_CAPTURE_PROGRAM_H_
#define TORCH_XLA_EXT_CSRC_CAPTURE_PROGRAM_H_

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/lazy/core/hash.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "torch_xla_ext/csrc/capture/storage.h"

namespace torch_xla_ext::capture {

// Where the value of a parameter comes from in each run.
struct Source {
  enum Kind : int {
    kArgument = 0,  // arguments[index]
    kState = 1,     // state[index], a tensor that the step found by itself
    kGradient = 2,  // state[index].grad
    kConstant = 3,  // constants[index]
    kSeed = 4,      // of the random number generator
  };
  Kind kind;
  size_t index;
};

class Program {
 public:
  struct Description {
    torch::lazy::hash_t hash;
    std::vector<Source> parameters;
    std::vector<std::string> names;  // of the parameters, for errors
    std::vector<at::Tensor> state;   // held weakly
    std::vector<at::Tensor> constants;
    // The parameters whose new values are the program's first results, and
    // whose buffers are donated.
    std::vector<size_t> written;
    std::vector<at::ScalarType> output_dtypes;  // of the results after those
    // For each argument the number in `state` of a tensor with the same
    // storage, or -1.
    std::vector<int64_t> argument_state;
  };

  explicit Program(Description description);

  // Whether the state is what it was when the step was captured, but for its
  // values: every tensor alive, of the same shape, and sharing storages with
  // the same others.
  bool Matches(const std::vector<at::Tensor>& arguments);

  // Starts the program, without waiting for its end, and returns the results
  // that follow those of the written parameters.
  // Throws std::runtime_error for the failure of an earlier program, too.
  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& arguments);

 private:
  struct StateTensor {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    bool requires_grad, has_grad;
    bool is_view, has_new_metadata;  // t_() and the like
    size_t group;  // the first of the state with the same storage
    const Storage* last_storage = nullptr;
  };

  at::Tensor Find(const Source& source,
                  const std::vector<at::Tensor>& arguments) const;
  bool StorageGroupsMatch();
  // Throws std::runtime_error with the name of a parameter that has no value.
  void CheckValues(const std::vector<torch_xla::XLATensorPtr>& bases) const;

  Description description_;
  std::vector<StateTensor> state_;
  std::unordered_map<const Storage*, size_t> state_storages_;
  // Of the last run. A buffer's destructor can wait for the program that it was
  // donated to.
  std::vector<torch::lazy::BackendDataPtr> donated_;
  torch::lazy::BackendDevice device_;
  bool uses_seed_ = false;
};

}  // namespace torch_xla_ext::capture

#endif  // TORCH_XLA_EXT_CSRC_CAPTURE_PROGRAM_H_
