// bf16 with 512-bit registers: 32 inputs of 16 outputs at a time. Their 16 lines of 16 pairs become 16 columns of
// pairs, one output a lane. An instruction set's file includes this behind isa.inl and gives a class that multiplies
// pairs, `M`:
//
//   M::Number, M::kNumbers    what a row's 32 packed inputs are: kNumbers Numbers
//   M::arranged(line)         a line of weights, with the pairs that `multiply` wants
//   M::nth(i)                 which column is multiplied i-th
//   M::multiply(t, column, x, even, odd)
//                             adds the products of column t and a row's inputs x to the sums that they belong to

#include "transpose_avx512.inl"

namespace {

constexpr int64_t kLongRow = 24;  // lines; shorter rows are keys, which attention fetches itself

// 32 numbers of a weight's row, with zeros behind its end.
inline __m512i load_line(const void* row, int64_t block, int64_t rest) {
  const std::uint16_t* at = static_cast<const std::uint16_t*>(row) + block * 32;
  if (rest >= 32) return _mm512_loadu_si512(at);
  return _mm512_maskz_loadu_epi16((1u << static_cast<unsigned>(rest)) - 1u, at);
}

// Repacked weights are fetched so many bytes ahead, into the first cache if that is wide enough, or into the second.
struct Near {
  static constexpr int64_t kAhead = 4 << 10;
  static void fetch(const char* at) { foretoken::will_use<3>(at); }
};
struct Far {
  static constexpr int64_t kAhead = 8 << 10;
  static void fetch(const char* at) { foretoken::will_use<2>(at); }
};
struct Nothing {
  static void fetch(const char*) {}
};

// N rows meet a line's columns of B blocks: each number of a row is read once for all of them. Meanwhile what will be read
// later, as many lines, is fetched. kFirst: the results are not cleared yet.
template <class M, int B, int N, class Fetch, bool kFirst = false>
[[gnu::always_inline]] inline void rows_block(const __m512i* const* columns, const char* const* later,
                                              const typename M::Number* x, const Results* results) {
  __m512 even[B][N], odd[B][N];
  for (int b = 0; b < B; ++b) {
    for (int n = 0; n < N; ++n) even[b][n] = odd[b][n] = _mm512_setzero_ps();
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const int t = M::nth(i);
    __m512i column[B];
    for (int b = 0; b < B; ++b) {
      column[b] = _mm512_loadu_si512(columns[b] + t);
      Fetch::fetch(later[b] + i * 64);
    }
    for (int n = 0; n < N; ++n) {
      for (int b = 0; b < B; ++b) M::multiply(t, column[b], x + n * M::kNumbers, &even[b][n], &odd[b][n]);
    }
  }
  for (int b = 0; b < B; ++b) {
    for (int n = 0; n < N; ++n) {
      float* out = results[b].at(n);
      const __m512 before = kFirst ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
      _mm512_storeu_ps(out, _mm512_add_ps(before, _mm512_add_ps(even[b][n], odd[b][n])));
    }
  }
}

constexpr int kMostRows = 4;  // at once: with two blocks, their sums fit into the registers, and take turns well

// All rows, in groups of which the first have N rows.
template <class M, int B, int N, class Fetch = Nothing>
[[gnu::always_inline]] inline void all_rows(const __m512i* const* columns, const char* const* later, const Groups& groups,
                                            const typename M::Number* x, const Results* to) {
  Results results[B];
  for (int b = 0; b < B; ++b) results[b] = to[b];
  auto behind = [&](int64_t rows) {
    x += rows * M::kNumbers;
    for (int b = 0; b < B; ++b) results[b].to += rows * results[b].stride;
  };
  rows_block<M, B, N, Fetch>(columns, later, x, results);
  behind(N);
  for (int64_t i = 1; i < groups.large; ++i, behind(N)) rows_block<M, B, N, Nothing>(columns, later, x, results);
  if constexpr (N > 1) {
    for (int64_t i = 0; i < groups.small; ++i, behind(N - 1)) {
      rows_block<M, B, N - 1, Nothing>(columns, later, x, results);
    }
  }
}

// The same with columns that were just made, of one block.
template <class M, int N>
[[gnu::always_inline]] inline void all_rows_here(const __m512i* columns, const Groups& groups, const typename M::Number* x,
                                                 const Results& results) {
  const char* const not_fetched = reinterpret_cast<const char*>(columns);
  all_rows<M, 1, N>(&columns, &not_fetched, groups, x, &results);
}

// The first row's inputs; those of the next 32 lie `rows.n` rows behind them.
template <class M>
inline const typename M::Number* first_of(const PackedRows& rows) {
  return static_cast<const typename M::Number*>(rows.packed) + rows.from * M::kNumbers;
}

// Whether 16 rows lie behind each other.
inline bool adjoining(const void* const* weights, int64_t k) {
  return static_cast<const char*>(weights[15]) - static_cast<const char*>(weights[0]) == 15 * 2 * k;
}

// While 16 rows are read, a line of each at a time, the 16 behind them are fetched, as many lines at a time. These are taken in
// the order of addresses: memory is faster by a third then than with 16 rows in turn.
template <class M>
void linear_blocks(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const int64_t lines = padded(k, 32) / 32, all = rows.n * M::kNumbers;
  const bool long_rows = lines >= kLongRow && foretoken::first_cache_is_wide();  // others gain nothing by it
  const Groups groups(rows.count(), kMostRows);
  clear(blocks, rows.count(), results);
  by_size<kMostRows>(groups, [&](auto size) {
    for (int64_t block = 0; block < blocks; ++block) {
      const void* const* here = weights + block * kTile;
      const Results out = results.block(block);
      const bool fetches = long_rows && adjoining(here, k);
      const char* later = fetches ? static_cast<const char*>(here[0]) + kTile * 2 * k : nullptr;
      const typename M::Number* x = first_of<M>(rows);
      for (int64_t line = 0; line < lines; ++line, x += all) {
        __m512i columns[16];
        for (int i = 0; i < 16; ++i) {
          columns[i] = M::arranged(load_line(here[i], line, k - line * 32));
          if (!fetches) continue;
          foretoken::will_use<3>(later);
          later += 64;
        }
        transpose(columns);
        all_rows_here<M, decltype(size)::value>(columns, groups, x, out);
      }
    }
  });
}

template <class M>
void repack_blocks(const void* const* weights, int64_t k, void* out) {
  for (int64_t block = 0; block * 32 < k; ++block) {
    __m512i columns[16];
    for (int i = 0; i < 16; ++i) columns[i] = M::arranged(load_line(weights[i], block, k - block * 32));
    transpose(columns);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(static_cast<char*>(out) + block * 1024 + i * 64, columns[i]);
  }
}

template <class M, int B, int N, class Fetch>
inline void repacked_some(const char* weights, int64_t k, const PackedRows& rows, const Groups& groups,
                          const Results& results) {
  const int64_t bytes = static_cast<int64_t>(foretoken::repacked_bytes(k));
  const typename M::Number* x = first_of<M>(rows);
  Results each[B];
  for (int b = 0; b < B; ++b) each[b] = results.block(b);
  for (int64_t at = 0; at < bytes; at += 1024, x += rows.n * M::kNumbers) {
    const int64_t past = at + Fetch::kAhead < bytes ? 0 : (B - 1) * bytes;  // behind a block comes that of the next B
    const __m512i* columns[B];
    const char* later[B];
    for (int b = 0; b < B; ++b) {
      const char* line = weights + b * bytes + at;
      columns[b] = reinterpret_cast<const __m512i*>(line);
      later[b] = line + Fetch::kAhead + past;
    }
    all_rows<M, B, N, Fetch>(columns, later, groups, x, each);
  }
}

// Two blocks at a time; or one after the other of few rows, which wait for memory and not for inputs, and where the first
// cache is small.
template <class M>
void linear_repacked(const void* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const char* from = static_cast<const char*>(weights);
  const std::size_t bytes = foretoken::repacked_bytes(k);
  const bool near = foretoken::first_cache_is_wide();
  const Groups groups(rows.count(), kMostRows);
  clear(blocks, rows.count(), results);
  by_size<kMostRows>(groups, [&](auto size) {
    constexpr int N = decltype(size)::value;
    int64_t block = 0;
    auto some = [&](auto count, auto fetch) {
      constexpr int B = decltype(count)::value;
      for (; block + B <= blocks; block += B) {
        repacked_some<M, B, N, decltype(fetch)>(from + block * bytes, k, rows, groups, results.block(block));
      }
    };
    if (!near) return some(Size<1>{}, Far{});
    if constexpr (N > 2) some(Size<2>{}, Near{});
    some(Size<1>{}, Near{});
  });
}

}  // namespace
