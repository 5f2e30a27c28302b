// Attention over places that all of its queries see, by products of pairs. Part of isa_avx512bf16.cpp.
//
// Keys and values become columns once for all queries, as repacked weights are: keys are 16 outputs a block, and the numbers
// of a value are outputs whose inputs are the places. Some queries at a time: what is made of them, from scores to weights,
// goes no farther than the second cache.

namespace {

using foretoken::kMostPlaces;
using foretoken::kScoresApart;
using foretoken::kWidestKey;

constexpr int64_t kAttendFrom = 16;  // queries; of fewer, columns are not worth keeping (LOG.md)
constexpr int64_t kAtOnce = 32;      // queries

struct alignas(64) AttentionRoom {
  char keys[kMostPlaces * kWidestKey * 2], values[kMostPlaces * kWidestKey * 2];  // columns
  float scores[kAtOnce][kScoresApart];
  std::int32_t weights[kMostPlaces / 32][kAtOnce][16];  // pairs
  float outs[kAtOnce * kWidestKey];  // sums stay near while they grow; the caller's memory may be far
};

// Fetches places into the second cache, keys first, evenly over `all` steps: of much that is asked for at once a Zen 5 drops a
// part.
class Ahead {
 public:
  Ahead(const Places& places, int64_t all)
      : places_(places), lines_((places.bytes + 63) / 64), evenly_(2 * places.count * lines_, all) {}

  void step(int64_t steps) {
    evenly_.step(steps, [this] { fetch_line(); });
  }

 private:
  void fetch_line() {
    if (!left_) {
      if (place_ == 2 * places_.count) return;
      at_ = place_ < places_.count ? places_.key(place_) : places_.value(place_ - places_.count);
      left_ = lines_;
      ++place_;
    }
    foretoken::will_use<2>(at_);
    at_ += 64;
    --left_;
  }

  const Places& places_;
  const int64_t lines_;
  Evenly evenly_;
  int64_t place_ = 0, left_ = 0;
  const char* at_ = nullptr;
};

// Steps: what is done while places are fetched takes about so many tens of cycles.
constexpr int64_t kRepacking = 5;  // a kilobyte
constexpr int64_t kMeeting = 2;    // two blocks and one row

// Two blocks of 16 keys as columns.
[[gnu::noinline]] void repack_keys(const Places& places, int64_t from, int64_t width, char* columns, Ahead& ahead) {
  for (int64_t first = from; first < from + 32; first += 16, columns += 32 * width) {
    const void* keys[16];
    for (int64_t i = 0; i < 16; ++i) keys[i] = places.key(first + i);
    repack_blocks<Pairs>(keys, width, columns);
    ahead.step(width / 32 * kRepacking);
  }
}

// 32 places' values as columns of pairs: for each 32 numbers two blocks of 16 outputs.
[[gnu::noinline]] void repack_values(const Places& places, int64_t from, int64_t width, char* columns, Ahead& ahead) {
  alignas(64) constexpr std::uint16_t kInterleaved[2][32] = {
      {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  const __m512i first_half = _mm512_load_si512(kInterleaved[0]), second_half = _mm512_load_si512(kInterleaved[1]);
  for (int64_t line = 0; line < width / 32; ++line, columns += 2048) {
    auto numbers = [&](int place) { return _mm512_loadu_si512(places.value(from + place) + line * 64); };
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) {
      const __m512i upper = numbers(Pairs::upper(t)), lower = numbers(Pairs::lower(t));
      _mm512_store_si512(columns + t * 64, _mm512_permutex2var_epi16(lower, first_half, upper));
      _mm512_store_si512(columns + 1024 + t * 64, _mm512_permutex2var_epi16(lower, second_half, upper));
      if (t % 8 == 7) ahead.step(kRepacking);
    }
  }
}

// Two blocks of 16 outputs, whose columns of 32 inputs lie `apart` bytes from each other's, meet rows.
template <int N, bool kFirst>
inline void meet(const char* columns, int64_t apart, const Groups& groups, const std::int32_t* x, const Results& results,
                 Ahead& ahead) {
  const __m512i* two[2] = {reinterpret_cast<const __m512i*>(columns), reinterpret_cast<const __m512i*>(columns + apart)};
  const char* const not_fetched[2] = {columns, columns};
  const Results each[2] = {results, results.block(1)};
  groups.each<N>([&](auto count, int64_t row) {
    const Results here[2] = {{each[0].at(row), results.stride}, {each[1].at(row), results.stride}};
    rows_block<Pairs, 2, decltype(count)::value, Nothing, kFirst>(two, not_fetched, x + row * Pairs::kNumbers, here);
    ahead.step(kMeeting * decltype(count)::value);
  });
}

void attend(const Places& seen, const Places& next, const Queries& queries) {
  AttentionRoom& room = own_room<AttentionRoom>();
  const int64_t width = queries.width, lines = width / 32, all = queries.count, steps = seen.count / 32;
  const bool once = all <= kAtOnce;  // then columns are used as soon as they are there, and not again
  Ahead ahead(next, 2 * steps * lines * (2 * kRepacking + all * kMeeting));
  for (int64_t from = 0; from < all; from += kAtOnce) {
    const int64_t count = all - from < kAtOnce ? all - from : kAtOnce;
    const Groups groups(count, kMostRows);
    by_size<kMostRows>(groups, [&](auto size) {
      constexpr int N = decltype(size)::value;
      for (int64_t i = 0; i < steps; ++i) {
        char* columns = room.keys + (once ? 0 : i * 64 * width);
        if (from == 0) repack_keys(seen, i * 32, width, columns, ahead);
        const std::int32_t* x = static_cast<const std::int32_t*>(queries.packed) + from * Pairs::kNumbers;
        const Results scores{room.scores[0] + i * 32, kScoresApart};
        meet<N, true>(columns, 32 * width, groups, x, scores, ahead);
        for (int64_t line = 1; line < lines; ++line) {
          x += all * Pairs::kNumbers;
          meet<N, false>(columns + line * 1024, 32 * width, groups, x, scores, ahead);
        }
      }
    });
    soften_whole({room.scores[0], kScoresApart, count, seen.count, queries.scale}, queries.found.tops + from,
                 queries.found.sums + from, [&](int64_t q, int64_t i, V16 a, V16 b) {
                   _mm512_store_si512(room.weights[i / 32][q], pair_up((__m512i)_mm512_cvtne2ps_pbh(b.x, a.x)));
                 });
    by_size<kMostRows>(groups, [&](auto size) {
      constexpr int N = decltype(size)::value;
      for (int64_t i = 0; i < steps; ++i) {
        char* columns = room.values + (once ? 0 : i * 64 * width);
        if (from == 0) repack_values(seen, i * 32, width, columns, ahead);
        for (int64_t line = 0; line < lines; ++line) {
          const char* here = columns + line * 2048;
          const Results outs{room.outs + line * 32, width};
          if (i) {
            meet<N, false>(here, 1024, groups, room.weights[i][0], outs, ahead);
          } else {
            meet<N, true>(here, 1024, groups, room.weights[i][0], outs, ahead);
          }
        }
      }
    });
    std::memcpy(queries.found.outs + from * width, room.outs, static_cast<std::size_t>(count * width) * 4);
  }
}

}  // namespace
