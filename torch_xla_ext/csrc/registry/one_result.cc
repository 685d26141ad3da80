#include "torch_xla_ext/csrc/registry/one_result.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "torch_xla_ext/csrc/registry/registration.h"
#include "torch_xla_ext/csrc/registry/static_kernels.h"
#include "torch_xla_ext/csrc/registry/text.h"
#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

// The suffix that NameWithOneResult adds to a name. Users' names cannot have
// its '#'.
constexpr char kOneResultSuffix[] = "#one-result";

// Memory for an array of one result. Pages after the first one are used only if
// a function writes to them.
class Room {
 public:
  Room()
      : memory_(mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() {
    if (is_there()) munmap(memory_, kSize);
  }

  bool is_there() const { return memory_ != MAP_FAILED; }

  // Returns the array. Its one element is followed by bytes that a result is
  // unlikely to contain.
  void** Array(void* result) {
    std::memset(memory_, kByte, kChecked);
    std::memcpy(memory_, &result, sizeof(result));
    return static_cast<void**>(memory_);
  }

  bool IsAsBefore(void* result) const {
    const auto* bytes = static_cast<const unsigned char*>(memory_);
    return std::memcmp(memory_, &result, sizeof(result)) == 0 &&
           std::all_of(bytes + sizeof(result), bytes + kChecked,
                       [](unsigned char byte) { return byte == kByte; });
  }

  void Clear() { madvise(memory_, kSize, MADV_DONTNEED); }

 private:
  static constexpr size_t kSize = size_t{1} << 34;
  static constexpr size_t kChecked = 128;
  static constexpr unsigned char kByte = 0xA5;

  void* memory_;
};

// The functions that XLA calls, one for each target, because XLA passes only
// the call's own arguments.
constexpr size_t kMostGuarded = 1024;

struct GuardedTarget {
  HostFunction function = nullptr;
  std::string name;
};

struct GuardedTargets {
  std::mutex mutex;
  std::array<GuardedTarget, kMostGuarded> targets;
  std::map<std::string, size_t> by_name;
};

GuardedTargets& GetGuardedTargets() {
  static auto* const targets =
      new GuardedTargets;  // XLA may call it until the process ends
  return *targets;
}

template <size_t kIndex>
void CallGuarded(void* out, const void** in, const char* opaque,
                 size_t opaque_len, XlaCustomCallStatus* status) {
  // The target was written before XLA received the function's address.
  const GuardedTarget& target = GetGuardedTargets().targets[kIndex];
  CallWithOneResult(target.function, target.name, *static_cast<void**>(out), in,
                    opaque, opaque_len, status);
}

template <size_t... kIndices>
constexpr std::array<HostFunction, kMostGuarded> AllCalls(
    std::index_sequence<kIndices...>) {
  return {&CallGuarded<kIndices>...};
}

std::string PlainName(const std::string& hlo_name) {
  return hlo_name.substr(0, hlo_name.find('#'));
}

// Whether the functions of kernels that are linked into the wheel are in the
// same library.
bool IsOfThisLibrary(const Dl_info& info) {
  Dl_info own;
  return dladdr(reinterpret_cast<const void*>(&StaticKernelSchemas), &own) !=
             0 &&
         own.dli_fbase == info.dli_fbase;
}

bool IsMadeWithKernelH(const std::string& name, const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return false;
  // A library may have registered its own function by a static kernel's name.
  if (StaticKernelSchemas().count(name) != 0 && IsOfThisLibrary(info)) {
    return true;
  }
  void* const library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const bool has_schema =
      dlsym(library, (name + "Schema").c_str()) != nullptr &&
      dlsym(library, (name + "Host").c_str()) == function;
  dlclose(library);
  return has_schema;
}

}  // namespace

void CallWithOneResult(HostFunction function, const std::string& target,
                       void* result, const void** in, const char* opaque,
                       size_t opaque_len, XlaCustomCallStatus* status) {
  thread_local Room room;
  if (!room.is_there()) {
    function(&result, in, opaque, opaque_len, status);
    return;
  }
  // The function itself may call such functions.
  thread_local int depth = 0;
  if (depth > 0) {
    function(&result, in, opaque, opaque_len, status);
    return;
  }
  ++depth;
  function(room.Array(result), in, opaque, opaque_len, status);
  --depth;
  if (room.IsAsBefore(result)) return;
  room.Clear();
  const std::string text =
      "custom call " + Quoted(target) +
      ": the function wrote to `out`, which is the array of the results' "
      "buffers, not the buffer of its one result; write to "
      "static_cast<void**>(out)[0], or call it by _xla_custom_call, whose one "
      "result is no tuple (docs/launchers.md)";
  XlaCustomCallStatusSetFailure(status, text.data(), text.size());
}

std::string NameWithOneResult(const std::string& hlo_name) {
  static constexpr std::array<HostFunction, kMostGuarded> kCalls =
      AllCalls(std::make_index_sequence<kMostGuarded>());
  auto* const registry = xla::CustomCallTargetRegistry::Global();
  void* const function = registry->Lookup(hlo_name, kHostPlatform);
  const std::string name = PlainName(hlo_name);
  if (function == nullptr) return hlo_name;
  GuardedTargets& targets = GetGuardedTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  const auto found = targets.by_name.find(hlo_name);
  if (found != targets.by_name.end()) return hlo_name + kOneResultSuffix;
  const size_t index = targets.by_name.size();
  if (index == kMostGuarded || IsMadeWithKernelH(name, function))
    return hlo_name;
  targets.targets[index] = {reinterpret_cast<HostFunction>(function), name};
  registry->Register(hlo_name + kOneResultSuffix,
                     reinterpret_cast<void*>(kCalls[index]), kHostPlatform);
  targets.by_name.emplace(hlo_name, index);
  return hlo_name + kOneResultSuffix;
}

void CheckTakesBuffer(const std::string& hlo_name) {
  void* const function =
      xla::CustomCallTargetRegistry::Global()->Lookup(hlo_name, kHostPlatform);
  const std::string name = PlainName(hlo_name);
  if (function == nullptr || !IsMadeWithKernelH(name, function)) return;
  throw std::invalid_argument(
      "custom call " + Quoted(name) +
      ": the kernel, made with torch_xla_ext/kernel.h, takes an array of "
      "results on the Host, but _xla_custom_call passes the buffer of its one "
      "result; call it by torch_xla_ext.custom_call");
}

}  // namespace torch_xla_ext
