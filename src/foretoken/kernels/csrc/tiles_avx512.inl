// What stands between memory and AMX's tiles, with 512-bit registers.

namespace {

// Sixteen floats, of which the upper halves are rounded to the nearest, ties to even; a NaN stays one.
inline __m512i upper_halves(__m512 x) {
  const __m512i u = _mm512_castps_si512(x), upper = _mm512_maskz_srli_epi32(kAll, u, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_maskz_srli_epi32(kAll, _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
}

// 32 inputs, of which `left` are there, as bf16.
inline void line_of(const float* x, int64_t left, std::uint16_t* line) {
  const __m512i a = upper_halves(load(x, left).x), b = upper_halves(left > 16 ? load(x + 16, left - 16).x : set1(0.0f).x);
  _mm256_store_si256(reinterpret_cast<__m256i*>(line), _mm512_maskz_cvtepi32_epi16(kAll, a));
  _mm256_store_si256(reinterpret_cast<__m256i*>(line + 16), _mm512_maskz_cvtepi32_epi16(kAll, b));
}

// 16 by 16 floats.
inline void transpose(float* x) {
  __m512 r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_ps(x + i * 16);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_maskz_unpacklo_ps(kAll, r[i], r[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_ps(kAll, r[i], r[i + 1]);
  }
  auto low = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, _mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  auto high = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, _mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_maskz_shuffle_f32x4(kAll, r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_maskz_shuffle_f32x4(kAll, r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_maskz_shuffle_f32x4(kAll, r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_maskz_shuffle_f32x4(kAll, r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_store_ps(x + i * 16, _mm512_maskz_shuffle_f32x4(kAll, t[i], t[i + 8], 0x88));
    _mm512_store_ps(x + (i + 4) * 16, _mm512_maskz_shuffle_f32x4(kAll, t[i + 4], t[i + 12], 0x88));
    _mm512_store_ps(x + (i + 8) * 16, _mm512_maskz_shuffle_f32x4(kAll, t[i], t[i + 8], 0xdd));
    _mm512_store_ps(x + (i + 12) * 16, _mm512_maskz_shuffle_f32x4(kAll, t[i + 4], t[i + 12], 0xdd));
  }
}

// -- low-bit weights as tiles: 16 lines, of a pair of inputs of each of 16 outputs --------------------------------------

// mxfp4. A table gives a value times 2^126 with its sign as bf16, and powers of two are taken off its exponent, as far
// as it goes: zero stays zero. Which code stands where: docs/formats.md.
inline void pairs_of_mxfp4(const Codes& w, int64_t step, char* tile) {
  alignas(64) constexpr std::uint16_t kValues[32] = {
      0, 0x7e00, 0x7e80, 0x7ec0, 0x7f00, 0x7f40, 0x7f80, 0x7fc0, 0, 0xfe00, 0xfe80, 0xfec0, 0xff00, 0xff40, 0xff80, 0xffc0,
      0, 0x7e00, 0x7e80, 0x7ec0, 0x7f00, 0x7f40, 0x7f80, 0x7fc0, 0, 0xfe00, 0xfe80, 0xfec0, 0xff00, 0xff40, 0xff80, 0xffc0};
  const __m512i table = _mm512_load_si512(kValues);
  const std::uint8_t* at = w.codes + step * 256;
  fetch_codes<Format::mxfp4>(at, 1);
  const Ints power = load_small(static_cast<const std::uint8_t*>(w.scales) + step * kTile);
  const __m512i lower = _mm512_maskz_slli_epi32(kAll, _mm512_sub_epi32(_mm512_set1_epi32(126 + 127), power.x), 7);
  const __m512i less = _mm512_or_si512(lower, _mm512_maskz_slli_epi32(kAll, lower, 16));
  // of two outputs' codes, where those of a pair begin: bit 16 and 24 of each, 0 and 8, 20 and 28, 4 and 12
  const __m512i starts[4] = {_mm512_set1_epi64(0x0038003000180010), _mm512_set1_epi64(0x0028002000080000),
                             _mm512_set1_epi64(0x003c0034001c0014), _mm512_set1_epi64(0x002c0024000c0004)};
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i codes = _mm512_loadu_si512(at + 64 * c);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i index = _mm512_maskz_multishift_epi64_epi8(~0ull, starts[i], codes);
      _mm512_store_si512(tile + 256 * c + 64 * i, _mm512_subs_epu16(_mm512_permutexvar_epi16(index, table), less));
    }
  }
}

// Whether the values of a step of mxfp4 are normal numbers of bf16, whatever the codes.
inline bool all_normal(const Codes& w, int64_t step) {
  const __m128i powers =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const std::uint8_t*>(w.scales) + step * kTile));
  return _mm_cmpgt_epu8_mask(_mm_sub_epi8(powers, _mm_set1_epi8(2)), _mm_set1_epi8(static_cast<char>(250))) == 0;
}

inline void pairs_of(const Codes& w, int64_t step, int64_t left, char* tile) {
  if (w.format == Format::mxfp4 && all_normal(w, step)) return pairs_of_mxfp4(w, step, tile);
  pairs_by_values(w, step, left, tile);
}

}  // namespace
