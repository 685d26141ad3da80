// Handlers for the CPU with the operands, results and attributes of
// TransformerEngine-JAX's, as tests/gpu/transformer_engine_test.py calls them.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;
using Any = ffi::AnyBuffer;
using Out = ffi::Result<F32>;

namespace {

// The types have 16 bits: bfloat16 is the upper half of a float.
float Value(const Any& buffer, int64_t i) {
  const uint32_t bits =
      uint32_t{static_cast<const uint16_t*>(buffer.untyped_data())[i]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

ffi::Error Norm(F32 x, F32 scale, F32 amax, F32 gamma, F32 beta, Out out,
                Out columns, Out scale_inv, Out columns_scale_inv, Out amax_out,
                Out mu, Out rsigma, ffi::Result<U8> workspace,
                int64_t norm_type, bool zero_centered_gamma, double epsilon,
                int64_t sm_margin, int64_t scaling_mode,
                int64_t quantize_layout, bool output_amax) {
  const bool layer = norm_type == 0;
  const int64_t n = x.dimensions()[0], d = x.dimensions()[1];
  if (zero_centered_gamma || sm_margin || scaling_mode != 1 ||
      quantize_layout != 0 || output_amax ||
      amax_out->typed_data() != amax.typed_data() ||
      static_cast<int64_t>(mu->element_count()) != (layer ? n : 1) ||
      static_cast<int64_t>(workspace->element_count()) != n * 8) {
    return ffi::Error::InvalidArgument("an unexpected call");
  }
  for (int64_t i = 0; i < n; ++i) {
    const float* row = x.typed_data() + i * d;
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < d; ++j) {
      sum += row[j];
      squares += double{row[j]} * row[j];
    }
    const double mean = layer ? sum / d : 0;
    const double scaled = 1 / std::sqrt(squares / d - mean * mean + epsilon);
    for (int64_t j = 0; j < d; ++j) {
      out->typed_data()[i * d + j] =
          (row[j] - mean) * scaled * gamma.typed_data()[j] +
          (layer ? beta.typed_data()[j] : 0);
    }
    if (layer) mu->typed_data()[i] = mean;
    rsigma->typed_data()[i] = scaled;
  }
  return ffi::Error::Success();
}

ffi::Error Gemm(Any lhs, F32 lhs_scale, Any rhs, F32 rhs_scale, Any bias,
                F32 alpha, F32 beta, ffi::Result<Any> out,
                ffi::Result<U8> workspace, ffi::Dictionary config) {
  const int64_t m = out->dimensions()[0], n = out->dimensions()[1],
                k = lhs.dimensions()[1];
  const bool fp8 = config.get<int64_t>("scaling_mode").value() == 3;
  if (config.size() != 7 || config.get<int64_t>("collective_op").value() != 0 ||
      config.get<int64_t>("lhs_axis_boundary").value() != 1 ||
      config.get<int64_t>("rhs_axis_boundary").value() != 1 ||
      config.get<bool>("lhs_transposed").value() ||
      config.get<bool>("rhs_transposed").value() != fp8 ||
      !config.get<bool>("use_split_accumulator").value() ||
      *alpha.typed_data() != 1 || *beta.typed_data() != 0 ||
      workspace->element_count() != (32 << 20) + 256) {
    return ffi::Error::InvalidArgument("an unexpected call");
  }
  // float8_e4m3fn of 0 and of powers of two.
  auto small = [](const Any& buffer, int64_t i) {
    const int byte = static_cast<const uint8_t*>(buffer.untyped_data())[i];
    return byte == 0
               ? 0
               : std::ldexp(byte & 128 ? -1.f : 1.f, ((byte & 127) >> 3) - 7);
  };
  const float scale = *lhs_scale.typed_data() * *rhs_scale.typed_data();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t c = 0; c < k; ++c) {
        sum += fp8 ? small(lhs, i * k + c) * small(rhs, j * k + c)
                   : Value(lhs, i * k + c) * Value(rhs, c * n + j);
      }
      sum = sum * scale + Value(bias, j);
      uint32_t bits;
      std::memcpy(&bits, &sum, sizeof bits);
      static_cast<uint16_t*>(out->untyped_data())[i * n + j] =
          (bits + 0x8000) >> 16;
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(NormForward, Norm,
                              ffi::Ffi::Bind()
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<U8>()
                                  .Attr<int64_t>("norm_type")
                                  .Attr<bool>("zero_centered_gamma")
                                  .Attr<double>("epsilon")
                                  .Attr<int64_t>("sm_margin")
                                  .Attr<int64_t>("scaling_mode")
                                  .Attr<int64_t>("quantize_layout")
                                  .Attr<bool>("output_amax_when_no_scaling"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(GemmV2, Gemm,
                              ffi::Ffi::Bind()
                                  .Arg<Any>()
                                  .Arg<F32>()
                                  .Arg<Any>()
                                  .Arg<F32>()
                                  .Arg<Any>()
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Ret<Any>()
                                  .Ret<U8>()
                                  .Attr<ffi::Dictionary>("config"));
