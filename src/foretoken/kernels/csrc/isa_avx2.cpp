// 256-bit registers with fused multiply-add.
#include "vector_avx2.h"

#include "isa.inl"

#include "packed_floats.inl"

#include "blocks_avx2.inl"

const foretoken::Kernels* foretoken::kernels_avx2() {
  static constexpr Kernels table = table_of("avx2", 1, {}, kNeverMany, repack_bf16, nullptr, linear_repacked);
  return &table;
}
