// bf16 with 256-bit registers: 16 outputs at a time, one a lane of two registers.

namespace {

// Eight rows of eight pairs become eight columns of pairs.
inline void transpose(__m256i r[8]) {
  __m256i t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
  }
}

constexpr int64_t kAhead = 4 << 10;  // bytes of repacked weights that are fetched ahead, into the first cache
constexpr int kHalf = 16;  // registers of columns of the first eight outputs, behind which lie those of the others

// Each number of x is fetched for two registers of outputs: with one, fetching takes as long as multiplying. Three rows of
// four sums each leave registers for two weights, a number and a mask.
template <int N>
inline void rows_block(const __m256i* columns, const float* x, Results results) {
  __m256 even[2][N], odd[2][N];
  for (int n = 0; n < N; ++n) even[0][n] = even[1][n] = odd[0][n] = odd[1][n] = _mm256_setzero_ps();
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const auto multiply = [x](__m256 one, __m256 other, int t, __m256 (&sums)[2][N]) {
    for (int n = 0; n < N; ++n) {
      const __m256 number = _mm256_broadcast_ss(x + n * 32 + t);
      sums[0][n] = _mm256_fmadd_ps(one, number, sums[0][n]);
      sums[1][n] = _mm256_fmadd_ps(other, number, sums[1][n]);
    }
  };
  for (int t = 0; t < 16; ++t) {
    const __m256i one = _mm256_load_si256(columns + t), other = _mm256_load_si256(columns + kHalf + t);
    multiply(_mm256_castsi256_ps(_mm256_slli_epi32(one, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(other, 16)), t, even);
    multiply(_mm256_castsi256_ps(_mm256_and_si256(one, upper)), _mm256_castsi256_ps(_mm256_and_si256(other, upper)),
             16 + t, odd);
  }
  for (int n = 0; n < N; ++n) {
    for (int half = 0; half < 2; ++half) {
      float* out = results.at(n) + half * 8;
      _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_add_ps(even[half][n], odd[half][n])));
    }
  }
}

// Threes, and twos for the rest: a row alone would wait for its own sums.
inline void all_rows(const __m256i* columns, const PackedRows& rows, int64_t line, const Results& results) {
  const float* x = static_cast<const float*>(rows.packed) + (line * rows.n + rows.from) * 32;
  const int64_t n = rows.count();
  auto some = [&](int64_t row) { return Results{results.at(row), results.stride}; };
  int64_t row = 0;
  for (; n - row > 4 || n - row == 3; row += 3) rows_block<3>(columns, x + row * 32, some(row));
  for (; n - row >= 2; row += 2) rows_block<2>(columns, x + row * 32, some(row));
  if (row < n) rows_block<1>(columns, x + row * 32, some(row));
}

// 16 pairs of 8 rows as columns.
inline void load_half(const void* const* weights, int64_t block, int64_t rest, __m256i* columns) {
  for (int half = 0; half < 2; ++half) {
    __m256i r[8];
    for (int i = 0; i < 8; ++i) {
      const std::uint16_t* at = static_cast<const std::uint16_t*>(weights[i]) + block * 32 + half * 16;
      if (rest >= 32) {
        r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        continue;
      }
      std::uint16_t part[16] = {};
      const int64_t left = rest - half * 16;
      if (left > 0) std::memcpy(part, at, static_cast<std::size_t>(left < 16 ? left : 16) * 2);
      std::memcpy(&r[i], part, sizeof part);
    }
    transpose(r);
    for (int i = 0; i < 8; ++i) _mm256_store_si256(columns + half * 8 + i, r[i]);
  }
}

// 16 pairs of 16 rows, those of the first eight in front.
inline void load_columns(const void* const* weights, int64_t block, int64_t rest, __m256i* columns) {
  load_half(weights, block, rest, columns);
  load_half(weights + 8, block, rest, columns + kHalf);
}

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  clear(blocks, rows.count(), results);
  for (int64_t block = 0; block < blocks; ++block, weights += kTile) {
    for (int64_t line = 0; line * 32 < k; ++line) {
      alignas(32) __m256i columns[2 * kHalf];
      load_columns(weights, line, k - line * 32, columns);
      all_rows(columns, rows, line, results.block(block));
    }
  }
}

void repack_bf16(const void* const* weights, int64_t k, void* out) {
  for (int64_t block = 0; block * 32 < k; ++block) {
    alignas(32) __m256i columns[2 * kHalf];
    load_columns(weights, block, k - block * 32, columns);
    std::memcpy(static_cast<char*>(out) + block * 1024, columns, sizeof columns);
  }
}

void linear_repacked(const void* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const char* from = static_cast<const char*>(weights);
  clear(blocks, rows.count(), results);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t line = 0; line * 32 < k; ++line, from += 1024) {
      for (int64_t at = 0; at < 1024; at += 64) _mm_prefetch(from + kAhead + at, _MM_HINT_T0);
      all_rows(reinterpret_cast<const __m256i*>(from), rows, line, results.block(block));
    }
  }
}

}  // namespace
