// Tensor maps for the copy engine (TMA) of compute capability 9.0.
#ifndef KERNELS_COMMON_TENSOR_MAP_H_
#define KERNELS_COMMON_TENSOR_MAP_H_

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace torch_xla_ext {

inline CUtensorMapDataType MapType(bool is_bf16) {
  return is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

// Encodes a map of `data` as [z, y, x]. The box's extents are in elements; in
// shared memory, its rows of 128 bytes are swizzled.
inline CUresult EncodeMap(
    CUtensorMap* map, const void* data, CUtensorMapDataType type,
    const uint64_t (&sizes)[3], const uint64_t (&strides)[2],
    const uint32_t (&box)[3],
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                     cudaEnableDefault, &result);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  if (encode == nullptr) return CUDA_ERROR_NOT_FOUND;
  const uint32_t element_strides[3] = {1, 1, 1};
  return encode(map, type, 3, const_cast<void*>(data), sizes, strides, box,
                element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_TENSOR_MAP_H_
