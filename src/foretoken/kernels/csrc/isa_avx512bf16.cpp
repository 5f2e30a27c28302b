// AVX-512 with products of pairs (vdpbf16ps): two steps of a sum at once.
//
// The instruction adds the product of a pair's upper halves, rounds, then adds that of the lower halves, and rounds. The
// format sums even and odd inputs apart, so pairs are made of neighbours in one of those sums: (2, 0), (6, 4), ..., and
// (3, 1), (7, 5), ... Then each instruction is two steps of one sum, in the format's own order. That a machine's
// instruction rounds so is looked at before this instruction set is used (`agrees` in agreement.cpp).
#include "vector_avx512.h"

#include "isa.inl"

#include "blocks_avx512.inl"

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

struct Pairs {  // two steps of a sum at once
  using Number = std::int32_t;  // a pair
  static constexpr int64_t kNumbers = 16;

  static __m512i arranged(__m512i line) { return pair_up(line); }

  // Columns 0, 1, 4, 5, ... are pairs of even inputs; 2, 3, 6, 7, ... of odd ones. Both sums in turn: an instruction waits
  // six cycles for the last one of its sum.
  static constexpr int nth(int i) { return (i & ~3) | (i & 1) << 1 | (i & 2) >> 1; }

  // The inputs that are the halves of pair t.
  static constexpr int upper(int t) { return t / 4 * 8 + t % 2 * 4 + t / 2 % 2; }
  static constexpr int lower(int t) { return upper(t) + 2; }

  static void multiply(int t, __m512i column, const std::int32_t* x, __m512* even, __m512* odd) {
    __m512* sum = t & 2 ? odd : even;
    *sum = _mm512_dpbf16_ps(*sum, (__m512bh)column, (__m512bh)_mm512_set1_epi32(x[t]));
  }
};

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  linear_blocks<Pairs>(weights, blocks, k, rows, results);
}

// -- low-bit weights: their values as columns of pairs --------------------------------------------------------------

std::size_t bytes_values(int64_t n, int64_t k) { return bytes_bf16(n, k); }

void pack_values(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  pack_bf16(x, stride, from, to, n, k, packed);
}

// Four bits at a time: a table gives a value times 2^60 with its sign, and the powers of two are taken off its exponent,
// as far as it goes: zero stays zero.
inline void mxfp4_columns(const Codes& w, int64_t block, __m512i columns[16]) {
  alignas(64) constexpr std::uint16_t kValues[32] = {
      0, 0x5d00, 0x5d80, 0x5dc0, 0x5e00, 0x5e40, 0x5e80, 0x5ec0, 0, 0xdd00, 0xdd80, 0xddc0, 0xde00, 0xde40, 0xde80, 0xdec0,
      0, 0x5d00, 0x5d80, 0x5dc0, 0x5e00, 0x5e40, 0x5e80, 0x5ec0, 0, 0xdd00, 0xdd80, 0xddc0, 0xde00, 0xde40, 0xde80, 0xdec0};
  const __m512i table = _mm512_load_si512(kValues);
  const std::uint8_t* at = w.codes + block * 256;
  Fetching<Format::mxfp4>(1).behind(at);
  const __m512i power = _mm512_sub_epi32(
      _mm512_set1_epi32(60 + 127), load_small(static_cast<const std::uint8_t*>(w.scales) + block * kTile).x);
  const __m512i lower = _mm512_maskz_slli_epi32(kAll, power, 7);
  const __m512i less = _mm512_or_si512(lower, _mm512_maskz_slli_epi32(kAll, lower, 16));
  for (int c = 0; c < 4; ++c) {
    const __m512i codes = _mm512_loadu_si512(at + 64 * c);
    auto column = [&](__m512i index) { return _mm512_subs_epu16(_mm512_permutexvar_epi16(index, table), less); };
    columns[4 * c] = column(codes);
    columns[4 * c + 1] = column(_mm512_srli_epi16(codes, 4));
    columns[4 * c + 2] = column(_mm512_srli_epi16(codes, 8));
    columns[4 * c + 3] = column(_mm512_srli_epi16(codes, 12));
  }
}

inline void value_columns(const Codes& w, int64_t block, int64_t left, __m512i columns[16]) {
  if (w.format == Format::mxfp4) return mxfp4_columns(w, block, columns);
  V16 values[32];
  unrounded_values(w, block, left, values);
  alignas(64) constexpr std::uint16_t kInterleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kInterleaved);
  auto pair = [&](int lower, int upper) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(values[upper].x, values[lower].x);
    return _mm512_permutexvar_epi16(order, both);
  };
  for (int c = 0; c < 4; ++c) {
    columns[4 * c] = pair(8 * c + 2, 8 * c);
    columns[4 * c + 1] = pair(8 * c + 6, 8 * c + 4);
    columns[4 * c + 2] = pair(8 * c + 3, 8 * c + 1);
    columns[4 * c + 3] = pair(8 * c + 7, 8 * c + 5);
  }
}

void linear_values(const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const Groups groups(rows.count(), kMostRows);
  clear(blocks, rows.count(), results);
  by_size<kMostRows>(groups, [&](auto size) {
    for (int64_t block = 0; block < blocks; ++block) {
      const Results out = results.block(block);
      const Codes one = codes_at(w, block, k);
      const std::int32_t* x = first_of<Pairs>(rows);
      for (int64_t line = 0; line < blocks_of(k); ++line, x += rows.n * Pairs::kNumbers) {
        __m512i columns[16];
        value_columns(one, line, k - line * 32, columns);
        all_rows_here<Pairs, decltype(size)::value>(columns, groups, x, out);
      }
    }
  });
}

}  // namespace

#include "values_avx512bf16.inl"
#include "attention_avx512bf16.inl"

const foretoken::Kernels* foretoken::kernels_avx512bf16() {
  static constexpr Kernels table =
      table_of("avx512bf16", 2, {}, kNeverMany, repack_blocks<Pairs>, nullptr, linear_repacked<Pairs>, weigh_by_pairs, attend,
               kAttendFrom);
  return &table;
}
