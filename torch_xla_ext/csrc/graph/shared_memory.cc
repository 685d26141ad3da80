#include "torch_xla_ext/csrc/graph/shared_memory.h"

#include <ATen/ATen.h>
#include <ATen/DLConvertor.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "torch_xla_ext/csrc/graph/cuda_streams.h"

namespace torch_xla_ext::graph {
namespace {

// The alignment of buffers that XLA's programs require. XLA:GPU checks it when
// a program runs, XLA:CPU when a buffer is made (cpu::MinAlign()).
constexpr uintptr_t kCudaAlignment = 16;
constexpr uintptr_t kCpuAlignment = 64;

// Caches XLA tensors over PyTorch's memory, by address. Making a view takes
// longer than all other work of a call for a tensor, and PyTorch's allocator
// returns the same addresses again and again. A view owns nothing, so it is
// harmless to keep one after its memory is reused.
class Views {
 public:
  at::Tensor Get(const at::Tensor& tensor) {
    std::vector<View>& views = views_[tensor.data_ptr()];
    for (const View& view : views) {
      if (view.dtype == tensor.scalar_type() && view.sizes == tensor.sizes()) {
        return view.tensor;
      }
    }
    at::Tensor made = Make(tensor);
    if (++size_ > kMaxSize) {
      Clear();
      size_ = 1;
      views_[tensor.data_ptr()].push_back(
          {tensor.scalar_type(), tensor.sizes().vec(), made});
    } else {
      views.push_back({tensor.scalar_type(), tensor.sizes().vec(), made});
    }
    return made;
  }

  std::vector<at::Tensor> Get(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> views;
    views.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) views.push_back(Get(tensor));
    return views;
  }

  // Call this when the views of this memory have become invalid.
  void Remove(const void* address) {
    const auto found = views_.find(address);
    if (found == views_.end()) return;
    size_ -= found->second.size();
    views_.erase(found);
  }

  void Clear() {
    views_.clear();
    size_ = 0;
  }

 private:
  // A bound for programs whose tensors have new addresses in each call. A view
  // takes a few KB.
  static constexpr size_t kMaxSize = 16384;

  struct View {
    at::ScalarType dtype;
    std::vector<int64_t> sizes;
    at::Tensor tensor;
  };

  // The client's buffer over the memory. Deleted with the view.
  struct Description {
    std::vector<int64_t> sizes;
    DLManagedTensor tensor;
  };

  static at::Tensor Make(const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    if (tensor.numel() == 0) {
      return at::empty(tensor.sizes(),
                       tensor.options()
                           .device(c10::Device(c10::DeviceType::XLA))
                           .requires_grad(false));
    }
    auto* const made = new Description{tensor.sizes().vec(), {}};
    made->tensor.dl_tensor.data = tensor.data_ptr();
    made->tensor.dl_tensor.device = {
        tensor.is_cuda() ? kDLCUDA : kDLCPU,
        tensor.is_cuda() ? tensor.get_device() : 0};
    made->tensor.dl_tensor.ndim = static_cast<int32_t>(tensor.dim());
    made->tensor.dl_tensor.dtype = at::getDLDataType(tensor);
    made->tensor.dl_tensor.shape = made->sizes.data();
    made->tensor.manager_ctx = made;
    made->tensor.deleter = [](DLManagedTensor* self) {
      delete static_cast<Description*>(self->manager_ctx);
    };
    return torch_xla::fromDLPack(&made->tensor);
  }

  std::unordered_map<const void*, std::vector<View>> views_;
  size_t size_ = 0;
};

// Held while a program is started on shared memory, because views are in use
// then.
std::mutex& ViewsMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

// Never destroyed: at exit, XLA's client may be gone before.
Views& GetViews() {
  static Views& views = *new Views;
  return views;
}

torch_xla::runtime::ComputationClient* Client() {
  return torch_xla::runtime::GetComputationClientIfInitialized();
}

// torch_xla's name for one of PyTorch's devices.
std::string XlaNameOf(c10::Device device) {
  const auto found = Client()->LookupAddressableDevice(
      device.has_index() ? device.index() : 0);
  return found.ok() ? Client()->PjRtDeviceToString(*found)
                    : "not one of XLA's devices";
}

std::string CurrentXlaName() {
  return torch_xla::bridge::GetCurrentDevice().toString();
}

// Throws std::invalid_argument unless `device` is torch_xla's current device.
void CheckDevice(c10::Device device) {
  const std::string name = XlaNameOf(device), current = CurrentXlaName();
  if (name == current) return;
  throw std::invalid_argument(
      "a compiled function received a tensor on " + device.str() +
      ", which is " + name + ", but torch_xla's current device is " + current +
      ": move the tensors to the GPU of torch_xla.device()");
}

torch::lazy::BackendDataPtr DataOfXla(const at::Tensor& tensor) {
  return DataOf(torch_xla::bridge::TryGetXlaTensor(tensor));
}

void* AddressOf(const at::Tensor& tensor) {
  return reinterpret_cast<void*>(Client()->UnsafeBufferPointer(
      std::static_pointer_cast<torch_xla::runtime::ComputationClient::Data>(
          DataOfXla(tensor))));
}

// The data of results whose tensors are gone, and PyTorch's stream that used
// them.
class Unused {
 public:
  // Deletes the data. XLA may give its memory to a later program at once, so
  // that program must wait for the work that is in the stream.
  void Delete(torch::lazy::BackendDataPtr data, uintptr_t stream) {
    try {
      XlaWaitsFor(stream);
    } catch (const std::runtime_error&) {
      // A CUDA graph is being captured from the stream, or CUDA has shut down.
      const std::lock_guard<std::mutex> lock(mutex_);
      kept_.emplace_back(std::move(data), stream);
    }
  }

  // Retries to delete data whose deletion failed.
  void DeleteKept() {
    std::vector<std::pair<torch::lazy::BackendDataPtr, uintptr_t>> kept;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      kept.swap(kept_);
    }
    for (auto& [data, stream] : kept) Delete(std::move(data), stream);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<torch::lazy::BackendDataPtr, uintptr_t>> kept_;
};

// Never destroyed: tensors may be freed at exit.
Unused& GetUnused() {
  static Unused& unused = *new Unused;
  return unused;
}

// A tensor over a result's memory.
at::Tensor CudaTensorOf(const at::Tensor& result, at::ScalarType dtype,
                        c10::IntArrayRef sizes, c10::Device device,
                        uintptr_t stream) {
  auto deleter = [data = DataOfXla(result), stream](void*) mutable {
    GetUnused().Delete(std::move(data), stream);
  };
  return at::from_blob(AddressOf(result), sizes, std::move(deleter),
                       at::TensorOptions(dtype).device(device), device);
}

// Waits for the program, and throws its error. DLPack has no floating-point
// numbers of 8 bits: these are copied.
at::Tensor CpuTensorOf(const at::Tensor& result) {
  if (at::isFloat8Type(result.scalar_type())) return result.cpu();
  return at::fromDLPack(torch_xla::toDLPack(result));
}

// Marks one of each two overlapping arguments if either of them is written to.
void MarkOverlapping(const std::vector<at::Tensor>& arguments,
                     const std::vector<size_t>& written,
                     std::vector<bool>* marked) {
  if (written.empty()) return;
  struct Range {
    uintptr_t begin, end;
    size_t index;
    bool is_written;
  };
  std::vector<bool> is_written(arguments.size());
  for (size_t i : written) is_written[i] = true;
  std::vector<Range> ranges;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor& tensor = arguments[i];
    if (tensor.numel() == 0) continue;
    size_t size = 1;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      size += tensor.stride(d) * (tensor.size(d) - 1);
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    ranges.push_back(
        {begin, begin + size * tensor.element_size(), i, is_written[i]});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uintptr_t end = 0, end_of_written = 0;  // of the preceding ranges
  for (const Range& range : ranges) {
    if (range.begin < (range.is_written ? end : end_of_written)) {
      (*marked)[range.index] = true;
    }
    end = std::max(end, range.end);
    if (range.is_written) end_of_written = std::max(end_of_written, range.end);
  }
}

}  // namespace

bool SharesMemory(c10::Device device) {
  const std::string current = CurrentXlaName();
  const std::string platform = current.substr(0, current.find(':'));
  if (device.is_cpu()) {
    return platform == "CPU" && XlaNameOf(device) == current;
  }
  // With this setting of XLA:GPU, a started program may not have reached the
  // device yet, so an event cannot be recorded after it.
  const char* const starts_later =
      std::getenv("PJRT_GPU_ENABLE_ASYNC_DISPATCH");
  return device.is_cuda() && platform == "CUDA" &&
         (starts_later == nullptr || std::string_view(starts_later) != "1");
}

bool IsRowMajor(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         address % (tensor.is_cuda() ? kCudaAlignment : kCpuAlignment) == 0;
}

std::vector<at::Tensor> ViewsOf(const std::vector<at::Tensor>& tensors) {
  const std::lock_guard<std::mutex> lock(ViewsMutex());
  return GetViews().Get(tensors);
}

ProgramOnSharedMemory::ProgramOnSharedMemory(std::shared_ptr<Program> program,
                                             c10::Device device)
    : program_(std::move(program)), device_(device) {
  CheckDevice(device_);
  const torch::lazy::BackendDevice xla_device =
      torch_xla::bridge::GetCurrentDevice();
  size_t index = 0;
  for (const auto& output : program_->description().outputs) {
    const xla::Shape expected = xla::ShapeUtil::MakeShape(
        torch_xla::MakeXlaPrimitiveType(output.dtype, &xla_device),
        output.sizes);
    if (expected.ToString() != output.shape.ToString()) {
      throw std::invalid_argument(
          program_->description().name + ": its new value " +
          std::to_string(index) + " is " + output.shape.ToString() +
          " in XLA, but " + expected.ToString() + " in PyTorch");
    }
    ++index;
  }
}

std::vector<size_t> ProgramOnSharedMemory::ArgumentsToCopy(
    const std::vector<at::Tensor>& arguments) const {
  program_->CheckCount(arguments);
  std::vector<bool> copied(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    copied[i] = arguments[i].device() != device_ || !IsRowMajor(arguments[i]);
  }
  MarkOverlapping(arguments, program_->WrittenArguments(), &copied);
  std::vector<size_t> indices;
  for (size_t i = 0; i < copied.size(); ++i) {
    if (copied[i]) indices.push_back(i);
  }
  return indices;
}

std::vector<at::Tensor> ProgramOnSharedMemory::Run(
    const std::vector<at::Tensor>& arguments, uintptr_t stream) {
  program_->CheckCount(arguments);
  const at::NoGradGuard no_grad;
  const auto& outputs = program_->description().outputs;
  const bool on_cuda = device_.is_cuda();
  const std::lock_guard<std::mutex> lock(ViewsMutex());
  std::vector<at::Tensor> tensors;
  tensors.reserve(outputs.size());
  try {
    const std::vector<at::Tensor> views = GetViews().Get(arguments);
    if (on_cuda) {
      XlaWaitsFor(stream);
      GetUnused().DeleteKept();
    }
    const std::vector<at::Tensor> results = program_->RunHere(views);
    if (on_cuda) WaitsForXla(stream);
    const auto tensor_of = [&](const at::Tensor& result, at::ScalarType dtype,
                               c10::IntArrayRef sizes) {
      return on_cuda ? CudaTensorOf(result, dtype, sizes, device_, stream)
                     : CpuTensorOf(result);
    };
    for (size_t k = 0; k < results.size(); ++k) {
      tensors.push_back(
          tensor_of(results[k], outputs[k].dtype, outputs[k].sizes));
    }
    for (size_t i : program_->WrittenArguments()) {
      const at::Tensor& argument = arguments[i];
      if (argument.numel() == 0 || AddressOf(views[i]) == argument.data_ptr()) {
        continue;
      }
      // XLA:CPU does not write into memory that it has not allocated.
      GetViews().Remove(argument.data_ptr());
      argument.copy_(
          tensor_of(views[i], argument.scalar_type(), argument.sizes()));
    }
  } catch (...) {
    GetViews().Clear();  // some may have lost their buffers to the program
    throw;
  }
  return tensors;
}

}  // namespace torch_xla_ext::graph
