// 16 floats in four 128-bit registers: 64-bit ARM.
#pragma once

#include <arm_neon.h>

#include "bits.h"

namespace {

// T: a register. Of registers that hold what belongs together, the first has the first lanes. gcc 12 took the whole and its
// registers for things of different types, and moved one's store behind the other's load (LOG.md).
template <class T>
struct [[gnu::may_alias]] Four {
  T x[4];

  template <class F>
  [[gnu::always_inline]] static Four each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
};

// A register from memory and back, of whatever type is there.
template <class T>
inline T read(const void* p) {
  T r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
template <class T>
inline void write(void* p, T r) {
  std::memcpy(p, &r, sizeof r);
}

using V16 = Four<float32x4_t>;

inline V16 set1(float a) { return V16::each([&](int) { return vdupq_n_f32(a); }); }
inline V16 load(const float* p) { return V16::each([&](int i) { return read<float32x4_t>(p + 4 * i); }); }
inline V16 load(const float* p, std::int64_t n) {
  return n >= 16 ? load(p) : load(Part<float>(p, n).x);
}
inline float32x4_t widen_bf16(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
inline V16 load_bf16(const std::uint16_t* p) {
  const uint16x8_t a = read<uint16x8_t>(p), b = read<uint16x8_t>(p + 8);
  return {{widen_bf16(vget_low_u16(a)), widen_bf16(vget_high_u16(a)), widen_bf16(vget_low_u16(b)),
           widen_bf16(vget_high_u16(b))}};
}
inline V16 load_fp16(const std::uint16_t* p) {
  return V16::each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(read<uint16x4_t>(p + 4 * i))); });
}
inline V16 load_bf16(const std::uint16_t* p, std::int64_t n) {
  return n >= 16 ? load_bf16(p) : load_bf16(Part<std::uint16_t>(p, n).x);
}
inline V16 load_fp16(const std::uint16_t* p, std::int64_t n) {
  return n >= 16 ? load_fp16(p) : load_fp16(Part<std::uint16_t>(p, n).x);
}
inline void store(float* p, V16 a) {
  for (int i = 0; i < 4; ++i) write(p + 4 * i, a.x[i]);
}
inline void store(float* p, V16 a, std::int64_t n) {
  if (n >= 16) return store(p, a);
  float part[16];
  store(part, a);
  std::memcpy(p, part, static_cast<std::size_t>(n) * 4);
}
inline V16 add(V16 a, V16 b) { return V16::each([&](int i) { return vaddq_f32(a.x[i], b.x[i]); }); }
inline V16 sub(V16 a, V16 b) { return V16::each([&](int i) { return vsubq_f32(a.x[i], b.x[i]); }); }
inline V16 mul(V16 a, V16 b) { return V16::each([&](int i) { return vmulq_f32(a.x[i], b.x[i]); }); }
inline V16 div(V16 a, V16 b) { return V16::each([&](int i) { return vdivq_f32(a.x[i], b.x[i]); }); }
inline V16 fma(V16 a, V16 b, V16 c) { return V16::each([&](int i) { return vfmaq_f32(c.x[i], a.x[i], b.x[i]); }); }
// The second operand where they do not compare: the processor's own minimum and maximum would be a NaN there.
inline float32x4_t min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline V16 min(V16 a, V16 b) { return V16::each([&](int i) { return min(a.x[i], b.x[i]); }); }
inline V16 max(V16 a, V16 b) { return V16::each([&](int i) { return max(a.x[i], b.x[i]); }); }
inline V16 keep(V16 a, V16 otherwise, int from, int to) {
  alignas(16) static constexpr std::int32_t kLanes[4] = {0, 1, 2, 3};
  return V16::each([&](int i) {
    const int32x4_t lanes = vaddq_s32(read<int32x4_t>(kLanes), vdupq_n_s32(4 * i));
    return vbslq_f32(vandq_u32(vcgeq_s32(lanes, vdupq_n_s32(from)), vcltq_s32(lanes, vdupq_n_s32(to))), a.x[i],
                     otherwise.x[i]);
  });
}
inline V16 times_power_of_two(V16 y, V16, V16 shifted, V16 x, float limit) {
  return V16::each([&](int i) {
    const int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(shifted.x[i]), vdupq_n_s32(0x4b400000 - 127));
    const float32x4_t product = vmulq_f32(y.x[i], vreinterpretq_f32_s32(vshlq_n_s32(n, 23)));
    const uint32x4_t less = vcltq_f32(x.x[i], vdupq_n_f32(limit));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(product), less));
  });
}
inline bool any_nan(V16 a) {
  auto numbers = [&](int i) { return vceqq_f32(a.x[i], a.x[i]); };
  return vminvq_u32(vandq_u32(vandq_u32(numbers(0), numbers(1)), vandq_u32(numbers(2), numbers(3)))) == 0;
}
inline float sum(V16 a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.x[0], a.x[2]), vaddq_f32(a.x[1], a.x[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float largest(V16 a) {
  const float32x4_t four = max(max(a.x[0], a.x[2]), max(a.x[1], a.x[3]));
  const float32x4_t two = max(four, vextq_f32(four, four, 2));
  const float first = vgetq_lane_f32(two, 0), second = vgetq_lane_f32(two, 1);
  return first > second ? first : second;
}
// Bit i: whether lane i is set.
inline unsigned lanes_of(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  alignas(16) static constexpr std::uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t first = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
  const uint16x8_t second = vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
  const uint8x16_t set = vandq_u8(vuzp1q_u8(vreinterpretq_u8_u16(first), vreinterpretq_u8_u16(second)), read<uint8x16_t>(kBits));
  return static_cast<unsigned>(vaddv_u8(vget_low_u8(set))) | static_cast<unsigned>(vaddv_u8(vget_high_u8(set))) << 8;
}
inline unsigned above(V16 a, V16 b) {
  auto larger = [&](int i) { return vcgtq_f32(a.x[i], b.x[i]); };
  return lanes_of(larger(0), larger(1), larger(2), larger(3));
}
inline V16 cut_below(V16 a, float limit) {
  const float32x4_t l = vdupq_n_f32(limit), never = vdupq_n_f32(-__builtin_inff());
  return V16::each([&](int i) { return vbslq_f32(vcgeq_f32(a.x[i], l), a.x[i], never); });
}

using Words = Four<uint64x2_t>;

inline Words words(std::uint64_t a) { return Words::each([&](int) { return vdupq_n_u64(a); }); }
inline Words load(const std::uint64_t* p) { return Words::each([&](int i) { return read<uint64x2_t>(p + 2 * i); }); }
inline void store(std::uint64_t* p, Words a) {
  for (int i = 0; i < 4; ++i) write(p + 2 * i, a.x[i]);
}
inline Words plus(Words a, Words b) { return Words::each([&](int i) { return vaddq_u64(a.x[i], b.x[i]); }); }
inline Words product(Words a, Words b) {
  return Words::each([&](int i) { return vmull_u32(vmovn_u64(a.x[i]), vmovn_u64(b.x[i])); });
}
inline Words mixed(Words a, Words b, Words c) {
  return Words::each([&](int i) { return veorq_u64(vshrq_n_u64(a.x[i], 32), veorq_u64(b.x[i], c.x[i])); });
}
inline unsigned at_most(Words even, Words odd, V16 bound) {
  auto reach = [&](int i) {
    const uint32x4_t both = vreinterpretq_u32_u64(vsliq_n_u64(even.x[i], odd.x[i], 32));
    const float32x4_t upper = vcvtq_f32_s32(vreinterpretq_s32_u32(vshrq_n_u32(both, 8)));
    return vcleq_f32(vcvtq_f32_s32(vreinterpretq_s32_f32(upper)), bound.x[i]);
  };
  return lanes_of(reach(0), reach(1), reach(2), reach(3));
}

// -- four bytes each of 16 outputs, as codes of low-bit weights lie ---------------------------------------------------

using Bytes = Four<uint8x16_t>;
using Ints = Four<int32x4_t>;

inline Bytes load_bytes(const void* p) {
  const auto* at = static_cast<const std::uint8_t*>(p);
  return Bytes::each([&](int i) { return read<uint8x16_t>(at + 16 * i); });
}
inline Bytes table16(const std::uint8_t* values) { return Bytes::each([&](int) { return read<uint8x16_t>(values); }); }
template <int kShift>
inline Bytes bits(Bytes a, int mask) {
  const uint8x16_t m = vdupq_n_u8(static_cast<std::uint8_t>(mask));
  return Bytes::each([&](int i) {
    if constexpr (kShift == 0) return vandq_u8(a.x[i], m);
    if constexpr (kShift > 0) return vandq_u8(vshrq_n_u8(a.x[i], kShift), m);
  });
}
template <int kShift>
inline Bytes up(Bytes a) {
  return Bytes::each([&](int i) { return vshlq_n_u8(a.x[i], kShift); });
}
inline Bytes either(Bytes a, Bytes b) { return Bytes::each([&](int i) { return vorrq_u8(a.x[i], b.x[i]); }); }
inline Bytes lookup(Bytes table, Bytes index) { return Bytes::each([&](int i) { return vqtbl1q_u8(table.x[i], index.x[i]); }); }
template <int B>
inline Ints byte_of(Bytes a) {  // without a sign
  return Ints::each([&](int i) {
    const uint32x4_t lanes = vreinterpretq_u32_u8(a.x[i]);
    if constexpr (B == 3) return vreinterpretq_s32_u32(vshrq_n_u32(lanes, 24));
    if constexpr (B < 3) return vreinterpretq_s32_u32(vshrq_n_u32(vshlq_n_u32(lanes, 24 - 8 * B), 24));
  });
}
template <int B>
inline Ints signed_byte_of(Bytes a) {
  return Ints::each([&](int i) { return vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_u8(a.x[i]), 24 - 8 * B), 24); });
}
inline void store_bytes(V16 a, V16 b, void* to) {
  auto lowest = [](V16 v) {
    auto half = [&](int i) { return vuzp1q_u16(vreinterpretq_u16_f32(v.x[i]), vreinterpretq_u16_f32(v.x[i + 1])); };
    const uint8x16_t bytes = vuzp1q_u8(vreinterpretq_u8_u16(half(0)), vreinterpretq_u8_u16(half(2)));
    return vreinterpretq_u8_u16(vrev32q_u16(vreinterpretq_u16_u8(bytes)));  // the second two of each four in front
  };
  write(static_cast<std::uint8_t*>(to), lowest(a));
  write(static_cast<std::uint8_t*>(to) + 16, lowest(b));
}
inline Ints ints(std::int32_t a) { return Ints::each([&](int) { return vdupq_n_s32(a); }); }
inline Ints load_ints(const void* p) {
  const Bytes bytes = load_bytes(p);
  return Ints::each([&](int i) { return vreinterpretq_s32_u8(bytes.x[i]); });
}
inline Ints load_small(const std::uint8_t* p) {
  const uint8x16_t bytes = read<uint8x16_t>(p);
  const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))};
  return Ints::each([&](int i) {
    const uint16x8_t half = halves[i / 2];
    return vreinterpretq_s32_u32(vmovl_u16(i % 2 ? vget_high_u16(half) : vget_low_u16(half)));
  });
}
inline Ints plus(Ints a, Ints b) { return Ints::each([&](int i) { return vaddq_s32(a.x[i], b.x[i]); }); }
inline Ints masked(Ints a, std::uint32_t mask) {
  return Ints::each([&](int i) { return vandq_s32(a.x[i], vreinterpretq_s32_u32(vdupq_n_u32(mask))); });
}
template <int kShift>
inline Ints left(Ints a) {
  return Ints::each([&](int i) { return vshlq_n_s32(a.x[i], kShift); });
}
template <int kShift>
inline Ints right(Ints a) {
  return Ints::each([&](int i) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.x[i]), kShift)); });
}
inline V16 as_floats(Ints a) { return V16::each([&](int i) { return vreinterpretq_f32_s32(a.x[i]); }); }
inline Ints as_ints(V16 a) { return Ints::each([&](int i) { return vreinterpretq_s32_f32(a.x[i]); }); }
// Of 16 floats, those that the lowest four bits of some numbers name.
inline V16 pick(V16 table, Ints index) {
  const auto bytes = [&](int i) { return vreinterpretq_u8_f32(table.x[i]); };
  const uint8x16x4_t all = {{bytes(0), bytes(1), bytes(2), bytes(3)}};
  return V16::each([&](int i) {
    const uint32x4_t number = vandq_u32(vreinterpretq_u32_s32(index.x[i]), vdupq_n_u32(15));
    const uint32x4_t places = vmlaq_u32(vdupq_n_u32(0x03020100u), number, vdupq_n_u32(0x04040404u));  // of its four bytes
    return vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_u32(places)));
  });
}
inline V16 to_floats(Ints a) { return V16::each([&](int i) { return vcvtq_f32_s32(a.x[i]); }); }
inline V16 round_bf16(V16 a) {  // finite numbers
  return V16::each([&](int i) {
    const uint32x4_t u = vreinterpretq_u32_f32(a.x[i]), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    return vreinterpretq_f32_u32(vandq_u32(up, vdupq_n_u32(0xffff0000u)));
  });
}

constexpr std::int32_t kInt8Excess = 0;  // products of bytes are of signed ones

// Four bytes at x, as often as they fit.
inline int8x16_t four_at(const std::int32_t* x) { return vreinterpretq_s8_s32(vdupq_n_s32(*x)); }

#if defined(__ARM_FEATURE_DOTPROD)
#define FORETOKEN_WIDE_DOT
inline Bytes flipped(Bytes a) { return a; }
// sums + the products of four bytes of at most 127 with the four signed ones at x.
inline Ints dot(Ints sums, Bytes w, const std::int32_t* x) {
  const int8x16_t four = four_at(x);
  return Ints::each([&](int i) { return vdotq_s32(sums.x[i], vreinterpretq_s8_u8(w.x[i]), four); });
}
// The same of four signed bytes and four of at most 127 at x.
inline Ints dot_positive(Ints sums, Bytes w, const std::int32_t* x) { return dot(sums, w, x); }
constexpr int kCodedTiles = 1, kCodedRows = 3;  // of attention over bytes: tiles of places or numbers, and queries, at once
#else
// For several columns to be added before they are widened: products in 16 bits.
struct Products {
  int16x8_t lower[4], upper[4];  // of the first and of the last eight bytes of each register
};
inline Products pair_dot(Bytes w, const std::int32_t* x) {  // bytes of at most 127
  const int8x16_t four = four_at(x);
  Products p;
  for (int i = 0; i < 4; ++i) {
    const int8x16_t bytes = vreinterpretq_s8_u8(w.x[i]);
    p.lower[i] = vmull_s8(vget_low_s8(bytes), vget_low_s8(four));
    p.upper[i] = vmull_high_s8(bytes, four);
  }
  return p;
}
inline Products plus_pairs(Products a, Products b) {
  for (int i = 0; i < 4; ++i) {
    a.lower[i] = vaddq_s16(a.lower[i], b.lower[i]);
    a.upper[i] = vaddq_s16(a.upper[i], b.upper[i]);
  }
  return a;
}
inline Ints widen_pairs(Products a) {
  return Ints::each([&](int i) { return vpaddq_s32(vpaddlq_s16(a.lower[i]), vpaddlq_s16(a.upper[i])); });
}
// sums + the products of four signed bytes, -128 to 127, with those at x, -127 to 127.
inline Ints dot_signed(Ints sums, Bytes w, const std::int32_t* x) { return plus(sums, widen_pairs(pair_dot(w, x))); }
#endif

// what fits into 32 registers
constexpr int kOutputs = 2, kRows = 2, kQueries = 2, kChunks = 2, kBlocks = 1;
constexpr int kCodeRows = 4, kValueRows = 2, kCodeBlocks = 1;  // of low-bit weights
constexpr int kRegister = 16;  // bytes

}  // namespace
