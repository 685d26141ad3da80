#include "torch_xla_ext/csrc/pjrt_shim/struct_size_shim.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/pjrt_shim/errors.h"

namespace torch_xla_ext::pjrt_shim {
namespace {

// The beginning of every argument structure.
struct Header {
  size_t struct_size;
};

// All functions return an error or null, except for the first two, which
// destroy and read an error: they return nothing and reject nothing.
using Function = PJRT_Error* (*)(Header*);
constexpr size_t kFunctionsBegin = offsetof(PJRT_Api, PJRT_Error_Destroy);
constexpr size_t kFirstResized = 2;
constexpr size_t kFunctionCount =
    (PJRT_Api_STRUCT_SIZE - kFunctionsBegin) / sizeof(Function);
static_assert(offsetof(PJRT_Api, PJRT_Error_GetCode) ==
                  kFunctionsBegin + kFirstResized * sizeof(Function),
              "the first functions of the table are not those assumed here");

// The longest structure of PJRT 0.114 has 201 bytes.
constexpr size_t kMaxSize = 1024;

// A function of the plugin, and the sizes that it has required so far.
struct Slot {
  Function function = nullptr;
  std::atomic<size_t> args_size{0};
  std::atomic<size_t> nested_size{0};
};
Slot slots[kFunctionCount];
const PJRT_Api* plugin_api = nullptr;

constexpr size_t Index(size_t offset) {
  return (offset - kFunctionsBegin) / sizeof(Function);
}

#define FUNCTION_INDEX(name) Index(offsetof(PJRT_Api, name))

// A member of an argument structure that points to another structure with its
// own size, which the function may require to be longer, too.
struct NestedMember {
  size_t function;
  size_t offset;
};
#define NESTED(name, member) \
  NestedMember { FUNCTION_INDEX(name), offsetof(name##_Args, member) }
constexpr NestedMember kNestedMembers[] = {
    NESTED(PJRT_LoadedExecutable_Execute, options),
    NESTED(PJRT_Client_Compile, program),
    NESTED(PJRT_Compile, program),
    NESTED(PJRT_Executable_OptimizedProgram, program),
    NESTED(PJRT_Client_BufferFromHostBuffer, device_layout),
    NESTED(PJRT_Client_CreateUninitializedBuffer, shape_layout),
    NESTED(PJRT_Client_CreateViewOfDeviceBuffer, layout),
    NESTED(PJRT_Buffer_ToHostBuffer, host_layout),
};
#undef NESTED

// The offset of the function's nested member; 0, the offset of struct_size, if
// there is none.
constexpr size_t NestedOffset(size_t function) {
  for (const NestedMember& member : kNestedMembers) {
    if (member.function == function) return member.offset;
  }
  return 0;
}

// PJRT 0.70 passes the size of PJRT_Plugin_Attributes_Args without its last
// member, but the plugin still writes to that member.
constexpr size_t MemorySize(size_t function) {
  return function == FUNCTION_INDEX(PJRT_Plugin_Attributes)
             ? sizeof(PJRT_Plugin_Attributes_Args)
             : 0;
}

// A structure for the plugin: the caller's own, or a longer copy, whose
// contents the destructor copies back.
class Resized {
 public:
  // `memory_size`: the size of the structure's memory, if larger than its
  // struct_size.
  Resized(Header* original, size_t size, size_t memory_size)
      : original_(original) {
    if (original == nullptr || original->struct_size >= size) return;
    original_size_ = original->struct_size;
    copied_ = std::min(std::max(original_size_, memory_size), size);
    std::memcpy(buffer_, original, copied_);
    std::memset(buffer_ + copied_, 0, size - copied_);
    get()->struct_size = size;
  }
  Resized(const Resized&) = delete;
  ~Resized() {
    if (copied_ == 0) return;
    get()->struct_size = original_size_;
    std::memcpy(original_, buffer_, copied_);
  }

  Header* get() {
    return copied_ == 0 ? original_ : reinterpret_cast<Header*>(buffer_);
  }

 private:
  Header* original_;
  size_t original_size_ = 0;
  size_t copied_ = 0;
  alignas(std::max_align_t) char buffer_[kMaxSize];
};

PJRT_Error* Call(Slot& slot, Header* args, size_t nested_offset,
                 size_t memory_size) {
  Resized resized(args, slot.args_size.load(std::memory_order_relaxed),
                  memory_size);
  if (nested_offset == 0) return slot.function(resized.get());
  Header*& member = *reinterpret_cast<Header**>(
      reinterpret_cast<char*>(resized.get()) + nested_offset);
  Header* const original = member;
  Resized nested(original, slot.nested_size.load(std::memory_order_relaxed), 0);
  member = nested.get();
  PJRT_Error* error = slot.function(resized.get());
  member = original;
  return error;
}

// Whether `error` rejects a structure as too short; if so, stores the size that
// the plugin requires.
bool LearnSize(Slot& slot, PJRT_Error* error) {
  const std::string text = ErrorText(plugin_api, error);
  char name[128];
  size_t expected, got;
  if (std::sscanf(text.c_str(), "Unexpected %127s size: expected %zu, got %zu",
                  name, &expected, &got) != 3 ||
      expected <= got || expected > kMaxSize) {
    return false;
  }
  const std::string_view suffix = "_Args";
  const std::string_view structure = name;
  const bool is_args =
      structure.size() > suffix.size() &&
      structure.substr(structure.size() - suffix.size()) == suffix;
  std::atomic<size_t>& size = is_args ? slot.args_size : slot.nested_size;
  size_t known = size.load(std::memory_order_relaxed);
  while (known < expected && !size.compare_exchange_weak(known, expected)) {
  }
  return true;
}

template <size_t I>
PJRT_Error* ShimFunction(Header* args) {
  // In each iteration but the last, the plugin rejects one of the two
  // structures.
  for (int turn = 0;; ++turn) {
    PJRT_Error* error = Call(slots[I], args, NestedOffset(I), MemorySize(I));
    if (error == nullptr || turn == 2 || !LearnSize(slots[I], error)) {
      return error;
    }
    DestroyError(plugin_api, error);
  }
}

template <size_t... I>
constexpr std::array<Function, sizeof...(I)> ShimFunctions(
    std::index_sequence<I...>) {
  return {&ShimFunction<I>...};
}

}  // namespace

PJRT_Api* ShimmedApi(const PJRT_Api* plugin) {
  static constexpr auto kWidened =
      ShimFunctions(std::make_index_sequence<kFunctionCount>());
  static PJRT_Api table;
  const size_t size = std::min(plugin->struct_size, sizeof(table));
  table = {};
  std::memcpy(&table, plugin, size);
  table.struct_size = size;
  plugin_api = plugin;
  char* functions = reinterpret_cast<char*>(&table) + kFunctionsBegin;
  for (size_t i = kFirstResized; i < kFunctionCount; ++i) {
    char* entry = functions + i * sizeof(Function);
    std::memcpy(&slots[i].function, entry, sizeof(Function));
    slots[i].args_size = 0;
    slots[i].nested_size = 0;
    if (slots[i].function != nullptr) {
      std::memcpy(entry, &kWidened[i], sizeof(Function));
    }
  }
  return &table;
}

}  // namespace torch_xla_ext::pjrt_shim
