// 16 floats in two 256-bit registers.
#pragma once

#include <immintrin.h>

#include "bits.h"

namespace {

struct V16 {
  __m256 lo, hi;
};

inline __m256i first_lanes(std::int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline V16 set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline V16 load(const float* p, std::int64_t n) {
  if (n >= 16) return load(p);
  return {_mm256_maskload_ps(p, first_lanes(n)),
          n > 8 ? _mm256_maskload_ps(p + 8, first_lanes(n - 8)) : _mm256_setzero_ps()};
}
inline __m256 widen_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
inline V16 load_bf16(const std::uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline V16 load_bf16(const std::uint16_t* p, std::int64_t n) {
  return n >= 16 ? load_bf16(p) : load_bf16(Part<std::uint16_t>(p, n).x);
}
inline V16 load_fp16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline V16 load_fp16(const std::uint16_t* p, std::int64_t n) {
  return n >= 16 ? load_fp16(p) : load_fp16(Part<std::uint16_t>(p, n).x);
}
inline void store(float* p, V16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline void store(float* p, V16 a, std::int64_t n) {
  if (n >= 16) return store(p, a);
  _mm256_maskstore_ps(p, first_lanes(n), a.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, first_lanes(n - 8), a.hi);
}
inline V16 add(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline V16 sub(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline V16 mul(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline V16 div(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline V16 min(V16 a, V16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline V16 keep(V16 a, V16 otherwise, int from, int to) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), more = _mm256_add_epi32(lanes, _mm256_set1_epi32(8));
  const __m256i f = _mm256_set1_epi32(from), t = _mm256_set1_epi32(to);
  const __m256i lo = _mm256_andnot_si256(_mm256_cmpgt_epi32(f, lanes), _mm256_cmpgt_epi32(t, lanes));
  const __m256i hi = _mm256_andnot_si256(_mm256_cmpgt_epi32(f, more), _mm256_cmpgt_epi32(t, more));
  return {_mm256_blendv_ps(otherwise.lo, a.lo, _mm256_castsi256_ps(lo)),
          _mm256_blendv_ps(otherwise.hi, a.hi, _mm256_castsi256_ps(hi))};
}
inline __m256 times_power_of_two(__m256 y, __m256 shifted, __m256 x, __m256 limit) {
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000 - 127));
  const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), _mm256_mul_ps(y, power));
}
inline V16 times_power_of_two(V16 y, V16, V16 shifted, V16 x, float limit) {
  const __m256 l = _mm256_set1_ps(limit);
  return {times_power_of_two(y.lo, shifted.lo, x.lo, l), times_power_of_two(y.hi, shifted.hi, x.hi, l)};
}
inline bool any_nan(V16 a) {
  return _mm256_movemask_ps(
             _mm256_or_ps(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))) != 0;
}
inline float sum(V16 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(V16 a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline unsigned lanes_of(__m256 lo, __m256 hi) {
  return static_cast<unsigned>(_mm256_movemask_ps(lo)) | static_cast<unsigned>(_mm256_movemask_ps(hi)) << 8;
}
inline unsigned above(V16 a, V16 b) {
  return lanes_of(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
}
inline V16 cut_below(V16 a, float limit) {
  const __m256 l = _mm256_set1_ps(limit), never = _mm256_set1_ps(-__builtin_inff());
  return {_mm256_blendv_ps(never, a.lo, _mm256_cmp_ps(a.lo, l, _CMP_GE_OQ)),
          _mm256_blendv_ps(never, a.hi, _mm256_cmp_ps(a.hi, l, _CMP_GE_OQ))};
}

struct Words {
  __m256i lo, hi;
};

inline Words words(std::uint64_t a) {
  const __m256i x = _mm256_set1_epi64x(static_cast<long long>(a));
  return {x, x};
}
inline Words load(const std::uint64_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 4))};
}
inline void store(std::uint64_t* p, Words a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 4), a.hi);
}
inline Words plus(Words a, Words b) { return {_mm256_add_epi64(a.lo, b.lo), _mm256_add_epi64(a.hi, b.hi)}; }
inline Words product(Words a, Words b) { return {_mm256_mul_epu32(a.lo, b.lo), _mm256_mul_epu32(a.hi, b.hi)}; }
inline __m256i mixed(__m256i a, __m256i b, __m256i c) {
  return _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(b, c));
}
inline Words mixed(Words a, Words b, Words c) { return {mixed(a.lo, b.lo, c.lo), mixed(a.hi, b.hi, c.hi)}; }
inline __m256 at_most(__m256i even, __m256i odd, __m256 bound) {
  const __m256i both = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  const __m256 upper = _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 8));
  return _mm256_cmp_ps(_mm256_cvtepi32_ps(_mm256_castps_si256(upper)), bound, _CMP_LE_OQ);
}
inline unsigned at_most(Words even, Words odd, V16 bound) {
  return lanes_of(at_most(even.lo, odd.lo, bound.lo), at_most(even.hi, odd.hi, bound.hi));
}

// -- four bytes each of 16 outputs, as codes of low-bit weights lie ---------------------------------------------------

struct Bytes {
  __m256i lo, hi;
};
struct Ints {  // 16 of 32 bits
  __m256i lo, hi;
};

inline Bytes load_bytes(const void* p) {
  const __m256i* at = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline Bytes table16(const std::uint8_t* values) {
  const __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  return {x, x};
}
template <int kShift>
inline Bytes bits(Bytes a, int mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, kShift), m), _mm256_and_si256(_mm256_srli_epi16(a.hi, kShift), m)};
}
template <int kShift>
inline Bytes up(Bytes a) {
  return {_mm256_slli_epi16(a.lo, kShift), _mm256_slli_epi16(a.hi, kShift)};
}
inline Bytes either(Bytes a, Bytes b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
inline Bytes lookup(Bytes table, Bytes index) {
  return {_mm256_shuffle_epi8(table.lo, index.lo), _mm256_shuffle_epi8(table.hi, index.hi)};
}
template <int B>
inline Ints byte_of(Bytes a) {  // without a sign
  const __m256i m = _mm256_set1_epi32(0xff);
  return {_mm256_and_si256(_mm256_srli_epi32(a.lo, 8 * B), m), _mm256_and_si256(_mm256_srli_epi32(a.hi, 8 * B), m)};
}
template <int B>
inline Ints signed_byte_of(Bytes a) {
  return {_mm256_srai_epi32(_mm256_slli_epi32(a.lo, 24 - 8 * B), 24),
          _mm256_srai_epi32(_mm256_slli_epi32(a.hi, 24 - 8 * B), 24)};
}
inline void store_bytes(V16 a, V16 b, void* to) {
  auto lowest = [](__m256 x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0xff)); };
  const __m256i halves =  // fours 0 and 2 of a and of b, then 1 and 3
      _mm256_packus_epi16(_mm256_packus_epi32(lowest(a.lo), lowest(a.hi)), _mm256_packus_epi32(lowest(b.lo), lowest(b.hi)));
  const __m256i fours = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m256i order = _mm256_broadcastsi128_si256(_mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_shuffle_epi8(fours, order));
}
inline Ints ints(std::int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
inline Ints load_ints(const void* p) {
  const Bytes b = load_bytes(p);
  return {b.lo, b.hi};
}
inline Ints load_small(const std::uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
inline Ints plus(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline Ints masked(Ints a, std::uint32_t mask) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(mask));
  return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
}
template <int kShift>
inline Ints left(Ints a) {
  return {_mm256_slli_epi32(a.lo, kShift), _mm256_slli_epi32(a.hi, kShift)};
}
template <int kShift>
inline Ints right(Ints a) {
  return {_mm256_srli_epi32(a.lo, kShift), _mm256_srli_epi32(a.hi, kShift)};
}
inline V16 as_floats(Ints a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline Ints as_ints(V16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
// Of 16 floats, those that the lowest four bits of some numbers name.
inline __m256 pick(V16 table, __m256i index) {
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.lo, index), _mm256_permutevar8x32_ps(table.hi, index),
                          _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
inline V16 pick(V16 table, Ints index) { return {pick(table, index.lo), pick(table, index.hi)}; }
inline V16 to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline __m256i round_bf16(__m256i u) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}
inline V16 round_bf16(V16 a) {  // finite numbers
  const Ints u = as_ints(a);
  return as_floats(masked({round_bf16(u.lo), round_bf16(u.hi)}, 0xffff0000u));
}

#if defined(__AVXVNNI__) || defined(FORETOKEN_AVXVNNI_TWIN)
#define FORETOKEN_WIDE_DOT
constexpr std::int32_t kInt8Excess = 128;  // what `flipped` adds to bytes of int8
// Signed bytes plus 128, as unsigned ones.
inline Bytes flipped(Bytes a) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(0x80));
  return {_mm256_xor_si256(a.lo, m), _mm256_xor_si256(a.hi, m)};
}
// sums + the products of four unsigned bytes with the four signed ones at x.
inline __m256i dot(__m256i sums, __m256i w, __m256i x) {
#if defined(FORETOKEN_AVXVNNI_TWIN)
  return _mm256_dpbusd_epi32(sums, w, x);
#else
  return _mm256_dpbusd_avx_epi32(sums, w, x);
#endif
}
inline Ints dot(Ints sums, Bytes w, const std::int32_t* x) {
  const __m256i four = _mm256_set1_epi32(*x);
  return {dot(sums.lo, w.lo, four), dot(sums.hi, w.hi, four)};
}
// The same of four signed bytes and four unsigned ones at x.
inline Ints dot_positive(Ints sums, Bytes w, const std::int32_t* x) {
  const __m256i four = _mm256_set1_epi32(*x);
  return {dot(sums.lo, four, w.lo), dot(sums.hi, four, w.hi)};
}
constexpr int kCodedTiles = 1, kCodedRows = 3;  // of attention over bytes: tiles of places or numbers, and queries, at once
#else
constexpr std::int32_t kInt8Excess = 0;
// For several columns to be added before they are widened: the sums of two products each, in 16 bits.
inline Bytes pair_dot(Bytes w, const std::int32_t* x) {
  const __m256i four = _mm256_set1_epi32(*x);
  return {_mm256_maddubs_epi16(w.lo, four), _mm256_maddubs_epi16(w.hi, four)};
}
inline Bytes plus_pairs(Bytes a, Bytes b) { return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)}; }
inline Ints widen_pairs(Bytes a) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(a.lo, one), _mm256_madd_epi16(a.hi, one)};
}
// sums + the products of four signed bytes, -128 to 127, with those at x, -127 to 127.
inline __m256i dot_signed(__m256i sums, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Ints dot_signed(Ints sums, Bytes w, const std::int32_t* x) {
  const __m256i four = _mm256_set1_epi32(*x);
  return {dot_signed(sums.lo, w.lo, four), dot_signed(sums.hi, w.hi, four)};
}
#endif

// what fits into 16 registers
constexpr int kOutputs = 2, kRows = 2, kQueries = 2, kChunks = 2, kBlocks = 1;
constexpr int kCodeRows = 2, kValueRows = 2, kCodeBlocks = 1;  // of low-bit weights
constexpr int kRegister = 32;  // bytes

}  // namespace
