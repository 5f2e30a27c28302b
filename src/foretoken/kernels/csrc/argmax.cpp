// The one kernel so far. Two sweeps: the largest value (and whether a NaN is there), then the first place that holds it.
// Each vector level is compiled for its instructions by a function attribute, so that the module as a whole runs anywhere.

#include "levels.h"

#if defined(__x86_64__)
#define FORETOKEN_X86 1
#include <immintrin.h>
#endif

namespace foretoken {
namespace {

std::int64_t first_equal(const float* values, std::int64_t n, float wanted) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (values[i] == wanted) return i;
  }
  return -1;
}

// The largest of values[from..n) and `best`; `nan` is set if one of them is NaN.
float largest_from(const float* values, std::int64_t from, std::int64_t n, float best, bool& nan) {
  for (std::int64_t i = from; i < n; ++i) {
    nan |= values[i] != values[i];
    best = values[i] > best ? values[i] : best;
  }
  return best;
}

std::int64_t argmax_generic(const float* values, std::int64_t n) {
  bool nan = false;
  const float best = largest_from(values, 0, n, values[0], nan);
  return nan ? -1 : first_equal(values, n, best);
}

#ifdef FORETOKEN_X86

__attribute__((target("avx2"))) std::int64_t argmax_avx2(const float* values, std::int64_t n) {
  __m256 best = _mm256_set1_ps(values[0]);
  __m256 unordered = _mm256_setzero_ps();
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(values + i);
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    best = _mm256_max_ps(v, best);
  }
  bool nan = _mm256_movemask_ps(unordered) != 0;
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, best);
  float top = largest_from(lanes, 0, 8, lanes[0], nan);
  top = largest_from(values, i, n, top, nan);
  return nan ? -1 : first_equal(values, n, top);
}

__attribute__((target("avx512f"))) std::int64_t argmax_avx512(const float* values, std::int64_t n) {
  __m512 best = _mm512_set1_ps(values[0]);
  __mmask16 unordered = 0;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(values + i);
    unordered = static_cast<__mmask16>(unordered | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q));
    // the masked form: gcc 12 warns about its own header for the plain one
    best = _mm512_mask_max_ps(best, static_cast<__mmask16>(0xffff), v, best);
  }
  bool nan = unordered != 0;
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, best);
  float top = largest_from(lanes, 0, 16, lanes[0], nan);
  top = largest_from(values, i, n, top, nan);
  return nan ? -1 : first_equal(values, n, top);
}

#endif

}  // namespace

bool supports(Level level) {
  switch (level) {
    case Level::generic:
      return true;
#ifdef FORETOKEN_X86
    // These ask CPUID, and XCR0 for whether the operating system saves the registers.
    case Level::avx2:
      return __builtin_cpu_supports("avx2");
    case Level::avx512:
      return __builtin_cpu_supports("avx512f");
#endif
    default:
      return false;
  }
}

std::int64_t argmax(const float* values, std::int64_t n, Level level) {
#ifdef FORETOKEN_X86
  if (level == Level::avx512) return argmax_avx512(values, n);
  if (level == Level::avx2) return argmax_avx2(values, n);
#endif
  return argmax_generic(values, n);
}

}  // namespace foretoken
