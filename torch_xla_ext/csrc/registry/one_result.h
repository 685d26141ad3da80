// The untyped ABI of API version 3 for the Host, with one result: the meaning
// of `out` depends on the call.
//
// XLA passes the array of the results' buffers if the call's result is a tuple,
// as that of _xla_gpu_custom_call always is, and the buffer itself if it is no
// tuple, as that of _xla_custom_call with one result. A function that was
// written for one of the two writes to foreign memory in calls of the other
// kind.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_ONE_RESULT_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_ONE_RESULT_H_

#include <cstddef>
#include <string>

#include "xla/service/custom_call_status.h"

namespace torch_xla_ext {

using HostFunction = void (*)(void* out, const void** in, const char* opaque,
                              size_t opaque_len, XlaCustomCallStatus* status);

// Calls `function` with an array of one result, in separate memory with room
// behind it, to which a function that mistakes `out` for the buffer writes.
// That becomes a failure in `status`, which names `target`.
void CallWithOneResult(HostFunction function, const std::string& target,
                       void* result, const void** in, const char* opaque,
                       size_t opaque_len, XlaCustomCallStatus* status);

// The name of a function that XLA can call in place of the untyped Host
// function `hlo_name`, with one result, and that calls it as CallWithOneResult
// does. It is `hlo_name` if there is no such function, if that is a kernel made
// with kernel.h, whose entry takes an array, or if the process has too many.
std::string NameWithOneResult(const std::string& hlo_name);

// Throws std::invalid_argument if `hlo_name` is a Host kernel made with
// kernel.h: a call that is to pass the buffer of its one result.
void CheckTakesBuffer(const std::string& hlo_name);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_ONE_RESULT_H_
