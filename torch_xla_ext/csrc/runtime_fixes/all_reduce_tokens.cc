#include "torch_xla_ext/csrc/runtime_fixes/all_reduce_tokens.h"

#include <utility>

namespace torch_xla_ext {
namespace {

thread_local torch::lazy::Value kept_token;

}  // namespace

const torch::lazy::Value& KeptToken(torch::lazy::Value token) {
  kept_token = std::move(token);
  return kept_token;
}

void DropToken() { kept_token = torch::lazy::Value(); }

}  // namespace torch_xla_ext
