// 16 lines of 16 numbers of 32 bits, or of 16 pairs of bf16, become 16 columns.

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

}  // namespace
