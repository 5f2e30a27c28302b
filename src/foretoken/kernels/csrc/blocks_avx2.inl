// bf16 with 256-bit registers: eight outputs at a time, one a lane.

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

template <int N>
inline void rows_block(const __m256i* columns, const float* x, float* tile) {
  __m256 even[N], odd[N];
  for (int n = 0; n < N; ++n) even[n] = odd[n] = _mm256_setzero_ps();
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int t = 0; t < 16; ++t) {
    const __m256i pair = _mm256_load_si256(columns + t);
    const __m256 e = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
    const __m256 o = _mm256_castsi256_ps(_mm256_and_si256(pair, upper));
    for (int n = 0; n < N; ++n) {
      even[n] = _mm256_fmadd_ps(e, _mm256_broadcast_ss(x + n * 32 + t), even[n]);
      odd[n] = _mm256_fmadd_ps(o, _mm256_broadcast_ss(x + n * 32 + 16 + t), odd[n]);
    }
  }
  for (int n = 0; n < N; ++n) {
    float* out = tile + n * kTile;
    _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_add_ps(even[n], odd[n])));
  }
}

inline void all_rows(const __m256i* columns, int64_t n, const float* x, float* tile) {
  int64_t row = 0;
  for (; row + 4 <= n; row += 4) rows_block<4>(columns, x + row * 32, tile + row * kTile);
  for (; row < n; ++row) rows_block<1>(columns, x + row * 32, tile + row * kTile);
}

// 16 pairs of 8 rows as columns.
inline void load_columns(const void* const* weights, int64_t block, int64_t rest, __m256i* columns) {
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

void linear_bf16(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  const float* rows = static_cast<const float*>(packed);
  std::memset(tile, 0, static_cast<std::size_t>(n) * kTile * 4);
  for (int64_t block = 0; block * 32 < k; ++block) {
    for (int m = 0; m < kTile; m += 8) {
      alignas(32) __m256i columns[16];
      load_columns(weights + m, block, k - block * 32, columns);
      all_rows(columns, n, rows + block * n * 32, tile + m);
    }
  }
}

void repack_bf16(const void* const* weights, int64_t k, void* out) {
  for (int64_t block = 0; block * 32 < k; ++block) {
    for (int m = 0; m < kTile; m += 8) {
      alignas(32) __m256i columns[16];
      load_columns(weights + m, block, k - block * 32, columns);
      std::memcpy(static_cast<char*>(out) + block * 1024 + m * 64, columns, sizeof columns);
    }
  }
}

void linear_repacked(const void* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  const float* rows = static_cast<const float*>(packed);
  std::memset(tile, 0, static_cast<std::size_t>(n) * kTile * 4);
  for (int64_t block = 0; block * 32 < k; ++block) {
    for (int m = 0; m < kTile; m += 8) {
      const char* from = static_cast<const char*>(weights) + block * 1024 + m * 64;
      for (int64_t line = 0; line < 512; line += 64) _mm_prefetch(from + kRepackedAhead + line, _MM_HINT_T1);
      all_rows(reinterpret_cast<const __m256i*>(from), n, rows + block * n * 32, tile + m);
    }
  }
}

}  // namespace
