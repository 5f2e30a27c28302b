// 16 floats in plain C++: what the other instruction sets must equal.
#pragma once

#include "bits.h"

namespace {

#if defined(__aarch64__)
// a * b + c, rounded once: all of these processors have an instruction for it.
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fused_bf16(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
// a * b + c, rounded once. The product is exact in double; the sum is rounded to odd, which the rounding to float cannot
// tell from the exact sum (Boldo and Melquiond 2008).
inline float fused(float a, float b, float c) {
  const double product = static_cast<double>(a) * b, addend = c;
  const double sum = product + addend;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back);
  std::uint64_t u;
  std::memcpy(&u, &sum, sizeof u);
  if (error == error && error != 0.0 && !(u & 1u)) {
    u += ((error > 0.0) == (sum > 0.0)) ? 1u : static_cast<std::uint64_t>(-1);
    double odd;
    std::memcpy(&odd, &u, sizeof odd);
    return static_cast<float>(odd);
  }
  return static_cast<float>(sum);
}

// The same for a and b of bf16. Their product is exact in double, and a sum of two floats that is rounded to double
// and then to float is the sum rounded once (Figueroa 1995).
inline float fused_bf16(float a, float b, float c) { return static_cast<float>(static_cast<double>(a) * b + c); }
#endif

template <class T, int N>
struct Lanes {
  T x[N];

  template <class F>
  static Lanes each(F f) {
    Lanes r;
    for (int i = 0; i < N; ++i) r.x[i] = static_cast<T>(f(i));
    return r;
  }
};

using V16 = Lanes<float, 16>;

inline V16 set1(float a) { return V16::each([&](int) { return a; }); }
inline V16 load(const float* p) { return V16::each([&](int i) { return p[i]; }); }
inline V16 load(const float* p, std::int64_t n) { return V16::each([&](int i) { return i < n ? p[i] : 0.0f; }); }
inline V16 load_bf16(const std::uint16_t* p) { return V16::each([&](int i) { return from_bf16(p[i]); }); }
inline V16 load_bf16(const std::uint16_t* p, std::int64_t n) {
  return V16::each([&](int i) { return i < n ? from_bf16(p[i]) : 0.0f; });
}
inline V16 load_fp16(const std::uint16_t* p) { return V16::each([&](int i) { return from_fp16(p[i]); }); }
inline V16 load_fp16(const std::uint16_t* p, std::int64_t n) {
  return V16::each([&](int i) { return i < n ? from_fp16(p[i]) : 0.0f; });
}
inline void store(float* p, V16 a) { std::memcpy(p, a.x, sizeof a.x); }
inline void store(float* p, V16 a, std::int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = a.x[i];
}
inline V16 add(V16 a, V16 b) { return V16::each([&](int i) { return a.x[i] + b.x[i]; }); }
inline V16 sub(V16 a, V16 b) { return V16::each([&](int i) { return a.x[i] - b.x[i]; }); }
inline V16 mul(V16 a, V16 b) { return V16::each([&](int i) { return a.x[i] * b.x[i]; }); }
inline V16 div(V16 a, V16 b) { return V16::each([&](int i) { return a.x[i] / b.x[i]; }); }
inline V16 fma(V16 a, V16 b, V16 c) { return V16::each([&](int i) { return fused(a.x[i], b.x[i], c.x[i]); }); }
// The second operand where they do not compare: a NaN there stays.
inline V16 min(V16 a, V16 b) { return V16::each([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; }); }
inline V16 max(V16 a, V16 b) { return V16::each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; }); }
inline V16 keep(V16 a, V16 otherwise, int from, int to) {
  return V16::each([&](int i) { return from <= i && i < to ? a.x[i] : otherwise.x[i]; });
}
// y * 2^n, or 0 where x is below a limit; elsewhere -126 <= n <= 127, and `shifted` is 1.5 * 2^23 + n.
inline V16 times_power_of_two(V16 y, V16, V16 shifted, V16 x, float limit) {
  auto power = [&](int i) { return float_of((bits_of(shifted.x[i]) - 0x4b400000u + 127u) << 23); };
  return V16::each([&](int i) { return x.x[i] < limit ? 0.0f : y.x[i] * power(i); });
}
inline bool any_nan(V16 a) {
  bool nan = false;
  for (float v : a.x) nan |= v != v;
  return nan;
}
inline float sum(V16 a) {
  for (int step = 8; step; step /= 2) {
    for (int i = 0; i < step; ++i) a.x[i] += a.x[i + step];
  }
  return a.x[0];
}
inline float largest(V16 a) {
  for (int step = 8; step; step /= 2) {
    for (int i = 0; i < step; ++i) a.x[i] = a.x[i] > a.x[i + step] ? a.x[i] : a.x[i + step];
  }
  return a.x[0];
}
// Lanes in which a is larger, lane 0 in the lowest bit.
inline unsigned above(V16 a, V16 b) {
  unsigned lanes = 0;
  for (int i = 0; i < 16; ++i) lanes |= static_cast<unsigned>(a.x[i] > b.x[i]) << i;
  return lanes;
}
inline V16 cut_below(V16 a, float limit) {
  return V16::each([&](int i) { return a.x[i] >= limit ? a.x[i] : -__builtin_inff(); });
}

// For 32-bit arithmetic in 64 bits: what the upper halves hold is no matter, but in a product.
using Words = Lanes<std::uint64_t, 8>;

inline Words words(std::uint64_t a) { return Words::each([&](int) { return a; }); }
inline Words load(const std::uint64_t* p) { return Words::each([&](int i) { return p[i]; }); }
inline void store(std::uint64_t* p, Words a) { std::memcpy(p, a.x, sizeof a.x); }
inline Words plus(Words a, Words b) { return Words::each([&](int i) { return a.x[i] + b.x[i]; }); }
// Of the lower halves.
inline Words product(Words a, Words b) {
  return Words::each([&](int i) { return (a.x[i] & 0xffffffffu) * (b.x[i] & 0xffffffffu); });
}
// The upper half of a, with b and c.
inline Words mixed(Words a, Words b, Words c) {
  return Words::each([&](int i) { return (a.x[i] >> 32) ^ b.x[i] ^ c.x[i]; });
}
// Lanes of 16 pieces of noise, taken from two words in turn, that are at most some bound: the upper 24 of their 32 bits
// as a float, and that float's bits as a number.
inline unsigned at_most(Words even, Words odd, V16 bound) {
  unsigned lanes = 0;
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t noise = static_cast<std::uint32_t>(i % 2 ? odd.x[i / 2] : even.x[i / 2]);
    const float upper = static_cast<float>(static_cast<std::int32_t>(noise >> 8));
    lanes |= static_cast<unsigned>(static_cast<float>(static_cast<std::int32_t>(bits_of(upper))) <= bound.x[i]) << i;
  }
  return lanes;
}

using Bytes = Lanes<std::uint8_t, 64>;  // four each of 16 outputs, as codes of low-bit weights lie
using Ints = Lanes<std::int32_t, 16>;

inline Bytes load_bytes(const void* p) {
  Bytes r;
  std::memcpy(r.x, p, 64);
  return r;
}
inline Bytes table16(const std::uint8_t* values) { return Bytes::each([&](int i) { return values[i % 16]; }); }
template <int kShift>
inline Bytes bits(Bytes a, int mask) {
  return Bytes::each([&](int i) { return (a.x[i] >> kShift) & mask; });
}
template <int kShift>
inline Bytes up(Bytes a) {  // of small numbers
  return Bytes::each([&](int i) { return a.x[i] << kShift; });
}
inline Bytes either(Bytes a, Bytes b) { return Bytes::each([&](int i) { return a.x[i] | b.x[i]; }); }
inline Bytes lookup(Bytes table, Bytes index) { return Bytes::each([&](int i) { return table.x[index.x[i]]; }); }
template <int B>
inline Ints byte_of(Bytes a) {  // without a sign
  return Ints::each([&](int i) { return a.x[4 * i + B]; });
}
template <int B>
inline Ints signed_byte_of(Bytes a) {
  return Ints::each([&](int i) { return static_cast<std::int8_t>(a.x[4 * i + B]); });
}
// 32 whole numbers of at most 127 in size, to each of which 1.5 * 2^23 was added, as signed bytes: of each four the third, the
// fourth, the first and the second.
inline void store_bytes(V16 a, V16 b, void* to) {
  auto* bytes = static_cast<unsigned char*>(to);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(bits_of((i < 16 ? a : b).x[(i ^ 2) % 16]) & 0xff);
}
inline Ints ints(std::int32_t a) { return Ints::each([&](int) { return a; }); }
inline Ints load_ints(const void* p) {
  Ints r;
  std::memcpy(r.x, p, 64);
  return r;
}
inline Ints load_small(const std::uint8_t* p) { return Ints::each([&](int i) { return p[i]; }); }
inline std::uint32_t word(std::int32_t a) { return static_cast<std::uint32_t>(a); }
inline Ints plus(Ints a, Ints b) { return Ints::each([&](int i) { return word(a.x[i]) + word(b.x[i]); }); }
inline Ints masked(Ints a, std::uint32_t mask) { return Ints::each([&](int i) { return word(a.x[i]) & mask; }); }
template <int kShift>
inline Ints left(Ints a) {
  return Ints::each([&](int i) { return word(a.x[i]) << kShift; });
}
template <int kShift>
inline Ints right(Ints a) {
  return Ints::each([&](int i) { return word(a.x[i]) >> kShift; });
}
inline V16 as_floats(Ints a) { return V16::each([&](int i) { return float_of(word(a.x[i])); }); }
inline Ints as_ints(V16 a) { return Ints::each([&](int i) { return bits_of(a.x[i]); }); }
// Of 16 floats, those that the lowest four bits of some numbers name.
inline V16 pick(V16 table, Ints index) { return V16::each([&](int i) { return table.x[index.x[i] & 15]; }); }
inline V16 to_floats(Ints a) { return V16::each([&](int i) { return static_cast<float>(a.x[i]); }); }
inline V16 round_bf16(V16 a) { return V16::each([&](int i) { return from_bf16(to_bf16(a.x[i])); }); }

#if defined(FORETOKEN_WIDE_DOT_EMULATED)
#define FORETOKEN_WIDE_DOT
constexpr std::int32_t kInt8Excess = 128;  // what `flipped` adds to bytes of int8
// Signed bytes plus 128, as unsigned ones.
inline Bytes flipped(Bytes a) {
  return Bytes::each([&](int i) { return a.x[i] ^ 0x80; });
}
// sums + the products of four bytes with the four at x, of which the first are a W and the others an X.
template <class W, class X>
inline Ints dot_of(Ints sums, Bytes w, const std::int32_t* x) {
  X four[4];
  std::memcpy(four, x, 4);
  return Ints::each([&](int i) {
    std::int32_t sum = sums.x[i];
    for (int b = 0; b < 4; ++b) sum += static_cast<W>(w.x[4 * i + b]) * four[b];
    return sum;
  });
}
inline Ints dot(Ints sums, Bytes w, const std::int32_t* x) { return dot_of<std::uint8_t, std::int8_t>(sums, w, x); }
inline Ints dot_positive(Ints sums, Bytes w, const std::int32_t* x) { return dot_of<std::int8_t, std::uint8_t>(sums, w, x); }
constexpr int kCodedTiles = 2, kCodedRows = 3;  // of attention over bytes: tiles of places or numbers, and queries, at once
#else
constexpr std::int32_t kInt8Excess = 0;
// For several columns to be added before they are widened: the sums of two products each, in 16 bits.
inline std::int16_t pair_at(Bytes a, int i) {
  std::int16_t r;
  std::memcpy(&r, a.x + 2 * i, 2);
  return r;
}
template <class F>
inline Bytes pairs_of(F f) {
  Bytes r;
  for (int i = 0; i < 32; ++i) {
    const std::int16_t pair = static_cast<std::int16_t>(f(i));
    std::memcpy(r.x + 2 * i, &pair, 2);
  }
  return r;
}
inline Bytes pair_dot(Bytes w, const std::int32_t* x) {
  std::int8_t four[4];
  std::memcpy(four, x, 4);
  return pairs_of([&](int i) { return w.x[2 * i] * four[2 * i % 4] + w.x[2 * i + 1] * four[2 * i % 4 + 1]; });
}
inline Bytes plus_pairs(Bytes a, Bytes b) {
  return pairs_of([&](int i) { return pair_at(a, i) + pair_at(b, i); });
}
inline Ints widen_pairs(Bytes a) {
  return Ints::each([&](int i) { return pair_at(a, 2 * i) + pair_at(a, 2 * i + 1); });
}
// sums + the products of four signed bytes with those at x.
inline Ints dot_signed(Ints sums, Bytes w, const std::int32_t* x) {
  std::int8_t four[4];
  std::memcpy(four, x, 4);
  return Ints::each([&](int i) {
    std::int32_t sum = sums.x[i];
    for (int b = 0; b < 4; ++b) sum += static_cast<std::int8_t>(w.x[4 * i + b]) * four[b];
    return sum;
  });
}
#endif

constexpr int kOutputs = 4, kRows = 1, kQueries = 1, kChunks = 1, kBlocks = 1, kCodeRows = 1, kValueRows = 1, kCodeBlocks = 1;
constexpr int kRegister = 16;  // bytes

}  // namespace
