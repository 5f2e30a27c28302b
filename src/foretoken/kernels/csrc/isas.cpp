// Which instruction sets this machine has: by CPUID, by what the operating system saves (XCR0), and, for instructions
// that round in their own way, by looking at what they compute. Never by model number.
#include "isas.h"

#include <initializer_list>

#include "agreement.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
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

#elif defined(__aarch64__)

bool multiplies_bytes() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & (1u << 20);  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}

#endif

constexpr const char* kUnknown = "the compiler that built Foretoken does not know its instructions";

// An instruction set whose instructions are not on every machine that we test on, or round in their own way: null if
// the build or this machine lacks it, or if it does not sum as it should here, which is looked at once.
template <const Kernels* (*Table)()>
[[maybe_unused]] const Kernels* checked(bool here, const char** reason) {
  if (!here) return nullptr;  // before anything of the instruction set's own code
  static const bool sums = Table() && agrees(*Table());
  if (!Table()) {
    *reason = kUnknown;
  } else if (!sums) {
    *reason = "its instructions do not sum in the formats' order on this machine";
  }
  return sums ? Table() : nullptr;
}

}  // namespace

#if !defined(FORETOKEN_DOTPROD)
const Kernels* kernels_dotprod() { return nullptr; }
#endif
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
      return checked<kernels_amx_emulated>(true, reason);
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
#elif defined(__aarch64__)
    case Isa::neon:
      return checked<kernels_neon>(true, reason);
    case Isa::dotprod:
      return checked<kernels_dotprod>(multiplies_bytes(), reason);
#endif
    default:
      return nullptr;
  }
}

}  // namespace foretoken
