// 256-bit registers with fused multiply-add, and products of bytes (AVX-VNNI).
#include "vector_avx2.h"

#include "isa.inl"

#include "packed_floats.inl"

#include "blocks_avx2.inl"

const foretoken::Kernels* foretoken::kernels_avxvnni() {
  static constexpr Kernels table = table_of("avxvnni", 1, {}, kNeverMany, repack_bf16, nullptr, linear_repacked);
  return &table;
}
