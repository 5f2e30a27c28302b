// 128-bit registers of every 64-bit ARM processor.
#include "vector_neon.h"

#include "isa.inl"

#include "packed_floats.inl"

#include "blocks_neon.inl"

const foretoken::Kernels* foretoken::kernels_neon() {
  static constexpr Kernels table = table_of("neon", 1, {}, kNeverMany, repack_bf16, nullptr, linear_repacked);
  return &table;
}
