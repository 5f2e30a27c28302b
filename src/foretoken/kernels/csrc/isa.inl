// The kernels that every instruction set shares: written once over 16 floats (V16), compiled once for each. An
// instruction set's file includes its vector header first, and adds `bytes_bf16`, `pack_bf16` and `linear_bf16`, which
// know the instructions, and for low-bit weights `bytes_values`, `pack_values` and `linear_values`.
#include "kernels.h"

namespace {

using foretoken::Format;
using foretoken::Found;
using foretoken::kFolded;
using foretoken::kTile;
using foretoken::PackedRows;
using foretoken::Places;
using foretoken::Queries;
using foretoken::Results;
using std::int64_t;

// -- rows at once ------------------------------------------------------------------------------------------------------

template <int N>
struct Size {
  static constexpr int value = N;
};

// Rows, one at least, in groups that are multiplied at once, of at most so many, and as even as possible: a row alone would
// wait for its own sums.
struct Groups {
  int64_t size, large, small;  // of the first groups; how many of those; how many later ones, which have a row less

  Groups(int64_t rows, int64_t most) {
    const int64_t all = (rows + most - 1) / most;
    size = (rows + all - 1) / all;
    small = all * size - rows;
    large = all - small;
  }

  // use(Size<rows>, first row) for each group. N: what `size` is.
  template <int N, class Use>
  [[gnu::always_inline]] inline void each(const Use& use) const {
    int64_t row = 0;
    for (int64_t i = 0; i < large; ++i, row += N) use(Size<N>{}, row);
    if constexpr (N > 1) {
      for (int64_t i = 0; i < small; ++i, row += N - 1) use(Size<N - 1>{}, row);
    }
  }
};

// use(Size<N>) with the size of the first groups, at most kMost, so that a loop around them knows it.
template <int kMost, class Use>
inline void by_size(const Groups& groups, const Use& use) {
  if constexpr (kMost > 1) {
    if (groups.size < kMost) return by_size<kMost - 1>(groups, use);
  }
  use(Size<kMost>{});
}

// use(Size<N>, first row) for all rows, `kMost` or 2 at a time or one alone.
template <int kMost, class Use>
inline void by_rows(int64_t n, const Use& use) {
  int64_t row = 0;
  for (; row + kMost <= n; row += kMost) use(Size<kMost>{}, row);
  for (; row + 2 <= n; row += 2) use(Size<2>{}, row);
  for (; row < n; ++row) use(Size<1>{}, row);
}

// -- reading a format ---------------------------------------------------------------------------------------------------

template <Format F>
inline V16 load_as(const void* p, int64_t at) {
  if constexpr (F == Format::fp32) return load(static_cast<const float*>(p) + at);
  if constexpr (F == Format::fp16) return load_fp16(static_cast<const std::uint16_t*>(p) + at);
  return load_bf16(static_cast<const std::uint16_t*>(p) + at);
}

template <Format F>
inline V16 load_as(const void* p, int64_t at, int64_t n) {
  if constexpr (F == Format::fp32) return load(static_cast<const float*>(p) + at, n);
  if constexpr (F == Format::fp16) return load_fp16(static_cast<const std::uint16_t*>(p) + at, n);
  return load_bf16(static_cast<const std::uint16_t*>(p) + at, n);
}

template <Format F>
void embed_as(const void* row, int64_t width, float* out) {
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) store(out + i, load_as<F>(row, i));
  if (i < width) store(out + i, load_as<F>(row, i, width - i), width - i);
}

void embed(Format format, const void* row, int64_t width, float* out) {
  if (format == Format::bf16) return embed_as<Format::bf16>(row, width, out);
  if (format == Format::fp16) return embed_as<Format::fp16>(row, width, out);
  embed_as<Format::fp32>(row, width, out);
}

void store_row(Format format, const float* x, int64_t n, void* out) {
  std::uint16_t* half = static_cast<std::uint16_t*>(out);
  if (format == Format::fp32) {
    std::memcpy(out, x, static_cast<std::size_t>(n) * 4);
  } else if (format == Format::fp16) {
    for (int64_t i = 0; i < n; ++i) half[i] = to_fp16(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) half[i] = to_bf16(x[i]);
  }
}

// -- linear, float32 and float16 weights ----------------------------------------------------------------------------
// Lane l of 16 sums inputs l, 16 + l, 32 + l, ... with one rounding a step; the lanes are added by halves (`sum`).
// Packed: the rows as they are, each padded with zeros to a multiple of 16.

inline int64_t padded(int64_t k, int64_t to) { return (k + to - 1) / to * to; }

void pack_float(const float* x, int64_t stride, int64_t from, int64_t to, int64_t k, float* packed) {
  const int64_t wide = padded(k, 16);
  for (int64_t n = from; n < to; ++n) {
    std::memcpy(packed + n * wide, x + n * stride, static_cast<std::size_t>(k) * 4);
    for (int64_t i = k; i < wide; ++i) packed[n * wide + i] = 0.0f;
  }
}

template <Format F, int M, int N>
inline void linear_block(const void* const* weights, int64_t k, const float* rows, int64_t wide, Results out) {
  V16 sums[M][N];
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) sums[m][n] = set1(0.0f);
  }
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    V16 x[N];
    for (int n = 0; n < N; ++n) x[n] = load(rows + n * wide + i);
    for (int m = 0; m < M; ++m) {
      const V16 w = load_as<F>(weights[m], i);
      for (int n = 0; n < N; ++n) sums[m][n] = fma(w, x[n], sums[m][n]);
    }
  }
  if (i < k) {
    for (int m = 0; m < M; ++m) {
      const V16 w = load_as<F>(weights[m], i, k - i);
      for (int n = 0; n < N; ++n) sums[m][n] = fma(w, load(rows + n * wide + i), sums[m][n]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) out.at(n)[m] = sum(sums[m][n]);
  }
}

template <Format F>
void linear_float(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const int64_t wide = padded(k, 16);
  const float* packed = static_cast<const float*>(rows.packed) + rows.from * wide;
  for (int64_t block = 0; block < blocks; ++block, weights += kTile) {
    for (int m = 0; m < kTile; m += kOutputs) {
      auto out = [&](int64_t row) { return Results{results.block(block).at(row) + m, results.stride}; };
      int64_t n = 0;
      for (; n + kRows <= rows.count(); n += kRows) {
        linear_block<F, kOutputs, kRows>(weights + m, k, packed + n * wide, wide, out(n));
      }
      for (; n < rows.count(); ++n) linear_block<F, kOutputs, 1>(weights + m, k, packed + n * wide, wide, out(n));
    }
  }
}

// -- linear, bfloat16 weights ----------------------------------------------------------------------------------------

std::size_t bytes_bf16(int64_t n, int64_t k);
void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed);
void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results);

// A room of this thread. gcc would ask for its address anew at each use, with a call; the empty statement hides from it where
// the address came from.
template <class Room>
[[gnu::always_inline]] inline Room& own_room() {
  static thread_local Room room;
  Room* at = &room;
  __asm__("" : "+r"(at));
  return *at;
}

// Spreads so many things evenly over `all` steps.
class Evenly {
 public:
  Evenly(int64_t things, int64_t all) : things_(things), all_(all) {}

  // use() for each thing that is due with the next steps.
  template <class Use>
  void step(int64_t steps, const Use& use) {
    for (so_far_ += things_ * steps; so_far_ >= all_; so_far_ -= all_) use();
  }

 private:
  const int64_t things_, all_;
  int64_t so_far_ = 0;
};

// For kernels that add to results once for each 32 inputs.
inline void clear(int64_t blocks, int64_t rows, const Results& results) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) store(results.block(block).at(row), set1(0.0f));
  }
}

std::size_t packed_bytes(Format format, int64_t n, int64_t k) {
  return format == Format::bf16 ? bytes_bf16(n, k) : static_cast<std::size_t>(n * padded(k, 16)) * 4;
}

void pack(Format format, const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  if (format == Format::bf16) return pack_bf16(x, stride, from, to, n, k, packed);
  pack_float(x, stride, from, to, k, static_cast<float*>(packed));
}

void linear(Format format, const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows,
            const Results& results) {
  if (format == Format::bf16) return linear_bf16(weights, blocks, k, rows, results);
  if (format == Format::fp16) return linear_float<Format::fp16>(weights, blocks, k, rows, results);
  linear_float<Format::fp32>(weights, blocks, k, rows, results);
}

// -- elementwise ----------------------------------------------------------------------------------------------------

constexpr float kWholeFloat = 0x1.8p23f;  // added, it rounds to a whole number, which then stands in the last bits

// e^x to about one unit in the last place: x = n log 2 + r, then Taylor's series of e^r, |r| <= 0.35, to r^7. x: at most
// 88.37626, or what is given does not count, as beside a NaN.
inline V16 exponential_of_small(V16 x) {
  const V16 shifted = fma(x, set1(1.44269504f), set1(kWholeFloat));
  const V16 n = sub(shifted, set1(kWholeFloat));
  const V16 r = fma(n, set1(-1.42860682e-6f), fma(n, set1(-0.693145752f), x));
  V16 y = fma(set1(1.0f / 5040), r, set1(1.0f / 720));
  y = fma(y, r, set1(1.0f / 120));
  y = fma(y, r, set1(1.0f / 24));
  y = fma(y, r, set1(1.0f / 6));
  y = fma(y, r, set1(0.5f));
  y = fma(y, r, set1(1.0f));
  y = fma(y, r, set1(1.0f));
  return times_power_of_two(y, n, shifted, x, -87.33654f);
}

inline V16 exponential(V16 x) { return exponential_of_small(min(set1(88.37626f), x)); }

float dot_self(const float* x, int64_t n) {
  V16 squares = set1(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {
    const V16 v = load(x + i, n - i);
    squares = fma(v, v, squares);
  }
  return sum(squares);
}

void norm(const float* x, const float* weight, float eps, int64_t width, float* out) {
  const float mean = dot_self(x, width) / static_cast<float>(width);
  const V16 scale = set1(1.0f / __builtin_sqrtf(mean + eps));
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < width) {
    const int64_t rest = width - i;
    store(out + i, mul(mul(load(x + i, rest), scale), load(weight + i, rest)), rest);
  }
}

inline V16 silu(V16 x) { return div(x, add(set1(1.0f), exponential(sub(set1(0.0f), x)))); }

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, mul(silu(load(gate + i)), load(up + i)));
  if (i < n) store(out + i, mul(silu(load(gate + i, n - i)), load(up + i, n - i)), n - i);
}

// Number i of a head is paired with i + half.
void rotate(float* head, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t rest = half - i;
    const V16 a = load(head + i, rest), b = load(head + half + i, rest);
    const V16 c = load(cosines + i, rest), s = load(sines + i, rest);
    store(head + i, sub(mul(a, c), mul(b, s)), rest);
    store(head + half + i, add(mul(b, c), mul(a, s)), rest);
  }
}

// -- choice ---------------------------------------------------------------------------------------------------------

int64_t argmax(const float* values, int64_t n) {
  V16 best = set1(values[0]);
  bool nan = false;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 v = load(values + i);
    nan |= any_nan(v);
    best = max(best, v);
  }
  float top = largest(best);
  for (; i < n; ++i) {
    nan |= values[i] != values[i];
    top = values[i] > top ? values[i] : top;
  }
  if (nan) return -1;
  for (i = 0; i < n; ++i) {
    if (values[i] == top) return i;
  }
  return -1;
}

// For scores of drafts: sums of floats move the logarithm by less than 1e-3, also where all logits are alike.
double log_total(const float* x, int64_t n, float temperature) {
  const V16 never = set1(-__builtin_inff());
  const int64_t rest = n % 16, whole = n - rest;
  const V16 last = rest ? keep(load(x + whole, rest), never, 0, static_cast<int>(rest)) : never;
  V16 most = last;
  for (int64_t i = 0; i < whole; i += 16) most = max(most, load(x + i));
  const float top = largest(most), scale = 1.0f / temperature;
  auto share = [&](V16 v) { return exponential(mul(sub(v, set1(top)), set1(scale))); };
  V16 total = share(last);
  for (int64_t i = 0; i < whole; i += 16) total = add(total, share(load(x + i)));
  return static_cast<double>(top) / static_cast<double>(temperature) + __builtin_log(static_cast<double>(sum(total)));
}

}  // namespace

#include "choosing.inl"
#include "codes.inl"
#include "coding.inl"
#include "weighing.inl"
#include "attention_bytes.inl"

namespace {

constexpr int64_t kNeverMany = INT64_MAX;

// `repack`, `pack_repacked` and `linear_repacked`, where the instruction set has them. Made by the compiler: code of this
// file that filled the table would run on machines that lack its instructions, which only ask whether the table exists.
template <class Repack, class Pack, class Linear>
constexpr foretoken::Kernels table_of(const char* name, int64_t together, foretoken::ManyRows rows, int64_t mxfp4_rows,
                                      Repack repack, Pack pack_repacked, Linear linear_repacked,
                                      decltype(foretoken::Kernels::weigh) weighing = weigh,
                                      decltype(foretoken::Kernels::attend) attend = nullptr, int64_t attend_from = 0,
                                      decltype(foretoken::Kernels::pack_step) pack_step = nullptr) {
  return {name, together, rows, mxfp4_rows, packed_bytes, pack, linear, repack, pack_repacked, linear_repacked, pack_step,
          coded_bytes, pack_coded, linear_coded, embed, norm, silu_mul, rotate, store_row, soften, weighing, attend,
          attend_from, code_places, kAttendCoded, fold, divide, argmax, rank, log_total};
}

}  // namespace
