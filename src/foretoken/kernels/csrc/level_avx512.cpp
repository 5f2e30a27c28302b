// 512-bit registers: sixteen outputs at a time, one a lane.
#include "vector_avx512.h"

#include "level.inl"
#include "transpose_avx512.h"

namespace {

// Packed: for each 32 inputs, for each row, the 16 even numbers rounded to bf16 as floats, then the 16 odd ones.
std::size_t bytes_bf16(int64_t n, int64_t k) { return static_cast<std::size_t>(n * padded(k, 32)) * 4; }

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  float* out = static_cast<float*>(packed);
  for (int64_t block = 0; block * 32 < k; ++block) {
    for (int64_t row = from; row < to; ++row) {
      float* to_row = out + (block * n + row) * 32;
      for (int64_t i = 0; i < 32; ++i) {
        const int64_t at = block * 32 + i;
        to_row[i / 2 + (i & 1) * 16] = at < k ? from_bf16(to_bf16(x[row * stride + at])) : 0.0f;
      }
    }
  }
}

template <int N>
inline void rows_block(const __m512i* columns, const float* x, float* tile) {
  __m512 even[N], odd[N];
  for (int n = 0; n < N; ++n) even[n] = odd[n] = _mm512_setzero_ps();
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    const __m512 e = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, columns[t], 16));
    const __m512 o = _mm512_castsi512_ps(_mm512_and_si512(columns[t], upper));
    for (int n = 0; n < N; ++n) {
      even[n] = _mm512_fmadd_ps(e, _mm512_set1_ps(x[n * 32 + t]), even[n]);
      odd[n] = _mm512_fmadd_ps(o, _mm512_set1_ps(x[n * 32 + 16 + t]), odd[n]);
    }
  }
  for (int n = 0; n < N; ++n) {
    float* out = tile + n * kTile;
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), _mm512_add_ps(even[n], odd[n])));
  }
}

inline void all_rows(const __m512i* columns, int64_t n, const float* x, float* tile) {
  int64_t row = 0;
  for (; row + 4 <= n; row += 4) rows_block<4>(columns, x + row * 32, tile + row * kTile);
  for (; row < n; ++row) rows_block<1>(columns, x + row * 32, tile + row * kTile);
}

void linear_bf16(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  const float* rows = static_cast<const float*>(packed);
  std::memset(tile, 0, static_cast<std::size_t>(n) * kTile * 4);
  const int64_t blocks = padded(k, 32) / 32, next = next_rows(weights);
  for (int64_t block = 0; block < blocks; ++block) {
    __m512i columns[16];
    for (int i = 0; i < 16; ++i) {
      columns[i] = load_line(weights[i], block, k - block * 32);
      fetch_ahead(weights, i, block, blocks, next);
    }
    transpose(columns);
    all_rows(columns, n, rows + block * n * 32, tile);
  }
}

void repack_bf16(const void* const* weights, int64_t k, void* out) {
  for (int64_t block = 0; block * 32 < k; ++block) {
    __m512i columns[16];
    for (int i = 0; i < 16; ++i) columns[i] = load_line(weights[i], block, k - block * 32);
    transpose(columns);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(static_cast<char*>(out) + block * 1024 + i * 64, columns[i]);
  }
}

void linear_repacked(const void* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  const float* rows = static_cast<const float*>(packed);
  std::memset(tile, 0, static_cast<std::size_t>(n) * kTile * 4);
  for (int64_t block = 0; block * 32 < k; ++block) {
    const char* from = static_cast<const char*>(weights) + block * 1024;
    __m512i columns[16];
    for (int i = 0; i < 16; ++i) {
      columns[i] = _mm512_loadu_si512(from + i * 64);
      _mm_prefetch(from + kRepackedAhead + i * 64, _MM_HINT_T1);
    }
    all_rows(columns, n, rows + block * n * 32, tile);
  }
}

}  // namespace

const foretoken::Kernels* foretoken::kernels_avx512() {
  static const Kernels table = table_of("avx512", repack_bf16, linear_repacked);
  return &table;
}
