// 512-bit registers.
#include "vector_avx512.h"

#include "isa.inl"

#include "blocks_avx512.inl"
#include "packed_floats.inl"

#include "floats_avx512.inl"

const foretoken::Kernels* foretoken::kernels_avx512() {
  static constexpr Kernels table =
      table_of("avx512", 2, {}, kNeverMany, repack_blocks<Floats>, nullptr, linear_repacked<Floats>);
  return &table;
}
