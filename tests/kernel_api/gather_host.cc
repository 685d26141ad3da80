// Host kernels as a user would compile them: in a separate library that does
// not link with torch_xla.
#include <cstring>
#include <stdexcept>

#include "tests/kernel_api/describe.h"
#include "tests/kernel_api/gather.h"

using torch_xla_ext::AnyBuffer;
using torch_xla_ext::AnyResult;
using torch_xla_ext::Buffer;
using torch_xla_ext::F32;
using torch_xla_ext::ParseSignature;
using torch_xla_ext::Result;
using torch_xla_ext::S32;
using torch_xla_ext::Signature;
using torch_xla_ext::Status;
using torch_xla_ext::U8;

namespace {

// out[i] = table[index[i] + offset] * factor * scale + bias, for F32, negated
// if `negate`; the workspace is filled with the window.
Status Gather(AnyBuffer table, Buffer<S32, 1> index,
              std::optional<Buffer<F32, 0>> scale,
              std::optional<Buffer<U8, 1>> pair, AnyResult out,
              Result<U8> workspace, const GatherParams& params) {
  if (table.dtype() != F32) {
    return Status::Error("operand 0 (table): TestGather computes F32 only");
  }
  const int64_t rows = table.dim(0);
  const int64_t row = table.size() / std::max<int64_t>(rows, 1);
  for (int64_t i = 0; i < index.size(); ++i) {
    const int64_t from = index.data()[i] + params.offset;
    if (from < 0 || from >= rows) {
      return Status::Error("operand 1 (index): ", from, " is not below ", rows);
    }
    for (int64_t j = 0; j < row; ++j) {
      double value = table.data<float>()[from * row + j] * params.factor;
      if (scale) value *= *scale->data();
      if (pair) value += pair->data()[0] + pair->data()[1];
      value += params.bias;
      out.data<float>()[i * row + j] = params.negate ? -value : value;
    }
  }
  std::memset(workspace.data(), static_cast<int>(params.window),
              workspace.size_bytes());
  return Status::Ok();
}

// The parameters as text, and zeros.
Status Options(Buffer<torch_xla_ext::F64> x, Result<U8> text,
               const OptionsParams& params) {
  const std::string described = DescribeParams(params);
  for (int64_t i = 0; i < text.size(); ++i) {
    const bool inside = i < static_cast<int64_t>(described.size());
    text.data()[i] = static_cast<uint8_t>(inside ? described[i] : 0);
  }
  return Status::Ok();
}

// Adds 1 in place: in the call, the result has the operand's buffer.
Status Increment(Buffer<F32> x, Result<F32> out) {
  for (int64_t i = 0; i < out.size(); ++i) out.data()[i] = x.data()[i] + 1;
  return Status::Ok();
}

Status Throw(Buffer<F32> x, Result<F32> out) {
  throw std::runtime_error("no more of it");
}

inline constexpr Signature kIncrement =
    ParseSignature("TestIncrement(x: F32[*shape]) -> (out: F32[*shape])");
inline constexpr Signature kThrow =
    ParseSignature("TestThrow(x: F32[*shape]) -> (out: F32[*shape])");

}  // namespace

XLA_KERNEL_HOST(TestGather, kGather, Gather);
XLA_KERNEL_HOST(TestOptions, kOptions, Options);
XLA_KERNEL_HOST(TestIncrement, kIncrement, Increment);
XLA_KERNEL_HOST(TestThrow, kThrow, Throw);
