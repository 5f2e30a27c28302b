#include "bandwidth.h"

#include <atomic>
#include <chrono>

#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace foretoken {
namespace {

using std::int64_t;

std::atomic<std::uint64_t> sink;  // what was read goes somewhere, or it would not be read

template <int S>
void read_plain(const char* from, int64_t stretch) {
  std::uint64_t sums[S] = {};
  for (int64_t i = 0; i < stretch; i += 64) {
    for (int s = 0; s < S; ++s) {
      const std::uint64_t* line = reinterpret_cast<const std::uint64_t*>(from + s * stretch + i);
      for (int j = 0; j < 8; ++j) sums[s] += line[j];
    }
  }
  for (std::uint64_t sum : sums) sink += sum;
}

#if defined(__x86_64__)
template <int S>
__attribute__((target("avx2"))) void read_avx2(const char* from, int64_t stretch) {
  __m256i sums[S];
  for (int s = 0; s < S; ++s) sums[s] = _mm256_setzero_si256();
  for (int64_t i = 0; i < stretch; i += 64) {
    for (int s = 0; s < S; ++s) {
      const __m256i* line = reinterpret_cast<const __m256i*>(from + s * stretch + i);
      sums[s] = _mm256_add_epi64(sums[s], _mm256_add_epi64(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  }
  alignas(32) std::uint64_t lanes[4];
  for (int s = 0; s < S; ++s) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[s]);
    sink += lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }
}

template <int S>
__attribute__((target("avx512f"))) void read_avx512(const char* from, int64_t stretch) {
  __m512i sums[S];
  for (int s = 0; s < S; ++s) sums[s] = _mm512_setzero_si512();
  for (int64_t i = 0; i < stretch; i += 64) {
    for (int s = 0; s < S; ++s) sums[s] = _mm512_add_epi64(sums[s], _mm512_load_si512(from + s * stretch + i));
  }
  alignas(64) std::uint64_t lanes[8];
  for (int s = 0; s < S; ++s) {
    _mm512_store_si512(lanes, sums[s]);
    for (std::uint64_t lane : lanes) sink += lane;
  }
}
#endif

template <int S>
void read_at(Isa isa, const char* from, int64_t stretch) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx2:
    case Isa::avxvnni:
    case Isa::avxvnni_twin:
      return read_avx2<S>(from, stretch);
    case Isa::avx512:
    case Isa::avx512vnni:
    case Isa::avx512bf16:
    case Isa::amx:
      return read_avx512<S>(from, stretch);
    case Isa::generic:
    case Isa::neon:
    case Isa::dotprod:
    case Isa::amx_emulated:
      break;
  }
#else
  (void)isa;
#endif
  read_plain<S>(from, stretch);
}

}  // namespace

double read_once(Isa isa, int threads, int streams, const char* memory, int64_t bytes) {
  const std::shared_ptr<Pool> pool = Pool::of(threads);
  const auto hold = pool->lock();
  const int64_t stretch = bytes / threads / streams / 64 * 64;
  const auto since = std::chrono::steady_clock::now();
  pool->run(threads, [&](int64_t share, int) {
    const char* from = memory + share * stretch * streams;
    switch (streams) {
      case 1: return read_at<1>(isa, from, stretch);
      case 2: return read_at<2>(isa, from, stretch);
      case 4: return read_at<4>(isa, from, stretch);
      case 8: return read_at<8>(isa, from, stretch);
      default: return read_at<16>(isa, from, stretch);
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace foretoken
