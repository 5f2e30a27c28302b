// The values that attention weighs, by products of pairs. Part of isa_avx512bf16.cpp.
//
// A pair are two places' numbers of one dimension. As in rows of weights, the places of a pair are neighbours among the even
// or the odd ones: (2, 0), (6, 4), ..., and (3, 1), (7, 5), ...

namespace {

constexpr int kPairPlaces = 32;  // that are added up as one

// 32 weights of a query, which bf16 holds, as pairs. Of places that are not seen: zero.
inline void pair_weights(const float* weights, int from, int to, std::int32_t* pairs) {
  const std::uint32_t seen = (to < 32 ? (1u << to) - 1u : ~0u) & ~((1u << from) - 1u);
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(seen), weights);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(seen >> 16), weights + 16);
  _mm512_storeu_si512(pairs, pair_up((__m512i)_mm512_cvtne2ps_pbh(high, low)));
}

// Adds what Q queries weigh of 32 numbers of each value, from number `at` on. pairs: 16 of each query, one query after
// the other. Not inlined: so gcc finds registers for all sums.
template <int Q, bool kAll>
[[gnu::noinline]] void weigh_numbers(const std::int32_t* pairs, const void* const* values, int from, int to, int64_t at,
                                     int64_t width, float* out) {
  auto numbers = [&](int place) {
    if (!kAll && (place < from || place >= to)) return _mm512_setzero_si512();
    return _mm512_loadu_si512(static_cast<const std::uint16_t*>(values[place]) + at);
  };
  __m512 even[2][Q], odd[2][Q];
  for (int q = 0; q < Q; ++q) even[0][q] = even[1][q] = odd[0][q] = odd[1][q] = _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const int t = Pairs::column(i), first = t / 4 * 8 + t % 2 * 4 + t / 2 % 2;  // the pair is (first + 2, first)
    const __m512i upper = numbers(first), lower = numbers(first + 2);
    const __m512i column[2] = {_mm512_maskz_unpacklo_epi16(~0u, lower, upper),
                               _mm512_maskz_unpackhi_epi16(~0u, lower, upper)};
    for (int q = 0; q < Q; ++q) {
      for (int half = 0; half < 2; ++half) {
        Pairs::multiply(t, column[half], pairs + q * 16, &even[half][q], &odd[half][q]);
      }
    }
  }
  // a half has numbers 0 to 3, 8 to 11, 16 to 19, 24 to 27; the other one those between
  const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i second = _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
  for (int q = 0; q < Q; ++q) {
    float* to_query = out + q * width + at;
    const __m512 a = _mm512_add_ps(even[0][q], odd[0][q]), b = _mm512_add_ps(even[1][q], odd[1][q]);
    auto add_to = [](float* p, __m512 x) { _mm512_storeu_ps(p, _mm512_add_ps(_mm512_loadu_ps(p), x)); };
    add_to(to_query, _mm512_permutex2var_ps(a, first, b));
    add_to(to_query + 16, _mm512_permutex2var_ps(a, second, b));
  }
}

template <int Q>
inline void weigh_some(const std::int32_t* pairs, const void* const* values, int from, int to, int64_t width, float* out) {
  const bool all = from == 0 && to == kPairPlaces;
  for (int64_t at = 0; at < width; at += 32) {
    if (all) {
      weigh_numbers<Q, true>(pairs, values, from, to, at, width, out);
    } else {
      weigh_numbers<Q, false>(pairs, values, from, to, at, width, out);
    }
  }
}

// The same as `weigh`.
void weigh_by_pairs(Format format, const float* weights, int64_t stride, int64_t queries, const void* const* values,
                    int64_t from, int64_t to, int64_t width, float* out) {
  if (format != Format::bf16 || width % 32) return weigh(format, weights, stride, queries, values, from, to, width, out);
  constexpr int kAtOnce = 4;  // queries
  for (int64_t at = from / kPairPlaces * kPairPlaces; at < to; at += kPairPlaces) {
    const int begin = static_cast<int>(from > at ? from - at : 0);
    const int end = static_cast<int>(to - at < kPairPlaces ? to - at : kPairPlaces);
    for (int64_t q = 0; q < queries; q += kAtOnce) {
      alignas(64) std::int32_t pairs[kAtOnce][16];
      const int64_t some = queries - q < kAtOnce ? queries - q : kAtOnce;
      for (int64_t i = 0; i < some; ++i) pair_weights(weights + (q + i) * stride + at, begin, end, pairs[i]);
      float* to_queries = out + q * width;
      switch (some) {
        case 1: weigh_some<1>(pairs[0], values + at, begin, end, width, to_queries); break;
        case 2: weigh_some<2>(pairs[0], values + at, begin, end, width, to_queries); break;
        case 3: weigh_some<3>(pairs[0], values + at, begin, end, width, to_queries); break;
        default: weigh_some<4>(pairs[0], values + at, begin, end, width, to_queries); break;
      }
    }
  }
}

}  // namespace
