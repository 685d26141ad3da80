// The grouped products for CUDA: checks, the choice of a kernel, and launches.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <climits>

#include "kernels/common/device.h"
#include "kernels/grouped_matmul/grouped_matmul.h"
#include "kernels/grouped_matmul/mma.cuh"
#include "kernels/grouped_matmul/simple.cuh"
#include "kernels/grouped_matmul/sm90.h"
#include "kernels/grouped_matmul/sum.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::grouped_matmul {
namespace {

// Which kernel serves a call: the first row that fits.
//
//   kernel    results    GPU            k, m, n             addresses
//   few       bfloat16   9.0            multiples of 8      multiples of 16
//   sm90      16 bits    9.0            multiples of 8      multiples of 16
//   mma       16 bits    8.0 and later  multiples of 8      multiples of 16
//   simple    all        all            all                 all
//
// few serves kLinear if IsOfFewRows is true. For operands with scales, sm90
// needs k to be a multiple of 16, and does not serve scales for each n and for
// blocks along k; few and mma serve no such operands. With w in MXFP4, few and
// sm90 serve bfloat16.
enum class Variant { kFew, kSm90, kMma, kSimple };

Variant ChooseVariant(const Device& device, Product product, DType dtype,
                      const Arguments& arguments) {
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  // The number of rows need not be a multiple of 8.
  const int inner = product == Product::kOuter ? arguments.m : arguments.k;
  const Scales& scales = arguments.scales;
  const bool is_scaled = scales.a != nullptr;
  const bool is_sm90 = device.IsSm90();
  if (dtype == F32 || inner % (is_scaled ? 16 : 8) != 0 ||
      arguments.n % 8 != 0 || !is_aligned(arguments.a) ||
      !is_aligned(arguments.b) || !is_aligned(arguments.out)) {
    return Variant::kSimple;
  }
  const bool is_of_blocks = scales.columns <= CeilDiv(scales.n, kScaleBlock);
  if (is_sm90 && dtype == BF16 && product == Product::kLinear && !is_scaled &&
      is_aligned(arguments.exponents) &&
      IsOfFewRows(arguments, device.multiprocessors)) {
    return Variant::kFew;
  }
  if (arguments.exponents != nullptr) {
    return is_sm90 && dtype == BF16 ? Variant::kSm90 : Variant::kSimple;
  }
  if (is_scaled && (!is_sm90 || (scales.blocks > 1 && !is_of_blocks))) {
    return Variant::kSimple;
  }
  return is_sm90 ? Variant::kSm90 : Variant::kMma;
}

template <Product kProduct, typename In, typename T>
Status LaunchSimpleOf(cudaStream_t stream, const Arguments& arguments,
                      int multiprocessors) {
  const int bytes =
      NumSegmentEntries(arguments.groups) * static_cast<int>(sizeof(int2));
  return CudaStatus(LaunchTiles<kProduct>(
      stream, arguments, multiprocessors, simple::Kernel<In, T, kProduct>,
      simple::kTile, simple::kTile, simple::kThreads, bytes));
}

template <Product kProduct, typename T>
Status LaunchSimple(cudaStream_t stream, const Arguments& arguments,
                    int multiprocessors) {
  if constexpr (kProduct == Product::kLinear) {
    if (arguments.scales.a != nullptr) {
      return LaunchSimpleOf<kProduct, __nv_fp8_e4m3, T>(stream, arguments,
                                                        multiprocessors);
    }
    if (arguments.exponents != nullptr) {
      return LaunchSimpleOf<kProduct, Mx, T>(stream, arguments,
                                             multiprocessors);
    }
  }
  return LaunchSimpleOf<kProduct, T, T>(stream, arguments, multiprocessors);
}

template <Product kProduct, typename T>
Status LaunchMma(cudaStream_t stream, const Arguments& arguments,
                 int multiprocessors) {
  return CudaStatus(LaunchTiles<kProduct>(
      stream, arguments, multiprocessors, mma::Kernel<T, kProduct>, mma::kRows,
      mma::kColumns, mma::kThreads, mma::SharedBytes(arguments.groups)));
}

template <Product kProduct>
Status Launch(cudaStream_t stream, DType dtype, const Arguments& arguments) {
  if (arguments.m == 0 || arguments.n == 0) return Status::Ok();
  Device device = {};
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(GetDevice(&device)));
  const int multiprocessors = device.multiprocessors;
  switch (ChooseVariant(device, kProduct, dtype, arguments)) {
    case Variant::kFew:
      return CudaStatus(LaunchFew(stream, arguments, multiprocessors));
    case Variant::kSm90:
      return CudaStatus(
          LaunchSm90(stream, kProduct, arguments, multiprocessors));
    case Variant::kMma:
      return dtype == BF16 ? LaunchMma<kProduct, __nv_bfloat16>(
                                 stream, arguments, multiprocessors)
                           : LaunchMma<kProduct, __half>(stream, arguments,
                                                         multiprocessors);
    default:
      break;
  }
  switch (dtype) {
    case F16:
      return LaunchSimple<kProduct, __half>(stream, arguments, multiprocessors);
    case BF16:
      return LaunchSimple<kProduct, __nv_bfloat16>(stream, arguments,
                                                   multiprocessors);
    default:  // F32
      return LaunchSimple<kProduct, float>(stream, arguments, multiprocessors);
  }
}

// The number of tiles of any kernel must fit into an int.
Status CheckSizes(int64_t rows, int64_t columns) {
  const int64_t limit = INT_MAX - 1024;
  if (rows <= limit && columns <= limit &&
      (rows / 64 + 2048) * (columns / 64 + 1) <= limit) {
    return Status::Ok();
  }
  return Status::Error("expected fewer rows or columns than ", rows, " and ",
                       columns);
}

template <Product kProduct>
Status LaunchOfRows(cudaStream_t stream, AnyBuffer x, AnyBuffer w,
                    Buffer<S32, 2> ranges, AnyResult out, const Scales& scales,
                    const uint8_t* exponents = nullptr) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckSizes(x.dim(0), out.dim(1)));
  XLA_KERNEL_RETURN_IF_ERROR(CheckSizes(x.dim(1), 1));
  Arguments arguments = {};
  arguments.a = x.untyped_data();
  arguments.b = w.untyped_data();
  arguments.ranges = reinterpret_cast<const int2*>(ranges.data());
  arguments.out = out.untyped_data();
  arguments.m = static_cast<int>(x.dim(0));
  arguments.k = static_cast<int>(x.dim(1));
  arguments.n = static_cast<int>(out.dim(1));
  arguments.groups = static_cast<int>(ranges.dim(0));
  arguments.is_bf16 = out.dtype() == BF16;
  arguments.scales = scales;
  arguments.exponents = exponents;
  return Launch<kProduct>(stream, out.dtype(), arguments);
}

template <Product kProduct>
Status LaunchProduct(cudaStream_t stream, AnyBuffer x, AnyBuffer w,
                     Buffer<S32, 2> ranges, AnyResult out) {
  return LaunchOfRows<kProduct>(stream, x, w, ranges, out, {});
}

Status LaunchScaledLinear(cudaStream_t stream, AnyBuffer x, AnyBuffer w,
                          Buffer<F32, 2> x_scale, Buffer<F32, 3> w_scale,
                          Buffer<S32, 2> ranges, AnyBuffer, AnyResult out) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckScales(w.dim(1), w.dim(2), w_scale));
  const Scales scales = {
      x_scale.data(), w_scale.data(), static_cast<int>(w.dim(1)),
      static_cast<int>(w_scale.dim(1)), static_cast<int>(w_scale.dim(2))};
  return LaunchOfRows<Product::kLinear>(stream, x, w, ranges, out, scales);
}

Status LaunchMxLinear(cudaStream_t stream, AnyBuffer x, AnyBuffer w,
                      AnyBuffer w_scale, Buffer<S32, 2> ranges, AnyResult out) {
  return LaunchOfRows<Product::kLinear>(
      stream, x, w, ranges, out, {},
      static_cast<const uint8_t*>(w_scale.untyped_data()));
}

Status LaunchSum(cudaStream_t stream, Buffer<S32, 2> position,
                 Buffer<F32, 2> weights, AnyResult out, AnyResult products) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckSizes(position.dim(0), out.dim(1)));
  if (out.size() == 0) return Status::Ok();
  sum::Arguments arguments = {};
  arguments.products = products.untyped_data();
  arguments.position = position.data();
  arguments.weights = weights.data();
  arguments.out = out.untyped_data();
  arguments.rows = static_cast<int>(products.dim(0));
  arguments.terms = static_cast<int>(position.dim(1));
  arguments.n = static_cast<int>(out.dim(1));
  const int sums = static_cast<int>(out.dim(0));
  switch (out.dtype()) {
    case F16:
      sum::Launch<__half>(stream, sums, arguments);
      break;
    case BF16:
      sum::Launch<__nv_bfloat16>(stream, sums, arguments);
      break;
    default:  // F32
      sum::Launch<float>(stream, sums, arguments);
  }
  return CudaStatus(cudaGetLastError());
}

Status LaunchLinearSum(cudaStream_t stream, AnyBuffer x, AnyBuffer w,
                       Buffer<S32, 2> ranges, Buffer<S32, 2> position,
                       Buffer<F32, 2> weights, AnyResult out,
                       AnyResult products) {
  XLA_KERNEL_RETURN_IF_ERROR(
      LaunchProduct<Product::kLinear>(stream, x, w, ranges, products));
  return LaunchSum(stream, position, weights, out, products);
}

Status LaunchScaledLinearSum(cudaStream_t stream, AnyBuffer x, AnyBuffer w,
                             Buffer<F32, 2> x_scale, Buffer<F32, 3> w_scale,
                             Buffer<S32, 2> ranges, Buffer<S32, 2> position,
                             Buffer<F32, 2> weights, AnyBuffer like,
                             AnyResult out, AnyResult products) {
  XLA_KERNEL_RETURN_IF_ERROR(LaunchScaledLinear(stream, x, w, x_scale, w_scale,
                                                ranges, like, products));
  return LaunchSum(stream, position, weights, out, products);
}

Status LaunchMxLinearSum(cudaStream_t stream, AnyBuffer x, AnyBuffer w,
                         AnyBuffer w_scale, Buffer<S32, 2> ranges,
                         Buffer<S32, 2> position, Buffer<F32, 2> weights,
                         AnyResult out, AnyResult products) {
  XLA_KERNEL_RETURN_IF_ERROR(
      LaunchMxLinear(stream, x, w, w_scale, ranges, products));
  return LaunchSum(stream, position, weights, out, products);
}

Status LaunchOuter(cudaStream_t stream, AnyBuffer x, AnyBuffer y,
                   Buffer<S32, 2> ranges, AnyResult out) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckSizes(x.dim(0), 1));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckSizes(out.dim(0) * (out.dim(1) + 64), out.dim(2)));
  Arguments arguments = {};
  arguments.a = x.untyped_data();
  arguments.b = y.untyped_data();
  arguments.ranges = reinterpret_cast<const int2*>(ranges.data());
  arguments.out = out.untyped_data();
  arguments.m = static_cast<int>(x.dim(1));
  arguments.k = static_cast<int>(x.dim(0));
  arguments.n = static_cast<int>(y.dim(1));
  arguments.groups = static_cast<int>(ranges.dim(0));
  arguments.is_bf16 = x.dtype() == BF16;
  return Launch<Product::kOuter>(stream, x.dtype(), arguments);
}

}  // namespace
}  // namespace torch_xla_ext::grouped_matmul

namespace grouped = torch_xla_ext::grouped_matmul;

XLA_KERNEL_CUDA(XlaGpuGroupedMatmul, grouped::kGroupedMatmul,
                grouped::LaunchProduct<grouped::Product::kMatmul>,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuGroupedLinear, grouped::kGroupedLinear,
                grouped::LaunchProduct<grouped::Product::kLinear>,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuGroupedLinearSum, grouped::kGroupedLinearSum,
                grouped::LaunchLinearSum,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuGroupedOuter, grouped::kGroupedOuter,
                grouped::LaunchOuter, torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuScaledGroupedLinear, grouped::kScaledGroupedLinear,
                grouped::LaunchScaledLinear,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuScaledGroupedLinearSum, grouped::kScaledGroupedLinearSum,
                grouped::LaunchScaledLinearSum,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuMxGroupedLinear, grouped::kMxGroupedLinear,
                grouped::LaunchMxLinear,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuMxGroupedLinearSum, grouped::kMxGroupedLinearSum,
                grouped::LaunchMxLinearSum,
                torch_xla_ext::kCommandBufferCompatible);
