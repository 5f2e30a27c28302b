// 128-bit registers of ARM's, and products of bytes (SDOT).
#include "vector_neon.h"

#include "isa.inl"

#include "packed_floats.inl"

#include "blocks_neon.inl"

const foretoken::Kernels* foretoken::kernels_dotprod() {
  static constexpr Kernels table = table_of("dotprod", 1, {}, kNeverMany, repack_bf16, nullptr, linear_repacked);
  return &table;
}
