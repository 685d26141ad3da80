// Makes XLA_CHECK_OK throw, where upstream's version aborts the process.
//
// XLA_CHECK_OK(status) is tsl's TF_CHECK_OK: when `status` is an error it calls
// tsl::TfCheckOpHelperOutOfLine for the text, logs it and aborts. An error that
// a running kernel reports reaches such a check in
// PjRtComputationClient::TransferFromDevice, and would abort the process.
//
// The upstream binary calls that function through its PLT, and this library
// comes before it in symbol lookup, so the calls arrive here. There are 341
// call sites. The 25 in torch_xla's own code (6 functions of namespace
// torch_xla, 13 instantiations of ConsumeValue) are compiled with exceptions
// and expect them, since XLA_CHECK throws: calls from there throw. Calls from
// XLA's own code still abort: XLA is written without exceptions and must not be
// unwound.
#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "torch_xla_ext/csrc/interpose/abi/absl.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/check_failed.h"

namespace {

// Whether `address` lies in a function of torch_xla. Each of the 19 functions
// counted above is in the dynamic symbol table, where dladdr finds it by
// address and size; every other address counts as XLA's.
bool IsTorchXlaCode(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) return false;
  const std::string_view name = info.dli_sname;
  for (const std::string_view prefix :
       {"_ZN9torch_xla", "_ZNK9torch_xla", "_Z12ConsumeValueI"}) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

}  // namespace

namespace tsl {

std::string* TfCheckOpHelperOutOfLine(const absl::Status& status,
                                      const char* expression) {
  static const auto upstream =
      torch_xla::UpstreamFunction(&TfCheckOpHelperOutOfLine);
  std::unique_ptr<std::string> text(upstream(status, expression));
  if (IsTorchXlaCode(__builtin_return_address(0))) {
    throw std::runtime_error(torch_xla_ext::CheckOkMessage(*text));
  }
  return text.release();
}

}  // namespace tsl
