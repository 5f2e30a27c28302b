// Which instruction sets this machine has: by CPUID, by what the operating system saves (XCR0), and, for instructions
// that round in their own way, by looking at what they compute. Never by model number.
#include "isas.h"

#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace foretoken {
namespace {

#if defined(__x86_64__)

struct Machine {
  bool avx2 = false, avxvnni = false, avx512 = false, avx512vnni = false, avx512bf16 = false, amx = false;

  Machine() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const bool saves = c & (1u << 27), fma = c & (1u << 12), f16c = c & (1u << 29);
    if (!saves) return;
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    unsigned a7 = 0, b7 = 0, c7 = 0, d7 = 0;
    if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return;
    avx2 = (low & 0x6u) == 0x6u && fma && f16c && (b7 & (1u << 5));
    const unsigned wanted = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // F, DQ, BW, VL
    avx512 = avx2 && (low & 0xe6u) == 0xe6u && (b7 & wanted) == wanted;
    unsigned a71 = 0, b71 = 0, c71 = 0, d71 = 0;
    const bool more = a7 >= 1 && __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
    avxvnni = avx2 && more && (a71 & (1u << 4));
    avx512vnni = avx512 && (c7 & (1u << 11));
    avx512bf16 = avx512vnni && more && (a71 & (1u << 5));
    const bool tiles = (d7 & (1u << 22)) && (d7 & (1u << 24)), bytes = c7 & (1u << 1);  // bf16 tiles; VBMI
    amx = avx512bf16 && bytes && tiles && (low & 0x60000u) == 0x60000u && may_use_tiles();
  }

  static bool may_use_tiles() {
#if defined(__linux__)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, the tiles' data
#else
    return false;
#endif
  }
};

const Machine& machine() {
  static const Machine it;
  return it;
}

#endif

// The same of weights in the instruction set's own layout: three blocks, with as many inputs as it takes.
[[maybe_unused]] bool agrees_repacked(const Kernels* kernels, const std::uint16_t* weights, const float* x,
                                      std::int64_t n, std::int64_t stride) {
  constexpr std::int64_t k = 128, blocks = 3;
  const void* rows[blocks * kTile];
  for (std::int64_t i = 0; i < blocks * kTile; ++i) rows[i] = weights + i % (2 * kTile) * k;
  alignas(64) char own[blocks * kTile * k * 2];
  for (std::int64_t i = 0; i < blocks; ++i) kernels->repack(rows + i * kTile, k, own + i * kTile * k * 2);
  std::vector<float> expected(static_cast<std::size_t>(blocks * n * kTile)), got(expected.size());
  std::vector<std::uint64_t> packed(kernels_generic()->packed_bytes(Format::bf16, n, k) / 8 + 1);
  kernels_generic()->pack(Format::bf16, x, stride, 0, n, n, k, packed.data());
  kernels_generic()->linear(Format::bf16, rows, blocks, k, {packed.data(), n, 0, n}, {expected.data(), blocks * kTile});
  packed.resize(kernels->packed_bytes(Format::bf16, n, k) / 8 + 1);
  kernels->pack_for_repacked(x, stride, 0, n, n, k, packed.data());
  kernels->linear_repacked(own, blocks, k, {packed.data(), n, 0, n}, {got.data(), blocks * kTile});
  return std::memcmp(expected.data(), got.data(), expected.size() * 4) == 0;
}

// Whether an instruction set sums bf16 as the plain C++ does, bit for bit, on numbers of all sizes, subnormal ones
// among them.
[[maybe_unused]] bool agrees(const Kernels* kernels) {
  const FlushSubnormals flush;
  constexpr std::int64_t k = 150, most = 40;  // inputs and rows that fill no block, as 24 rows do not
  std::uint32_t state = 12345;
  auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  };
  for (int round = 0; round < 8; ++round) {
    const std::uint32_t spread = round % 4 == 3 ? 200 : 1u << (round % 4 * 2);
    std::vector<std::uint16_t> weights(static_cast<std::size_t>(2 * kTile * k));
    std::vector<float> x(static_cast<std::size_t>(most * k));
    auto number = [&] {  // finite: exponents around 1, or around where products leave the normal numbers
      const std::uint32_t exponent = (round < 4 ? 120u : 62u) - spread / 4 + next() % spread;
      return static_cast<std::uint16_t>((next() & 0x807fu) | ((exponent & 0xffu) % 190u << 7));
    };
    for (auto& w : weights) w = number();
    for (auto& v : x) {
      const std::uint32_t bits = static_cast<std::uint32_t>(number()) << 16;
      std::memcpy(&v, &bits, sizeof v);
    }
    const void* rows[kTile];
    // one behind the other, or at unequal distances, as keys may lie
    for (std::int64_t i = 0; i < kTile; ++i) rows[i] = weights.data() + (round % 2 ? i + i * i % 7 : i) * k;
    const Kernels* both[2] = {kernels_generic(), kernels};
    for (std::int64_t n : {most, std::int64_t{24}, std::int64_t{5}, std::int64_t{1}}) {  // which is multiplied in several ways
      float tiles[2][most * kTile];
      for (int i = 0; i < 2; ++i) {
        std::vector<std::uint64_t> packed(both[i]->packed_bytes(Format::bf16, n, k) / 8 + 1);
        both[i]->pack(Format::bf16, x.data(), k, 0, n, n, k, packed.data());
        both[i]->linear(Format::bf16, rows, 1, k, {packed.data(), n, 0, n}, {tiles[i], kTile});
      }
      if (std::memcmp(tiles[0], tiles[1], static_cast<std::size_t>(n * kTile) * 4) != 0) return false;
      if (kernels->repack && !agrees_repacked(kernels, weights.data(), x.data(), n, k)) return false;
    }
  }
  return true;
}

constexpr const char* kUnknown = "the compiler that built Foretoken does not know its instructions";

// Whether an instruction set multiplies low-bit weights as the plain C++ does, bit for bit.
[[maybe_unused]] bool agrees_on_codes(const Kernels* kernels) {
  const FlushSubnormals flush;
  constexpr std::int64_t k = 150, most = 40, blocks = 2;
  std::uint32_t state = 54321;
  auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  };
  std::vector<float> x(static_cast<std::size_t>(most * k));
  for (auto& v : x) v = (static_cast<float>(next() % 4001) - 2000.0f) / static_cast<float>(1u << next() % 12);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(blocks * blocks_of(k) * block_bytes(Format::int8)));
  for (auto& c : codes) c = static_cast<std::uint8_t>(next() % 255 - 127);  // of int8: -127 to 127
  for (Format format : {Format::mxfp4, Format::int8, Format::int4, Format::int3, Format::int2}) {
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(blocks * scale_bytes(format, 64, k)));
    for (std::size_t i = 0; i < scales.size(); ++i) {  // powers of two, or floats and bf16 numbers of moderate size
      scales[i] = static_cast<std::uint8_t>(format == Format::mxfp4 ? 110 + next() % 30
                                            : format == Format::int8 ? (i % 4 == 3 ? 0x3c : next())
                                                                     : (i % 2 == 1 ? 0x3f : next()));
    }
    const Codes w{format, 64, codes.data(), scales.data()};
    for (Inputs inputs : {Inputs::bf16, Inputs::int8}) {
      for (std::int64_t n : {std::int64_t{1}, std::int64_t{3}, std::int64_t{17}, most}) {
        float tiles[2][most * blocks * kTile];
        const Kernels* both[2] = {kernels_generic(), kernels};
        for (int i = 0; i < 2; ++i) {
          std::vector<std::uint64_t> packed(both[i]->coded_bytes(inputs, n, k) / 8 + 1);
          both[i]->pack_coded(inputs, format, x.data(), k, 0, n, n, k, packed.data());
          both[i]->linear_coded(inputs, w, blocks, k, {packed.data(), n, 0, n}, {tiles[i], blocks * kTile});
        }
        if (std::memcmp(tiles[0], tiles[1], static_cast<std::size_t>(n * blocks * kTile) * 4) != 0) return false;
      }
    }
  }
  return true;
}

// An instruction set whose instructions are not on every machine that we test on, or round in their own way: null if
// the build or this machine lacks it, or if it does not sum as it should here, which is looked at once.
template <const Kernels* (*Table)()>
[[maybe_unused]] const Kernels* checked(bool here, const char** reason) {
  if (!here) return nullptr;  // before anything of the instruction set's own code
  static const bool sums = Table() && agrees(Table()) && agrees_on_codes(Table());
  if (!Table()) {
    *reason = kUnknown;
  } else if (!sums) {
    *reason = "its instructions do not sum in the formats' order on this machine";
  }
  return sums ? Table() : nullptr;
}

}  // namespace

#if !defined(FORETOKEN_AVXVNNI)
const Kernels* kernels_avxvnni() { return nullptr; }
#endif
#if !defined(FORETOKEN_AVX512VNNI)
const Kernels* kernels_avx512vnni() { return nullptr; }
const Kernels* kernels_avxvnni_twin() { return nullptr; }
#endif
#if !defined(FORETOKEN_AVX512BF16)
const Kernels* kernels_avx512bf16() { return nullptr; }
#endif
#if !defined(FORETOKEN_AMX)
const Kernels* kernels_amx() { return nullptr; }
#endif

namespace {

// Bytes of the first cache for data; 0 if the processor does not say.
unsigned first_cache_bytes() {
#if defined(__x86_64__)
  for (unsigned leaf : {4u, 0x8000001du}) {  // Intel's, AMD's
    for (unsigned i = 0; i < 8; ++i) {
      unsigned a = 0, b = 0, c = 0, d = 0;
      if (!__get_cpuid_count(leaf, i, &a, &b, &c, &d) || !(a & 31u)) break;
      const bool data = (a & 31u) == 1u, first = (a >> 5 & 7u) == 1u;
      if (data && first) return ((b >> 22) + 1) * ((b >> 12 & 0x3ffu) + 1) * ((b & 0xfffu) + 1) * (c + 1);
    }
  }
#endif
  return 0;
}

// The processor's register of rules for numbers: how to round, and what becomes of subnormal ones.
#if defined(__x86_64__)
constexpr unsigned kRounding = 0x6000u, kFlush = 0x8040u;  // kFlush: of results, of operands
unsigned rules() { return _mm_getcsr(); }
void set_rules(unsigned to) { _mm_setcsr(to); }
#elif defined(__aarch64__)
constexpr unsigned kRounding = 3u << 22, kFlush = 1u << 24;
unsigned rules() {
  std::uint64_t now;
  asm volatile("mrs %0, fpcr" : "=r"(now));
  return static_cast<unsigned>(now);
}
void set_rules(unsigned to) { asm volatile("msr fpcr, %0" : : "r"(static_cast<std::uint64_t>(to)) : "memory"); }
#else
constexpr unsigned kRounding = 0, kFlush = 0;
unsigned rules() { return 0; }
void set_rules(unsigned) {}
#endif

}  // namespace

bool first_cache_is_wide() {
  static const bool wide = first_cache_bytes() >= 48u << 10;
  return wide;
}

FlushSubnormals::FlushSubnormals() : before_(rules()) { set_rules((before_ & ~kRounding) | kFlush); }

FlushSubnormals::~FlushSubnormals() { set_rules(before_); }

KeepSubnormals::KeepSubnormals() : before_(rules()) { set_rules(before_ & ~(kRounding | kFlush)); }

KeepSubnormals::~KeepSubnormals() { set_rules(before_); }

const Kernels* kernels_of(Isa isa, const char** reason) {
  const char* ignored = nullptr;
  if (!reason) reason = &ignored;
  *reason = "this machine lacks its instructions";
  switch (isa) {
    case Isa::generic:
      return kernels_generic();
    case Isa::amx_emulated:
      return kernels_amx_emulated();
#if defined(__x86_64__)
    case Isa::avx2:
      return machine().avx2 ? kernels_avx2() : nullptr;
    case Isa::avxvnni:
      return checked<kernels_avxvnni>(machine().avxvnni, reason);
    case Isa::avxvnni_twin:
      return checked<kernels_avxvnni_twin>(machine().avx512vnni, reason);
    case Isa::avx512:
      return machine().avx512 ? kernels_avx512() : nullptr;
    case Isa::avx512vnni:
      return checked<kernels_avx512vnni>(machine().avx512vnni, reason);
    case Isa::avx512bf16:
      return checked<kernels_avx512bf16>(machine().avx512bf16, reason);
    case Isa::amx:
      return checked<kernels_amx>(machine().amx, reason);
#endif
    default:
      return nullptr;
  }
}

}  // namespace foretoken
