// bf16 with 512-bit registers: 32 inputs of 16 outputs at a time. Their 16 lines of 16 pairs become 16 columns of
// pairs, one output a lane. An instruction set's file includes this behind isa.inl and gives a class that multiplies
// pairs, `M`:
//
//   M::Number, M::kNumbers    what a row's 32 packed inputs are: kNumbers Numbers
//   M::arranged(line)         a line of weights, with the pairs that `multiply` wants
//   M::column(i)              which column is multiplied i-th
//   M::multiply(t, column, x, even, odd)
//                             adds the products of column t and a row's inputs x to the sums that they belong to

#include "transpose_avx512.inl"

namespace {

// Bytes from 16 rows to the 16 behind them, if rows lie at equal distances; else something harmless.
inline int64_t next_rows(const void* const* weights) {
  return (static_cast<const char*>(weights[15]) - static_cast<const char*>(weights[0])) / 15 * 16;
}

// Fetches one line ahead for 16 rows of `blocks` lines, of which `block` is being read: the i-th call of 16. Four
// lines of a row follow each other, which memory likes; behind the end of a row comes the row 16 further on, `next`
// bytes away. Short rows are keys, which attention fetches itself.
inline void fetch_ahead(const void* const* weights, int i, int64_t block, int64_t blocks, int64_t next) {
  constexpr int64_t kLines = 24;
  if (blocks < kLines) return;
  const int64_t row = (block & 3) * 4 + i / 4, line = (block & ~int64_t{3}) + kLines + (i & 3);
  const int64_t past = line < blocks ? 0 : next - blocks * 64;
  _mm_prefetch(static_cast<const char*>(weights[row]) + line * 64 + past, _MM_HINT_T1);
}

// 32 numbers of a weight's row, with zeros behind its end.
inline __m512i load_line(const void* row, int64_t block, int64_t rest) {
  const std::uint16_t* at = static_cast<const std::uint16_t*>(row) + block * 32;
  if (rest >= 32) return _mm512_loadu_si512(at);
  return _mm512_maskz_loadu_epi16((1u << static_cast<unsigned>(rest)) - 1u, at);
}

constexpr int64_t kAhead = 4 << 10;  // bytes of repacked weights that are fetched ahead

// N rows meet a line's columns of B blocks: each number of a row is read once for all of them. What lies `kFetch` bytes
// behind the columns is fetched meanwhile, if that is not 0.
template <class M, int B, int N, int64_t kFetch>
[[gnu::always_inline]] inline void rows_block(const __m512i* const* columns, const typename M::Number* x, const Results* results) {
  __m512 even[B][N], odd[B][N];
  for (int b = 0; b < B; ++b) {
    for (int n = 0; n < N; ++n) even[b][n] = odd[b][n] = _mm512_setzero_ps();
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const int t = M::column(i);
    __m512i column[B];
    for (int b = 0; b < B; ++b) {
      column[b] = _mm512_load_si512(columns[b] + t);
      if (kFetch) _mm_prefetch(reinterpret_cast<const char*>(columns[b] + i) + kFetch, _MM_HINT_T0);
    }
    for (int n = 0; n < N; ++n) {
      for (int b = 0; b < B; ++b) M::multiply(t, column[b], x + n * M::kNumbers, &even[b][n], &odd[b][n]);
    }
  }
  for (int b = 0; b < B; ++b) {
    for (int n = 0; n < N; ++n) {
      float* out = results[b].at(n);
      _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), _mm512_add_ps(even[b][n], odd[b][n])));
    }
  }
}

// Rows in groups that are multiplied at once, as even as possible: a row alone would wait for its own sums.
struct Groups {
  static constexpr int64_t kMost = 4;  // rows of a group
  int64_t size, large, small;          // of the first groups; how many of those; how many later ones, which have a row less

  explicit Groups(int64_t rows) {
    const int64_t all = (rows + kMost - 1) / kMost;
    size = (rows + all - 1) / all;
    small = all * size - rows;
    large = all - small;
  }
};

// All rows, in groups of which the first have N rows.
template <class M, int B, int N, int64_t kFetch = 0>
[[gnu::always_inline]] inline void all_rows(const __m512i* const* columns, const Groups& groups, const typename M::Number* x, const Results* to) {
  Results results[B];
  for (int b = 0; b < B; ++b) results[b] = to[b];
  auto behind = [&](int64_t rows) {
    x += rows * M::kNumbers;
    for (int b = 0; b < B; ++b) results[b].to += rows * results[b].stride;
  };
  rows_block<M, B, N, kFetch>(columns, x, results);
  behind(N);
  for (int64_t i = 1; i < groups.large; ++i, behind(N)) rows_block<M, B, N, 0>(columns, x, results);
  if constexpr (N > 1) {
    for (int64_t i = 0; i < groups.small; ++i, behind(N - 1)) rows_block<M, B, N - 1, 0>(columns, x, results);
  }
}

template <int N>
struct Size {
  static constexpr int value = N;
};

// use(Size<N>) with the size of the first groups.
template <class Use>
inline void by_size(const Groups& groups, const Use& use) {
  switch (groups.size) {
    case 1: return use(Size<1>{});
    case 2: return use(Size<2>{});
    case 3: return use(Size<3>{});
    default: return use(Size<4>{});
  }
}

// The first row's inputs; those of the next 32 lie `rows.n` rows behind them.
template <class M>
inline const typename M::Number* first_of(const PackedRows& rows) {
  return static_cast<const typename M::Number*>(rows.packed) + rows.from * M::kNumbers;
}

template <class M>
void linear_blocks(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const int64_t lines = padded(k, 32) / 32, all = rows.n * M::kNumbers;
  const Groups groups(rows.count());
  clear(blocks, rows.count(), results);
  by_size(groups, [&](auto size) {
    for (int64_t block = 0; block < blocks; ++block) {
      const void* const* here = weights + block * kTile;
      const Results out = results.block(block);
      const int64_t next = next_rows(here);
      const typename M::Number* x = first_of<M>(rows);
      for (int64_t line = 0; line < lines; ++line, x += all) {
        __m512i columns[16];
        for (int i = 0; i < 16; ++i) {
          columns[i] = M::arranged(load_line(here[i], line, k - line * 32));
          fetch_ahead(here, i, line, lines, next);
        }
        transpose(columns);
        const __m512i* const one = columns;
        all_rows<M, 1, decltype(size)::value>(&one, groups, x, &out);
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

template <class M, int B, int N>
inline void repacked_some(const char* weights, int64_t k, const PackedRows& rows, const Groups& groups,
                          const Results& results) {
  const int64_t bytes = static_cast<int64_t>(foretoken::repacked_bytes(k));
  const typename M::Number* x = first_of<M>(rows);
  Results each[B];
  for (int b = 0; b < B; ++b) each[b] = results.block(b);
  for (int64_t at = 0; at < bytes; at += 1024, x += rows.n * M::kNumbers) {
    const __m512i* columns[B];
    for (int b = 0; b < B; ++b) columns[b] = reinterpret_cast<const __m512i*>(weights + b * bytes + at);
    all_rows<M, B, N, kAhead>(columns, groups, x, each);
  }
}

// Two blocks at a time, or of few rows, which wait for memory and not for inputs, one after the other.
template <class M>
void linear_repacked(const void* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const char* from = static_cast<const char*>(weights);
  const std::size_t bytes = foretoken::repacked_bytes(k);
  const Groups groups(rows.count());
  clear(blocks, rows.count(), results);
  by_size(groups, [&](auto size) {
    constexpr int N = decltype(size)::value;
    int64_t block = 0;
    if constexpr (N > 2) {
      for (; block + 2 <= blocks; block += 2) {
        repacked_some<M, 2, N>(from + block * bytes, k, rows, groups, results.block(block));
      }
    }
    for (; block < blocks; ++block) repacked_some<M, 1, N>(from + block * bytes, k, rows, groups, results.block(block));
  });
}

}  // namespace
