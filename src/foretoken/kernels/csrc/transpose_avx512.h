// 16 lines of 16 pairs of bf16 become 16 columns of pairs: one output a lane.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

inline void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_maskz_unpacklo_epi32(0xffff, r[i], r[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_maskz_unpacklo_epi64(0xff, t[i], t[i + 2]);
    r[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, t[i], t[i + 2]);
    r[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {  // line 4 g + c holds columns c, c + 4, c + 8, c + 12 of rows 4 g to 4 g + 3
    const __m512i low = _mm512_maskz_shuffle_i32x4(0xffff, r[c], r[4 + c], 0x88);
    const __m512i low_odd = _mm512_maskz_shuffle_i32x4(0xffff, r[c], r[4 + c], 0xdd);
    const __m512i high = _mm512_maskz_shuffle_i32x4(0xffff, r[8 + c], r[12 + c], 0x88);
    const __m512i high_odd = _mm512_maskz_shuffle_i32x4(0xffff, r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_maskz_shuffle_i32x4(0xffff, low, high, 0x88);
    t[8 + c] = _mm512_maskz_shuffle_i32x4(0xffff, low, high, 0xdd);
    t[4 + c] = _mm512_maskz_shuffle_i32x4(0xffff, low_odd, high_odd, 0x88);
    t[12 + c] = _mm512_maskz_shuffle_i32x4(0xffff, low_odd, high_odd, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Bytes from 16 rows to the 16 behind them, if rows lie at equal distances; else something harmless.
inline std::int64_t next_rows(const void* const* weights) {
  return (static_cast<const char*>(weights[15]) - static_cast<const char*>(weights[0])) / 15 * 16;
}

// Fetches one line ahead for 16 rows of `blocks` lines, of which `block` is being read: the i-th call of 16. Four lines of a
// row follow each other, which memory likes; behind the end of a row comes the row 16 further on, `next` bytes away. Short
// rows are keys, which attention fetches itself.
inline void fetch_ahead(const void* const* weights, int i, std::int64_t block, std::int64_t blocks, std::int64_t next) {
  constexpr std::int64_t kAhead = 24;
  if (blocks < kAhead) return;
  const std::int64_t row = (block & 3) * 4 + i / 4, line = (block & ~std::int64_t{3}) + kAhead + (i & 3);
  const std::int64_t past = line < blocks ? 0 : next - blocks * 64;
  _mm_prefetch(static_cast<const char*>(weights[row]) + line * 64 + past, _MM_HINT_T1);
}

constexpr std::int64_t kRepackedAhead = 8 << 10;  // bytes of repacked weights that are fetched ahead

// 32 numbers of a weight's row, with zeros behind its end.
inline __m512i load_line(const void* row, std::int64_t block, std::int64_t rest) {
  const std::uint16_t* at = static_cast<const std::uint16_t*>(row) + block * 32;
  if (rest >= 32) return _mm512_loadu_si512(at);
  return _mm512_maskz_loadu_epi16((1u << static_cast<unsigned>(rest)) - 1u, at);
}

}  // namespace
