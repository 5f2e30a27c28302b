// 16 floats in plain C++: what the other levels must equal.
#pragma once

#include "bits.h"

namespace {

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

struct V16 {
  float x[16];

  template <class F>
  static V16 each(F f) {
    V16 r;
    for (int i = 0; i < 16; ++i) r.x[i] = f(i);
    return r;
  }
};

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
inline V16 zero_below(V16 a, V16 x, float limit) {
  return V16::each([&](int i) { return x.x[i] < limit ? 0.0f : a.x[i]; });
}
inline V16 keep(V16 a, V16 otherwise, int from, int to) {
  return V16::each([&](int i) { return from <= i && i < to ? a.x[i] : otherwise.x[i]; });
}
// 2^n, where a holds 1.5 * 2^23 + n, -126 <= n <= 127.
inline V16 power_of_two(V16 a) {
  return V16::each([&](int i) { return float_of((bits_of(a.x[i]) - 0x4b400000u + 127u) << 23); });
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

struct Words {  // for 32-bit arithmetic in 64 bits: what the upper halves hold is no matter, but in a product
  std::uint64_t x[8];

  template <class F>
  static Words each(F f) {
    Words r;
    for (int i = 0; i < 8; ++i) r.x[i] = f(i);
    return r;
  }
};

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

constexpr int kOutputs = 4, kRows = 1, kQueries = 1, kChunks = 1, kBlocks = 1;
constexpr int kRegister = 16;  // bytes

}  // namespace
