// 512-bit registers, and products of bytes (AVX-512 VNNI).
#include "vector_avx512.h"

#include "isa.inl"

#include "blocks_avx512.inl"
#include "packed_floats.inl"

#include "floats_avx512.inl"

const foretoken::Kernels* foretoken::kernels_avx512vnni() {
  static constexpr Kernels table =
      table_of("avx512vnni", 2, {}, kNeverMany, repack_blocks<Floats>, nullptr, linear_repacked<Floats>);
  return &table;
}
