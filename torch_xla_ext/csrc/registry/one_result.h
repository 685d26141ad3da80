// Detects a wrong use of `out` by untyped Host functions (API version 3) with
// one result, for which the meaning of `out` depends on the call.
//
// If the call's result is a tuple, as in _xla_gpu_custom_call, XLA passes an
// array of the results' buffers; if it is not, as in _xla_custom_call with one
// result, XLA passes the buffer itself. A function written for one kind of call
// writes to foreign memory in calls of the other kind.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_ONE_RESULT_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_ONE_RESULT_H_

#include <cstddef>
#include <string>

#include "xla/service/custom_call_status.h"

namespace torch_xla_ext {

using HostFunction = void (*)(void* out, const void** in, const char* opaque,
                              size_t opaque_len, XlaCustomCallStatus* status);

// Calls `function` with an array of one result, which has extra room behind it.
// If the function mistakes `out` for the buffer, it writes to that room, which
// is reported as a failure in `status` that names `target`.
void CallWithOneResult(HostFunction function, const std::string& target,
                       void* result, const void** in, const char* opaque,
                       size_t opaque_len, XlaCustomCallStatus* status);

// The name of a function that XLA can call in place of the untyped Host
// function `hlo_name`, with one result, and that calls it as CallWithOneResult
// does. Returns `hlo_name` if there is no such function, if it is a kernel made
// with kernel.h, whose entry expects an array, or if the process has too many
// such functions.
std::string NameWithOneResult(const std::string& hlo_name);

// Throws std::invalid_argument if `hlo_name` is a Host kernel made with
// kernel.h: a call that is to pass the buffer of its one result.
void CheckTakesBuffer(const std::string& hlo_name);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_ONE_RESULT_H_
