// AVX-512 with products of pairs (vdpbf16ps): two steps of a sum at once.
//
// The instruction adds the product of a pair's upper halves, rounds, then adds that of the lower halves, and rounds. The
// format sums even and odd inputs apart, so pairs are made of neighbours in one of those sums: (2, 0), (6, 4), ..., and
// (3, 1), (7, 5), ... Then each instruction is two steps of one sum, in the format's own order. That a machine's
// instruction rounds so is looked at before this level is used (`agrees` in levels.cpp).
#include "vector_avx512.h"

#include "level.inl"
#include "transpose_avx512.h"

namespace {

// Within 8 inputs: the pairs (lower, upper) = (2, 0), (6, 4), (3, 1), (7, 5).
inline __m512i pair_up(__m512i line) {
  const __m512i order = _mm512_set4_epi32(0x0b0a0f0e, 0x03020706, 0x09080d0c, 0x01000504);
  return _mm512_maskz_shuffle_epi8(~0ull, line, order);
}

// Packed: for each 32 inputs, for each row, the 32 numbers rounded to bf16, paired up.
std::size_t bytes_bf16(int64_t n, int64_t k) { return static_cast<std::size_t>(n * padded(k, 32)) * 2; }

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  char* out = static_cast<char*>(packed);
  for (int64_t block = 0; block * 32 < k; ++block) {
    for (int64_t row = from; row < to; ++row) {
      const int64_t rest = k - block * 32;
      const float* in = x + row * stride + block * 32;
      alignas(64) std::uint16_t line[32] = {};
      if (rest >= 32) {
        for (int i = 0; i < 32; ++i) line[i] = to_bf16(in[i]);
      } else {
        for (int64_t i = 0; i < rest; ++i) line[i] = to_bf16(in[i]);
      }
      _mm512_storeu_si512(out + (block * n + row) * 64, pair_up(_mm512_load_si512(line)));
    }
  }
}

// Columns (pairs of one place in 16 lines) in the order in which their sums take them.
constexpr int kEven[8] = {0, 1, 4, 5, 8, 9, 12, 13}, kOdd[8] = {2, 3, 6, 7, 10, 11, 14, 15};

template <int N>
inline void rows_block(const __m512i* columns, const std::int32_t* x, float* tile) {
  __m512 even[N], odd[N];
  for (int n = 0; n < N; ++n) even[n] = odd[n] = _mm512_setzero_ps();
  auto step = [](__m512 sum, __m512i w, std::int32_t pair) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair));
  };
#pragma GCC unroll 8
  for (int t = 0; t < 8; ++t) {
    for (int n = 0; n < N; ++n) {
      even[n] = step(even[n], columns[kEven[t]], x[n * 16 + kEven[t]]);
      odd[n] = step(odd[n], columns[kOdd[t]], x[n * 16 + kOdd[t]]);
    }
  }
  for (int n = 0; n < N; ++n) {
    float* out = tile + n * kTile;
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), _mm512_add_ps(even[n], odd[n])));
  }
}

inline void all_rows(const __m512i* columns, int64_t n, const std::int32_t* x, float* tile) {
  int64_t row = 0;
  for (; row + 4 <= n; row += 4) rows_block<4>(columns, x + row * 16, tile + row * kTile);
  for (; row < n; ++row) rows_block<1>(columns, x + row * 16, tile + row * kTile);
}

void linear_bf16(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  const std::int32_t* rows = static_cast<const std::int32_t*>(packed);
  std::memset(tile, 0, static_cast<std::size_t>(n) * kTile * 4);
  const int64_t blocks = padded(k, 32) / 32, next = next_rows(weights);
  for (int64_t block = 0; block < blocks; ++block) {
    __m512i columns[16];
    for (int i = 0; i < 16; ++i) {
      columns[i] = pair_up(load_line(weights[i], block, k - block * 32));
      fetch_ahead(weights, i, block, blocks, next);
    }
    transpose(columns);
    all_rows(columns, n, rows + block * n * 16, tile);
  }
}

void repack_bf16(const void* const* weights, int64_t k, void* out) {
  for (int64_t block = 0; block * 32 < k; ++block) {
    __m512i columns[16];
    for (int i = 0; i < 16; ++i) columns[i] = pair_up(load_line(weights[i], block, k - block * 32));
    transpose(columns);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(static_cast<char*>(out) + block * 1024 + i * 64, columns[i]);
  }
}

void linear_repacked(const void* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  const std::int32_t* rows = static_cast<const std::int32_t*>(packed);
  std::memset(tile, 0, static_cast<std::size_t>(n) * kTile * 4);
  for (int64_t block = 0; block * 32 < k; ++block) {
    const char* from = static_cast<const char*>(weights) + block * 1024;
    __m512i columns[16];
    for (int i = 0; i < 16; ++i) {
      columns[i] = _mm512_loadu_si512(from + i * 64);
      _mm_prefetch(from + kRepackedAhead + i * 64, _MM_HINT_T1);
    }
    all_rows(columns, n, rows + block * n * 16, tile);
  }
}

}  // namespace

const foretoken::Kernels* foretoken::kernels_avx512bf16() {
  static const Kernels table = table_of("avx512bf16", repack_bf16, linear_repacked);
  return &table;
}
