// bf16 with 512-bit registers: 32 inputs of 16 outputs at a time. Their 16 lines of 16 pairs become 16 columns of
// pairs, one output a lane. An instruction set's file includes this behind isa.inl and gives a class that multiplies
// pairs, `M`:
//
//   M::Number, M::kNumbers    what a row's 32 packed inputs are: kNumbers Numbers
//   M::arranged(line)         a line of weights, with the pairs that `multiply` wants
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

constexpr int64_t kAhead = 8 << 10;  // bytes of repacked weights that are fetched ahead

template <class M, int N>
inline void rows_block(const __m512i* columns, const typename M::Number* x, Results results) {
  __m512 even[N], odd[N];
  for (int n = 0; n < N; ++n) even[n] = odd[n] = _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    for (int n = 0; n < N; ++n) M::multiply(t, columns[t], x + n * M::kNumbers, &even[n], &odd[n]);
  }
  for (int n = 0; n < N; ++n) {
    float* out = results.at(n);
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), _mm512_add_ps(even[n], odd[n])));
  }
}

// The rest together: a row alone would wait for its own sums.
template <class M>
inline void all_rows(const __m512i* columns, int64_t n, const typename M::Number* x, Results results) {
  int64_t row = 0;
  for (; row + 4 <= n; row += 4, x += 4 * M::kNumbers, results.to += 4 * results.stride) {
    rows_block<M, 4>(columns, x, results);
  }
  if (n - row == 3) {
    rows_block<M, 3>(columns, x, results);
  } else if (n - row == 2) {
    rows_block<M, 2>(columns, x, results);
  } else if (n - row == 1) {
    rows_block<M, 1>(columns, x, results);
  }
}

// The first row's inputs; those of the next 32 lie `rows.n` rows behind them.
template <class M>
inline const typename M::Number* first_of(const PackedRows& rows) {
  return static_cast<const typename M::Number*>(rows.packed) + rows.from * M::kNumbers;
}

template <class M>
void linear_blocks(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const int64_t lines = padded(k, 32) / 32;
  clear(blocks, rows.count(), results);
  const int64_t n = rows.count(), all = rows.n * M::kNumbers;
  for (int64_t block = 0; block < blocks; ++block, weights += kTile) {
    const Results out = results.block(block);
    const int64_t next = next_rows(weights);
    const typename M::Number* x = first_of<M>(rows);
    for (int64_t line = 0; line < lines; ++line, x += all) {
      __m512i columns[16];
      for (int i = 0; i < 16; ++i) {
        columns[i] = M::arranged(load_line(weights[i], line, k - line * 32));
        fetch_ahead(weights, i, line, lines, next);
      }
      transpose(columns);
      all_rows<M>(columns, n, x, out);
    }
  }
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

template <class M>
void linear_repacked(const void* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const char* from = static_cast<const char*>(weights);
  clear(blocks, rows.count(), results);
  const int64_t n = rows.count(), all = rows.n * M::kNumbers;
  for (int64_t block = 0; block < blocks; ++block) {
    const Results out = results.block(block);
    const typename M::Number* x = first_of<M>(rows);
    for (int64_t line = 0; line * 32 < k; ++line, from += 1024, x += all) {
      __m512i columns[16];
      for (int i = 0; i < 16; ++i) {
        columns[i] = _mm512_loadu_si512(from + i * 64);
        _mm_prefetch(from + kAhead + i * 64, _MM_HINT_T1);
      }
      all_rows<M>(columns, n, x, out);
    }
  }
}

}  // namespace
