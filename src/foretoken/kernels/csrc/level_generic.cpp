// The slowest level, for any machine: one number at a time. The others must equal it.
#include "vector_generic.h"

#include "level.inl"

namespace {

// Packed: for each 32 inputs, for each row, the 32 numbers rounded to bf16, as floats.
std::size_t bytes_bf16(int64_t n, int64_t k) { return static_cast<std::size_t>(n * padded(k, 32)) * 4; }

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  float* out = static_cast<float*>(packed);
  for (int64_t block = 0; block * 32 < k; ++block) {
    for (int64_t row = from; row < to; ++row) {
      for (int64_t i = 0; i < 32; ++i) {
        const int64_t at = block * 32 + i;
        out[(block * n + row) * 32 + i] = at < k ? from_bf16(to_bf16(x[row * stride + at])) : 0.0f;
      }
    }
  }
}

// Products of bf16 are exact in double, and a sum of two floats that is rounded to double and then to float is the sum
// rounded once (Figueroa 1995), so this is a fused multiply-add.
inline float step(float w, float x, float sum) { return static_cast<float>(static_cast<double>(w) * x + sum); }

void linear_bf16(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  const float* rows = static_cast<const float*>(packed);
  for (int m = 0; m < kTile; ++m) {
    for (int64_t row = 0; row < n; ++row) tile[row * kTile + m] = 0.0f;
    for (int64_t block = 0; block * 32 < k; ++block) {
      const std::uint16_t* at = static_cast<const std::uint16_t*>(weights[m]) + block * 32;
      float w[32];
      for (int64_t i = 0; i < 32; ++i) w[i] = block * 32 + i < k ? from_bf16(at[i]) : 0.0f;
      for (int64_t row = 0; row < n; ++row) {
        const float* x = rows + (block * n + row) * 32;
        float even = 0.0f, odd = 0.0f;
        for (int i = 0; i < 32; i += 2) {
          even = step(w[i], x[i], even);
          odd = step(w[i + 1], x[i + 1], odd);
        }
        tile[row * kTile + m] += even + odd;
      }
    }
  }
}

}  // namespace

const foretoken::Kernels* foretoken::kernels_generic() {
  static const Kernels table = table_of("generic", nullptr, nullptr);
  return &table;
}
