// The tokens that order a device's collective operations.
//
// Upstream keeps the newest token of each device in a map without a lock, and
// returns a reference to it. When another thread set the next token, the caller
// read a token that was destroyed: a segmentation fault.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_ALL_REDUCE_TOKENS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_ALL_REDUCE_TOKENS_H_

#include <torch/csrc/lazy/core/ir.h>

namespace torch_xla_ext {

// A copy of the token that belongs to this thread, until the thread asks for
// another one or calls DropToken().
const torch::lazy::Value& KeptToken(torch::lazy::Value token);

// For a thread that has set a new token: the copy would keep the values that
// the previous operations read.
void DropToken();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_ALL_REDUCE_TOKENS_H_
