// The values that attention weighs, by products of pairs. Part of isa_avx512bf16.cpp.
//
// A pair is the numbers of two places in one dimension. As in rows of weights, the places of a pair are neighbours among the
// even or the odd ones: (2, 0), (6, 4), ..., and (3, 1), (7, 5), ...

namespace {

constexpr int64_t kPairPlaces = 32;  // that are added up as one

// Adds what Q queries weigh of 32 numbers of each of kPairPlaces values, from number `at` on. pairs: 16 of each query, one
// query after the other. Not inlined: so gcc finds registers for all sums.
template <int Q>
[[gnu::noinline]] void weigh_numbers(const std::int32_t* pairs, const void* const* values, int64_t at, int64_t width,
                                     float* out) {
  auto numbers = [&](int place) { return _mm512_loadu_si512(static_cast<const std::uint16_t*>(values[place]) + at); };
  __m512 even[2][Q], odd[2][Q];
  for (int q = 0; q < Q; ++q) even[0][q] = even[1][q] = odd[0][q] = odd[1][q] = _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const int t = Pairs::nth(i);
    const __m512i upper = numbers(Pairs::upper(t)), lower = numbers(Pairs::lower(t));
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

// All queries, and kPairPlaces places.
void weigh_whole(const float* weights, int64_t stride, int64_t queries, const void* const* values, int64_t width,
                 float* out) {
  const Groups groups(queries, kMostRows);
  by_size<kMostRows>(groups, [&](auto size) {
    groups.each<decltype(size)::value>([&](auto count, int64_t q) {
      constexpr int kSome = decltype(count)::value;
      alignas(64) std::int32_t pairs[kSome][16];
      for (int i = 0; i < kSome; ++i) {
        const float* w = weights + (q + i) * stride;  // which bf16 holds
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(w + 16), _mm512_loadu_ps(w));
        _mm512_store_si512(pairs[i], pair_up(both));
      }
      for (int64_t at = 0; at < width; at += 32) weigh_numbers<kSome>(pairs[0], values, at, width, out + q * width);
    });
  });
}

// The same as `weigh`.
void weigh_by_pairs(Format format, const float* weights, int64_t stride, int64_t queries, const void* const* values,
                    int64_t from, int64_t to, int64_t width, float* out) {
  const int64_t first = (from + kPairPlaces - 1) / kPairPlaces * kPairPlaces, last = to / kPairPlaces * kPairPlaces;
  if (format != Format::bf16 || width % 32 || first >= last) {
    return weigh(format, weights, stride, queries, values, from, to, width, out);
  }
  if (from < first) weigh(format, weights, stride, queries, values, from, first, width, out);
  for (int64_t at = first; at < last; at += kPairPlaces) {
    weigh_whole(weights + at, stride, queries, values + at, width, out);
  }
  if (last < to) weigh(format, weights, stride, queries, values, last, to, width, out);
}

}  // namespace
