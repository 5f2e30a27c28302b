// The slowest instruction set, for any machine: one number at a time. The others must equal it.
#include "vector_generic.h"

#include "isa.inl"

#include "packed_floats.inl"

namespace {

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const float* packed = static_cast<const float*>(rows.packed);
  clear(blocks, rows.count(), results);
  for (int64_t output = 0; output < blocks * kTile; ++output) {
    for (int64_t block = 0; block * 32 < k; ++block) {
      const std::uint16_t* at = static_cast<const std::uint16_t*>(weights[output]) + block * 32;
      float w[32];
      for (int64_t i = 0; i < 32; ++i) w[i] = block * 32 + i < k ? from_bf16(at[i]) : 0.0f;
      for (int64_t row = 0; row < rows.count(); ++row) {
        const float* x = packed + (block * rows.n + rows.from + row) * 32;
        float even = 0.0f, odd = 0.0f;
        for (int pair = 0; pair < 16; ++pair) {
          even = fused_bf16(w[2 * pair], x[pair], even);
          odd = fused_bf16(w[2 * pair + 1], x[16 + pair], odd);
        }
        results.at(row)[output] += even + odd;
      }
    }
  }
}

}  // namespace

const foretoken::Kernels* foretoken::kernels_generic() {
  static constexpr Kernels table = table_of("generic", 1, {}, kNeverMany, nullptr, nullptr, nullptr);
  return &table;
}
