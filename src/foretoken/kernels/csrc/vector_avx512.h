// 16 floats in one 512-bit register. Masked forms stand where gcc 12 warns of its own header's plain ones.
#pragma once

#include <immintrin.h>

#include "bits.h"

namespace {

struct V16 {
  __m512 x;
};

constexpr __mmask16 kAll = 0xffff;

inline __mmask16 first_lanes(std::int64_t n) {
  return n >= 16 ? kAll : static_cast<__mmask16>((1u << static_cast<unsigned>(n)) - 1u);
}
inline V16 set1(float a) { return {_mm512_set1_ps(a)}; }
inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline V16 load(const float* p, std::int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline V16 widen_bf16(__m256i h) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, h), 16))};
}
inline V16 load_bf16(const std::uint16_t* p) { return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline V16 load_bf16(const std::uint16_t* p, std::int64_t n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline V16 load_fp16(const std::uint16_t* p) {
  return {_mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline V16 load_fp16(const std::uint16_t* p, std::int64_t n) {
  return {_mm512_maskz_cvtph_ps(kAll, _mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
inline void store(float* p, V16 a) { _mm512_storeu_ps(p, a.x); }
inline void store(float* p, V16 a, std::int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.x); }
inline V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.x, b.x)}; }
inline V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.x, b.x)}; }
inline V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.x, b.x)}; }
inline V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.x, b.x)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
inline V16 min(V16 a, V16 b) { return {_mm512_maskz_min_ps(kAll, a.x, b.x)}; }
inline V16 max(V16 a, V16 b) { return {_mm512_maskz_max_ps(kAll, a.x, b.x)}; }
inline V16 keep(V16 a, V16 otherwise, int from, int to) {
  const __mmask16 mask = static_cast<__mmask16>(first_lanes(to) & ~((1u << static_cast<unsigned>(from)) - 1u));
  return {_mm512_mask_mov_ps(otherwise.x, mask, a.x)};
}
inline V16 times_power_of_two(V16 y, V16 n, V16, V16 x, float limit) {
  return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x.x, _mm512_set1_ps(limit), _CMP_NLT_UQ), y.x, n.x)};
}
inline bool any_nan(V16 a) { return _mm512_cmp_ps_mask(a.x, a.x, _CMP_UNORD_Q) != 0; }
template <int H>
inline __m256 half(__m512 a) {
  return _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd(a), H));
}
inline float sum(V16 a) {
  const __m256 eight = _mm256_add_ps(half<0>(a.x), half<1>(a.x));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(V16 a) {
  const __m256 eight = _mm256_max_ps(half<0>(a.x), half<1>(a.x));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline unsigned above(V16 a, V16 b) { return _mm512_cmp_ps_mask(a.x, b.x, _CMP_GT_OQ); }
inline V16 cut_below(V16 a, float limit) {
  return {_mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()),
                             _mm512_cmp_ps_mask(a.x, _mm512_set1_ps(limit), _CMP_GE_OQ), a.x)};
}

struct Words {
  __m512i x;
};

inline Words words(std::uint64_t a) { return {_mm512_set1_epi64(static_cast<long long>(a))}; }
inline Words load(const std::uint64_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(std::uint64_t* p, Words a) { _mm512_storeu_si512(p, a.x); }
inline Words plus(Words a, Words b) { return {_mm512_add_epi64(a.x, b.x)}; }
inline Words product(Words a, Words b) { return {_mm512_maskz_mul_epu32(0xff, a.x, b.x)}; }
inline Words mixed(Words a, Words b, Words c) {
  return {_mm512_ternarylogic_epi64(_mm512_maskz_srli_epi64(0xff, a.x, 32), b.x, c.x, 0x96)};
}
inline unsigned at_most(Words even, Words odd, V16 bound) {
  const __m512i both = _mm512_mask_shuffle_epi32(even.x, 0xaaaa, odd.x, _MM_PERM_CCAA);
  const __m512 upper = _mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_srli_epi32(kAll, both, 8));
  return _mm512_cmp_ps_mask(_mm512_maskz_cvtepi32_ps(kAll, _mm512_castps_si512(upper)), bound.x, _CMP_LE_OQ);
}

// -- four bytes each of 16 outputs, as codes of low-bit weights lie ---------------------------------------------------

struct Bytes {
  __m512i x;
};
struct Ints {  // 16 of 32 bits
  __m512i x;
};

inline Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes table16(const std::uint8_t* values) {
  return {_mm512_maskz_broadcast_i32x4(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(values)))};
}
template <int kShift>
inline Bytes bits(Bytes a, int mask) {
  const __m512i shifted = kShift ? _mm512_srli_epi16(a.x, kShift) : a.x;
  return {_mm512_and_si512(shifted, _mm512_set1_epi8(static_cast<char>(mask)))};
}
template <int kShift>
inline Bytes up(Bytes a) {
  return {_mm512_slli_epi16(a.x, kShift)};
}
inline Bytes either(Bytes a, Bytes b) { return {_mm512_or_si512(a.x, b.x)}; }
inline Bytes lookup(Bytes table, Bytes index) { return {_mm512_shuffle_epi8(table.x, index.x)}; }
template <int B>
inline Ints byte_of(Bytes a) {  // without a sign
  return {_mm512_and_si512(_mm512_maskz_srli_epi32(kAll, a.x, 8 * B), _mm512_set1_epi32(0xff))};
}
template <int B>
inline Ints signed_byte_of(Bytes a) {
  return {_mm512_maskz_srai_epi32(kAll, _mm512_maskz_slli_epi32(kAll, a.x, 24 - 8 * B), 24)};
}
// 32 whole numbers of at most 127 in size, to each of which 1.5 * 2^23 was added, as signed bytes: of each four the third, the
// fourth, the first and the second.
inline void store_bytes(V16 a, V16 b, void* to) {
  const __m128i first = _mm512_maskz_cvtepi32_epi8(kAll, _mm512_castps_si512(a.x));
  const __m128i second = _mm512_maskz_cvtepi32_epi8(kAll, _mm512_castps_si512(b.x));
  const __m128i order = _mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2);
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm_shuffle_epi8(first, order));
  _mm_storeu_si128(static_cast<__m128i*>(to) + 1, _mm_shuffle_epi8(second, order));
}
inline Ints ints(std::int32_t a) { return {_mm512_set1_epi32(a)}; }
inline Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Ints load_small(const std::uint8_t* p) {
  return {_mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints plus(Ints a, Ints b) { return {_mm512_add_epi32(a.x, b.x)}; }
inline Ints masked(Ints a, std::uint32_t mask) {
  return {_mm512_and_si512(a.x, _mm512_set1_epi32(static_cast<int>(mask)))};
}
template <int kShift>
inline Ints left(Ints a) {
  return {_mm512_maskz_slli_epi32(kAll, a.x, kShift)};
}
template <int kShift>
inline Ints right(Ints a) {
  return {_mm512_maskz_srli_epi32(kAll, a.x, kShift)};
}
inline V16 as_floats(Ints a) { return {_mm512_castsi512_ps(a.x)}; }
inline Ints as_ints(V16 a) { return {_mm512_castps_si512(a.x)}; }
// Of 16 floats, those that the lowest four bits of some numbers name.
inline V16 pick(V16 table, Ints index) { return {_mm512_maskz_permutexvar_ps(kAll, index.x, table.x)}; }
inline V16 to_floats(Ints a) { return {_mm512_maskz_cvtepi32_ps(kAll, a.x)}; }
inline V16 round_bf16(V16 a) {  // finite numbers
  const __m512i u = _mm512_castps_si512(a.x);
  const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, u, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  return as_floats(masked({up}, 0xffff0000u));
}

#if defined(__AVX512VNNI__)
#define FORETOKEN_WIDE_DOT
constexpr std::int32_t kInt8Excess = 128;  // what `flipped` adds to bytes of int8
constexpr int kCodeRows = 4, kCodeBlocks = 2;  // of low-bit weights: rows at once, and blocks of outputs side by side
// Signed bytes plus 128, as unsigned ones.
inline Bytes flipped(Bytes a) { return {_mm512_xor_si512(a.x, _mm512_set1_epi8(static_cast<char>(0x80)))}; }
// sums + the products of four unsigned bytes with the four signed ones at x.
inline Ints dot(Ints sums, Bytes w, const std::int32_t* x) {
  return {_mm512_dpbusd_epi32(sums.x, w.x, _mm512_set1_epi32(*x))};
}
// The same of four signed bytes and four unsigned ones at x.
inline Ints dot_positive(Ints sums, Bytes w, const std::int32_t* x) {
  return {_mm512_dpbusd_epi32(sums.x, _mm512_set1_epi32(*x), w.x)};
}
constexpr int kCodedTiles = 2, kCodedRows = 6;  // of attention over bytes: tiles of places or numbers, and queries, at once
#else
constexpr std::int32_t kInt8Excess = 0;
constexpr int kCodeRows = 8, kCodeBlocks = 1;
// For several columns to be added before they are widened: the sums of two products each, in 16 bits.
inline Bytes pair_dot(Bytes w, const std::int32_t* x) { return {_mm512_maddubs_epi16(w.x, _mm512_set1_epi32(*x))}; }
inline Bytes plus_pairs(Bytes a, Bytes b) { return {_mm512_add_epi16(a.x, b.x)}; }
inline Ints widen_pairs(Bytes a) { return {_mm512_madd_epi16(a.x, _mm512_set1_epi16(1))}; }
// sums + the products of four signed bytes with those at x.
inline Ints dot_signed(Ints sums, Bytes w, const std::int32_t* x) {
  const __m512i four = _mm512_set1_epi32(*x);
  auto odd = [](__m512i a) { return _mm512_srai_epi16(a, 8); };
  auto even = [&](__m512i a) { return odd(_mm512_slli_epi16(a, 8)); };
  const __m512i a = _mm512_madd_epi16(even(w.x), even(four)), b = _mm512_madd_epi16(odd(w.x), odd(four));
  return {_mm512_add_epi32(sums.x, _mm512_add_epi32(a, b))};
}
#endif

constexpr int kOutputs = 4, kRows = 4, kQueries = 4, kChunks = 4, kBlocks = 2, kValueRows = 8;  // what fits into 32 registers
constexpr int kRegister = 64;  // bytes

}  // namespace
