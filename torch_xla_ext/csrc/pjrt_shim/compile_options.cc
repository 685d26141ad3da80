#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"

#include <utility>

namespace torch_xla_ext::pjrt_shim {
namespace {

thread_local std::string compile_options;
PJRT_Client_Compile* compile = nullptr;  // the original function

PJRT_Error* CompileWithOptions(PJRT_Client_Compile_Args* args) {
  if (compile_options.empty()) return compile(args);
  const char* const given = args->compile_options;
  const size_t given_size = args->compile_options_size;
  // Protobuf merges messages whose bytes follow one another.
  const std::string all = std::string(given, given_size) + compile_options;
  args->compile_options = all.data();
  args->compile_options_size = all.size();
  PJRT_Error* const error = compile(args);
  args->compile_options = given;
  args->compile_options_size = given_size;
  return error;
}

}  // namespace

const std::string& CompileOptions() { return compile_options; }

void SetCompileOptions(std::string fields) {
  compile_options = std::move(fields);
}

void AddCompileOptions(PJRT_Api* api) {
  if (api->PJRT_Client_Compile == nullptr) return;
  compile = api->PJRT_Client_Compile;
  api->PJRT_Client_Compile = &CompileWithOptions;
}

}  // namespace torch_xla_ext::pjrt_shim
