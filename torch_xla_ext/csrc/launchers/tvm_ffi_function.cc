#include "torch_xla_ext/csrc/launchers/tvm_ffi_function.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "torch_xla_ext/csrc/launchers/cuda_driver.h"

namespace torch_xla_ext::tvm_ffi {
namespace {

// The functions of libtvm_ffi that this file calls.
struct Library {
  int (*ObjectDecRef)(void* object);
  void (*ErrorMoveFromRaised)(void** result);
  int (*FunctionGetGlobal)(const ByteArray* name, void** out);
  int (*EnvSetStream)(int32_t device_type, int32_t device_id, void* stream,
                      void** original);
  int (*EnvSetDLPackManagedTensorAllocator)(Allocator allocator, int global,
                                            Allocator* original);
};

std::mutex& LibraryMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

const Library* loaded_library = nullptr;  // never unloaded

const Library& GetLibrary() {
  const std::lock_guard<std::mutex> lock(LibraryMutex());
  if (loaded_library == nullptr) {
    throw std::runtime_error("libtvm_ffi is not loaded");
  }
  return *loaded_library;
}

template <typename Function>
void LookUp(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    throw std::runtime_error(std::string("libtvm_ffi has no ") + name +
                             ": it is not apache-tvm-ffi 0.1");
  }
}

// The error that the last call of this thread raised.
std::string RaisedError() {
  void* raised = nullptr;
  GetLibrary().ErrorMoveFromRaised(&raised);
  if (raised == nullptr) return "it failed without an error";
  const Reference owner(static_cast<Object*>(raised));
  const auto* error = reinterpret_cast<const Error*>(raised);
  return std::string(error->kind.data, error->kind.size) + ": " +
         std::string(error->message.data, error->message.size);
}

Reference GlobalFunction(const std::string& name) {
  const ByteArray bytes = {name.data(), name.size()};
  void* function = nullptr;
  if (GetLibrary().FunctionGetGlobal(&bytes, &function) != 0) {
    throw std::runtime_error(RaisedError());
  }
  if (function == nullptr) {
    throw std::runtime_error("libtvm_ffi has no function " + name);
  }
  return Reference(static_cast<Object*>(function));
}

Any CString(const char* text) {
  Any any = {kCString, 0, {}};
  any.text = text;
  return any;
}

// A row-major tensor's shape, followed by its strides.
std::vector<int64_t> ShapeAndStrides(const int64_t* shape, size_t rank) {
  std::vector<int64_t> sizes(2 * rank);
  std::copy_n(shape, rank, sizes.begin());
  int64_t count = 1;
  for (size_t i = rank; i-- > 0;) {
    sizes[rank + i] = count;
    count *= sizes[i];
  }
  return sizes;
}

struct OwnTensor {
  TensorObject object;
  std::vector<int64_t> sizes;
};

// Memory that a function requests from the environment: a DLPack tensor with
// its sizes and data.
struct Allocation {
  ManagedTensor managed;
  std::vector<int64_t> sizes;
  void* stream;
};

// The stream of the innermost Environment of this thread, on which GPU memory
// is allocated and freed.
thread_local void* allocation_stream = nullptr;

void Free(Device device, void* data, void* stream) {
  if (device.type == kCpu) {
    std::free(data);
  } else if (data != nullptr) {
    GetCudaDriver().MemFreeAsync(reinterpret_cast<CUdeviceptr>(data),
                                 static_cast<CUstream>(stream));
  }
}

void* AllocateBytes(Device device, size_t size, void* stream) {
  if (device.type == kCpu) {
    void* data = std::aligned_alloc(64, std::max<size_t>(size + 63, 64) & ~63);
    if (data == nullptr) throw std::bad_alloc();
    return data;
  }
  CUdeviceptr data = 0;
  if (size != 0) {
    const CudaDriver& driver = GetCudaDriver();
    driver.Check(
        driver.MemAllocAsync(&data, size, static_cast<CUstream>(stream)),
        "cuMemAllocAsync");
  }
  return reinterpret_cast<void*>(data);
}

std::unique_ptr<Allocation> Allocate(const Tensor& prototype) {
  if (prototype.device.type != kCpu && prototype.device.type != kCuda) {
    throw std::runtime_error("only memory of the CPU and of GPUs is allocated");
  }
  auto made = std::make_unique<Allocation>();
  const size_t rank = static_cast<size_t>(prototype.rank);
  made->sizes = ShapeAndStrides(prototype.shape, rank);
  int64_t count = 1;
  for (size_t i = 0; i < rank; ++i) count *= made->sizes[i];
  made->stream = allocation_stream;
  made->managed.major_version = 1;
  made->managed.minor_version = 0;
  made->managed.context = made.get();
  made->managed.flags = 0;
  made->managed.tensor = prototype;
  made->managed.tensor.byte_offset = 0;
  made->managed.tensor.shape = made->sizes.data();
  made->managed.tensor.strides = made->sizes.data() + rank;
  const DataType dtype = prototype.dtype;
  made->managed.tensor.data = AllocateBytes(
      prototype.device,
      (static_cast<size_t>(count) * dtype.bits * dtype.lanes + 7) / 8,
      made->stream);
  made->managed.deleter = [](ManagedTensor* self) {
    auto* allocation = static_cast<Allocation*>(self->context);
    Free(self->tensor.device, self->tensor.data, allocation->stream);
    delete allocation;
  };
  return made;
}

int AllocateManaged(Tensor* prototype, ManagedTensor** out, void* error_context,
                    void (*set_error)(void*, const char*, const char*)) {
  try {
    *out = &Allocate(*prototype).release()->managed;
    return 0;
  } catch (const std::exception& error) {
    set_error(error_context, "MemoryError", error.what());
    return -1;
  }
}

}  // namespace

void LoadLibrary(const std::string& path) {
  const std::lock_guard<std::mutex> lock(LibraryMutex());
  if (loaded_library != nullptr) return;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  Library library;
  LookUp(handle, "TVMFFIObjectDecRef", &library.ObjectDecRef);
  LookUp(handle, "TVMFFIErrorMoveFromRaised", &library.ErrorMoveFromRaised);
  LookUp(handle, "TVMFFIFunctionGetGlobal", &library.FunctionGetGlobal);
  LookUp(handle, "TVMFFIEnvSetStream", &library.EnvSetStream);
  LookUp(handle, "TVMFFIEnvSetDLPackManagedTensorAllocator",
         &library.EnvSetDLPackManagedTensorAllocator);
  loaded_library = new Library(library);
}

Reference& Reference::operator=(Reference&& other) noexcept {
  std::swap(object_, other.object_);
  return *this;
}

Reference::~Reference() {
  if (object_ != nullptr) GetLibrary().ObjectDecRef(object_);
}

Object* Reference::Release() { return std::exchange(object_, nullptr); }

Reference FunctionOfLibrary(const std::string& library,
                            const std::string& symbol) {
  const Reference load = GlobalFunction("ffi.ModuleLoadFromFile");
  const Reference get = GlobalFunction("ffi.ModuleGetFunction");
  // The function keeps the module alive, and the module keeps the library.
  const Reference module = Call(load.get(), {CString(library.c_str())});
  Any self = {module.get()->type_index, 0, {}};
  self.object = module.get();
  Any query_imports = {kBoolValue, 0, {}};
  query_imports.integer = 1;
  return Call(get.get(), {self, CString(symbol.c_str()), query_imports});
}

Reference Call(Object* function, const std::vector<Any>& args) {
  Any result = {kNoneValue, 0, {}};
  const auto call = reinterpret_cast<Function*>(function)->safe_call;
  if (call(function, args.data(), static_cast<int32_t>(args.size()), &result) !=
      0) {
    throw std::runtime_error(RaisedError());
  }
  return Reference(result.type_index < kFirstObject ? nullptr : result.object);
}

Reference ArrayOf(const std::vector<Any>& elements) {
  static Object* const make = GlobalFunction("ffi.Array").Release();
  return Call(make, elements);
}

Reference TensorOn(void* data, Device device, DataType dtype,
                   const std::vector<int64_t>& shape) {
  auto* own = new OwnTensor;
  own->sizes = ShapeAndStrides(shape.data(), shape.size());
  own->object.header = {kOneReference, kTensorObject, 0,
                        [](void* self, int flags) {
                          if (flags & kFreeMemory)
                            delete static_cast<OwnTensor*>(self);
                        }};
  own->object.tensor = {data,
                        device,
                        static_cast<int32_t>(shape.size()),
                        dtype,
                        own->sizes.data(),
                        own->sizes.data() + shape.size(),
                        0};
  return Reference(&own->object.header);
}

Environment::Environment(Device device, void* stream) : device_(device) {
  const Library& library = GetLibrary();
  if (device.type == kCuda) {
    library.EnvSetStream(device.type, device.id, stream, &stream_before_);
  }
  library.EnvSetDLPackManagedTensorAllocator(&AllocateManaged, 0,
                                             &allocator_before_);
  allocation_stream = stream;
}

Environment::~Environment() {
  const Library& library = GetLibrary();
  if (device_.type == kCuda) {
    library.EnvSetStream(device_.type, device_.id, stream_before_, nullptr);
  }
  library.EnvSetDLPackManagedTensorAllocator(allocator_before_, 0, nullptr);
}

}  // namespace torch_xla_ext::tvm_ffi
