// The instruction set avxvnni with AVX-512's form of its one instruction, which some machines have that lack its own:
// for tests. Never chosen by itself.
#define FORETOKEN_AVXVNNI_TWIN
#include "vector_avx2.h"

#include "isa.inl"

#include "packed_floats.inl"

#include "blocks_avx2.inl"

const foretoken::Kernels* foretoken::kernels_avxvnni_twin() {
  static constexpr Kernels table = table_of("avxvnni-twin", 1, {}, kNeverMany, repack_bf16, nullptr, linear_repacked);
  return &table;
}
