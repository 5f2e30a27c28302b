// What stands between memory and AMX's tiles, with 512-bit registers.

#include "transpose_avx512.inl"

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

// 32 numbers that bf16 holds, as that.
inline void narrow(const float* x, std::uint16_t* line) {
  _mm512_store_si512(line, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
}

// 32 numbers as bf16, rounded. None is subnormal; a NaN stays one.
inline void round_line(V16 first, V16 second, std::uint16_t* line) {
  _mm512_store_si512(line, (__m512i)_mm512_cvtne2ps_pbh(second.x, first.x));
}

// 16 pairs of bf16, of two rows.
inline void pair_up(const std::uint16_t* even, const std::uint16_t* odd, char* line) {
  const __m512i low = _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  const __m512i high = _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
  _mm512_store_si512(line, _mm512_or_si512(low, _mm512_maskz_slli_epi32(kAll, high, 16)));
}

// 16 by 16 floats, in place.
inline void transpose(float* x) {
  __m512i lines[16];
  for (int i = 0; i < 16; ++i) lines[i] = _mm512_load_si512(x + i * 16);
  transpose(lines);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(x + i * 16, lines[i]);
}

// -- low-bit weights as tiles: 16 lines, of a pair of inputs of each of 16 outputs --------------------------------------

// Keeps gcc from reading a constant anew wherever it is used.
inline __m512i kept(__m512i constant) {
  __asm__("" : "+v"(constant));
  return constant;
}

// F: mxfp4, int8, int4, or int2 for any other.
template <Format F>
class Pairs {
 public:
  void put(const Codes& w, int64_t step, int64_t left, char* tile) const {
    if constexpr (F == Format::mxfp4) {
      return put_mxfp4(w, step, tile);
    } else if constexpr (F == Format::int8) {
      if (left >= 32) return put_int8(w, step, tile);
    } else if constexpr (F == Format::int4) {
      if (left >= 32) return put_int4(w, step, tile);
    }
    put_any(w, step, left, tile);
  }

 private:
  [[gnu::noinline]] void put_any(const Codes& w, int64_t step, int64_t left, char* tile) const {
    V16 values[32];
    unrounded_values(w, step, left, values);
    for (int t = 0; t < 16; ++t) put_pair(values[2 * t], values[2 * t + 1], tile + 64 * t);
  }

  // A line of the tile, rounded.
  void put_pair(V16 even, V16 odd, char* line) const {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd.x, even.x);
    _mm512_store_si512(line, _mm512_permutexvar_epi16(interleaved_, both));
  }

  void put_int8(const Codes& w, int64_t step, char* tile) const {
    const V16 scale = load(static_cast<const float*>(w.scales));
    const std::uint8_t* at = w.codes + step * 512;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const Bytes four = load_bytes(at + 64 * j);
      auto value = [&](Ints byte) { return mul(to_floats(byte), scale); };
      put_pair(value(signed_byte_of<2>(four)), value({_mm512_maskz_srai_epi32(kAll, four.x, 24)}), tile + 128 * j);
      put_pair(value(signed_byte_of<0>(four)), value(signed_byte_of<1>(four)), tile + 128 * j + 64);
    }
  }

  void put_int4(const Codes& w, int64_t step, char* tile) const {
    const Group group(w, step * 32 / w.group);
    const std::uint8_t* at = w.codes + step * 256;
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Ints eight = load_ints(at + 64 * c);
      auto value = [&](Ints code) { return mul(sub(pick(as_floats({numbers_}), code), group.zero), group.scale); };
      put_pair(value(right<16>(eight)), value(right<24>(eight)), tile + 256 * c);
      put_pair(value(eight), value(right<8>(eight)), tile + 256 * c + 64);
      put_pair(value(right<20>(eight)), value(right<28>(eight)), tile + 256 * c + 128);
      put_pair(value(right<4>(eight)), value(right<12>(eight)), tile + 256 * c + 192);
    }
  }

  // A table gives a value times 2^60 with its sign as bf16, and powers of two are taken off its exponent, as far as it goes:
  // zero stays zero. Scales are 2^-60 to 2^60, or a weight is refused. Which code stands where: docs/formats.md.
  void put_mxfp4(const Codes& w, int64_t step, char* tile) const {
    const __m128i powers =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const std::uint8_t*>(w.scales) + step * kTile));
    const __m512i less = _mm512_sub_epi32(top_, _mm512_maskz_cvtepu8_epi32(kAll, powers));
    const __m512i lower = _mm512_maskz_slli_epi32(kAll, less, 7);
    const __m512i both = _mm512_or_si512(lower, _mm512_maskz_slli_epi32(kAll, lower, 16));
    const std::uint8_t* at = w.codes + step * 256;
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i codes = _mm512_loadu_si512(at + 64 * c);
      auto line = [&](int i, __m512i index) {
        const __m512i values = _mm512_permutexvar_epi16(index, table_);
        _mm512_store_si512(tile + 256 * c + 64 * i, _mm512_subs_epu16(values, both));
      };
      line(0, _mm512_maskz_multishift_epi64_epi8(~0ull, starts_[0], codes));
      // the lower bytes' lower halves, which the processor's other port can bring into place
      line(1, _mm512_mask_blend_epi16(0xaaaaaaaa, codes, _mm512_maskz_slli_epi32(kAll, codes, 8)));
      line(2, _mm512_maskz_multishift_epi64_epi8(~0ull, starts_[1], codes));
      line(3, _mm512_maskz_multishift_epi64_epi8(~0ull, starts_[2], codes));
    }
  }

  const __m512i table_ = kept(_mm512_set4_epi64(  // of 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same below zero, twice
      static_cast<long long>(0xdec0de80de40de00), static_cast<long long>(0xddc0dd80dd000000), 0x5ec05e805e405e00,
      0x5dc05d805d000000));
  // of two outputs' codes, where those of a pair begin: bit 16 and 24 of each, 20 and 28, 4 and 12
  const __m512i starts_[3] = {kept(_mm512_set1_epi64(0x0038003000180010)), kept(_mm512_set1_epi64(0x003c0034001c0014)),
                              kept(_mm512_set1_epi64(0x002c0024000c0004))};
  const __m512i interleaved_ = kept(_mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                                     23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0));
  const __m512i numbers_ = kept(_mm512_castps_si512(
      _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)));  // what a code of four bits means as a float
  const __m512i top_ = kept(_mm512_set1_epi32(60 + 127));
};

}  // namespace
