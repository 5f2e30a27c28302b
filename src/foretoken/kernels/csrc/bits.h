// Number formats as bits. Everything here is compiled for the oldest machine that an instruction set runs on, so it
// sits in an anonymous namespace: the linker must not choose one instruction set's copy for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

inline std::uint32_t bits_of(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float float_of(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

inline float from_bf16(std::uint16_t b) { return float_of(static_cast<std::uint32_t>(b) << 16); }

// To the nearest, ties to even; a NaN stays one.
inline std::uint16_t to_bf16(float x) {
  const std::uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float from_fp16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 0x1fu) return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u));
  if (exponent) return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
  // subnormal in 16 bits, normal in 32
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return float_of(sign | bits_of(magnitude));
}

// To the nearest, ties to even. By integers: the flags of the processor (flush to zero) must not reach it.
inline std::uint16_t to_fp16(float x) {
  const std::uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (a >= 0x38800000u) return static_cast<std::uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
  const std::uint32_t exponent = a >> 23;
  if (exponent < 102u) return static_cast<std::uint16_t>(sign);
  const std::uint32_t shift = 126u - exponent, whole = (a & 0x7fffffu) | 0x800000u;
  const std::uint32_t kept = whole >> shift, rest = whole & ((1u << shift) - 1u), half = 1u << (shift - 1u);
  return static_cast<std::uint16_t>(sign | (kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u)));
}

// The n of 16 numbers that are there, and zeros in place of the rest.
template <class T>
struct Part {
  T x[16] = {};

  Part(const T* p, std::int64_t n) { std::memcpy(x, p, static_cast<std::size_t>(n) * sizeof(T)); }
};

}  // namespace
