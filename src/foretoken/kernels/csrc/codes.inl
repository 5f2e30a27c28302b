// Low-bit weights: written once over the vectors of an instruction set's header (V16, Bytes, Ints), compiled for each.
// docs/formats.md says how codes lie; with int8 and fp32 inputs `kernels/coded.py` defines what is computed, with bf16
// inputs `kernels/reference.py`, of the values that the codes mean.
//
// With int8 inputs, sums over 32 inputs are whole numbers, so every instruction set has the same. An instruction set's
// file adds what depends on its instructions for bf16 inputs: `bytes_values`, `pack_values` and `linear_values`.

namespace {

using foretoken::blocks_of;
using foretoken::Codes;
using foretoken::codes_at;
using foretoken::Inputs;

constexpr float kSmallest = 0x1p-40f, kLargest = 0x1p60f;  // of a block of inputs: less is zero, more is no number

#if !defined(FORETOKEN_CODES_AHEAD)
#define FORETOKEN_CODES_AHEAD (4 << 10)
#endif
#if !defined(FORETOKEN_INT8_NEAR)
#define FORETOKEN_INT8_NEAR foretoken::first_cache_is_wide()
#endif

// Where codes are fetched to: how many bytes ahead, and into which cache, was measured (LOG.md). Blocks of four bits and
// less go into the first; int8's come faster than a small one takes them, and farther ahead where several rows take longer.
template <Format F>
class Fetching {
 public:
  static constexpr int64_t kBytes = foretoken::block_bytes(F);

  explicit Fetching(int64_t rows)
      : first_(kBytes <= 256 || FORETOKEN_INT8_NEAR),
        ahead_(first_ ? FORETOKEN_CODES_AHEAD : rows > 1 ? 8 << 10 : 4 << 10) {}

  int64_t ahead() const { return ahead_; }  // bytes
  // The block that lies so far behind one. past: bytes that are passed over besides.
  void behind(const std::uint8_t* block, int64_t past = 0) const {
    const char* later = reinterpret_cast<const char*>(block) + ahead_ + past;
    first_ ? foretoken::will_use<3>(later, kBytes) : foretoken::will_use<2>(later, kBytes);
  }

 private:
  const bool first_;
  const int64_t ahead_;
};

// -- codes ----------------------------------------------------------------------------------------------------------

// A block's eight columns: four inputs of each output, one a byte. mxfp4: twice the value, plus 12.
template <Format F>
inline void unpack(const std::uint8_t* block, Bytes columns[8]) {
  if constexpr (F == Format::int8) {
    for (int j = 0; j < 8; ++j) columns[j] = load_bytes(block + 64 * j);
  } else if constexpr (F == Format::mxfp4 || F == Format::int4) {
    for (int c = 0; c < 4; ++c) {
      const Bytes both = load_bytes(block + 64 * c);
      columns[2 * c] = bits<0>(both, 15);
      columns[2 * c + 1] = bits<4>(both, 15);
    }
    if constexpr (F == Format::mxfp4) {
      alignas(16) constexpr std::uint8_t kTwice[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
      const Bytes table = table16(kTwice);
      for (int j = 0; j < 8; ++j) columns[j] = lookup(table, columns[j]);
    }
  } else {
    for (int c = 0; c < 2; ++c) {
      const Bytes four = load_bytes(block + 64 * c);
      columns[4 * c] = bits<0>(four, 3);
      columns[4 * c + 1] = bits<2>(four, 3);
      columns[4 * c + 2] = bits<4>(four, 3);
      columns[4 * c + 3] = bits<6>(four, 3);
    }
    if constexpr (F == Format::int3) {
      const Bytes upper = load_bytes(block + 128);
      columns[0] = either(columns[0], up<2>(bits<0>(upper, 1)));
      columns[1] = either(columns[1], up<2>(bits<1>(upper, 1)));
      columns[2] = either(columns[2], up<2>(bits<2>(upper, 1)));
      columns[3] = either(columns[3], up<2>(bits<3>(upper, 1)));
      columns[4] = either(columns[4], up<2>(bits<4>(upper, 1)));
      columns[5] = either(columns[5], up<2>(bits<5>(upper, 1)));
      columns[6] = either(columns[6], up<2>(bits<6>(upper, 1)));
      columns[7] = either(columns[7], up<2>(bits<7>(upper, 1)));
    }
  }
}

// What the powers of two of a block of mxfp4 add to a float's bits. One less where the codes are doubled values.
inline Ints exponents(const Codes& w, int64_t block, int less) {
  const Ints bytes = load_small(static_cast<const std::uint8_t*>(w.scales) + block * kTile);
  return left<23>(plus(bytes, ints(-127 - less)));
}

struct Group {  // of 16 outputs
  V16 scale, zero;

  Group(const Codes& w, int64_t index) {
    const Ints both = load_ints(static_cast<const char*>(w.scales) + index * kTile * 4);
    scale = as_floats(left<16>(both));
    zero = as_floats(masked(both, 0xffff0000u));
  }
};

// -- int8 inputs ----------------------------------------------------------------------------------------------------
// Packed: for each 32 inputs, for each row, a Block; then for each row: 1, or NaN where an input was none.

struct Block {
  std::int32_t inputs[8];  // four signed bytes each, in the order of a column's
  std::int32_t start;      // what a sum begins with, where the weights' bytes are too large by a constant
  float scale, sum;        // the scale, and the scale times the sum of the bytes
};

inline std::int32_t excess(Format format) {
  if (format == Format::mxfp4) return 12;
  return format == Format::int8 ? kInt8Excess : 0;
}

inline V16 magnitude(V16 v) { return as_floats(masked(as_ints(v), 0x7fffffffu)); }

inline bool pack_block(const float* x, int64_t rest, std::int32_t too_large, Block* out) {
  const V16 a = load(x, rest < 16 ? rest : 16), b = rest > 16 ? load(x + 16, rest - 16) : set1(0.0f);
  const float top = largest(max(magnitude(a), magnitude(b)));
  std::memset(out, 0, sizeof *out);
  out->scale = 1.0f;
  if (any_nan(a) || any_nan(b) || !(top <= kLargest)) return false;
  if (top < kSmallest) return true;
  const V16 by = set1(127.0f / top), whole = set1(kWholeFloat);
  const V16 first = add(mul(a, by), whole), second = add(mul(b, by), whole);
  store_bytes(first, second, out->inputs);
  const V16 all = add(sub(first, whole), sub(second, whole));  // of whole numbers, so the sum is exact in any order
  const auto total = static_cast<std::int32_t>(sum(all));
  out->start = -too_large * total;
  out->scale = top / 127.0f;
  out->sum = out->scale * static_cast<float>(total);
  return true;
}

void pack_int8(Format format, const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k,
               void* packed) {
  Block* out = static_cast<Block*>(packed);
  float* sound = reinterpret_cast<float*>(out + blocks_of(k) * n);
  const std::int32_t too_large = excess(format);
  for (int64_t row = from; row < to; ++row) {
    bool numbers = true;
    for (int64_t block = 0; block < blocks_of(k); ++block) {
      numbers &= pack_block(x + row * stride + block * 32, k - block * 32, too_large, out + block * n + row);
    }
    sound[row] = numbers ? 1.0f : __builtin_nanf("");
  }
}

// The first row's.
inline const Block* inputs_of(const PackedRows& rows, int64_t block) {
  return static_cast<const Block*>(rows.packed) + block * rows.n + rows.from;
}

template <Format F, int B, int N>
inline void dots(const Bytes (&columns)[B][8], const Block* x, Ints (&sums)[B][N]) {
  for (int r = 0; r < N; ++r) {
    for (int b = 0; b < B; ++b) sums[b][r] = ints(x[r].start);
  }
#if defined(FORETOKEN_WIDE_DOT)
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    for (int r = 0; r < N; ++r) {
      for (int b = 0; b < B; ++b) sums[b][r] = dot(sums[b][r], columns[b][j], x[r].inputs + j);
    }
  }
#else
  if constexpr (F == Format::int8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      for (int r = 0; r < N; ++r) {
        for (int b = 0; b < B; ++b) sums[b][r] = dot_signed(sums[b][r], columns[b][j], x[r].inputs + j);
      }
    }
  } else {
    // a pair of products is at most 2 * 24 * 127 in size: four of them fit into 16 bits
#pragma GCC unroll 2
    for (int j = 0; j < 8; j += 4) {
      for (int r = 0; r < N; ++r) {
        for (int b = 0; b < B; ++b) {
          const std::int32_t* in = x[r].inputs + j;
          const Bytes* four = columns[b] + j;
          const auto even = plus_pairs(pair_dot(four[0], in), pair_dot(four[1], in + 1));
          const auto odd = plus_pairs(pair_dot(four[2], in + 2), pair_dot(four[3], in + 3));
          sums[b][r] = plus(sums[b][r], widen_pairs(plus_pairs(even, odd)));
        }
      }
    }
  }
#endif
}

template <Format F>
inline void load_codes(const std::uint8_t* at, Bytes columns[8]) {
  unpack<F>(at, columns);
#if defined(FORETOKEN_WIDE_DOT)
  if constexpr (F == Format::int8) {
    for (int j = 0; j < 8; ++j) columns[j] = flipped(columns[j]);
  }
#endif
}

// Codes of B blocks of outputs side by side, and where their results go.
template <Format F, int B>
class Side {
 public:
  static constexpr int64_t kBytes = foretoken::block_bytes(F);

  Side(const Codes& first, int64_t k, int64_t rows, const Results& to)
      : blocks_(blocks_of(k)), fetching_(rows) {
    for (int b = 0; b < B; ++b) {
      w[b] = codes_at(first, b, k);
      results[b] = to.block(b);
    }
  }

  // Block `block` of each.
  void load(int64_t block, Bytes (&columns)[B][8]) const {
    for (int b = 0; b < B; ++b) load_codes<F>(w[b].codes + block * kBytes, columns[b]);
  }

  // Fetches what will be read later, while block `block` is used. Behind the last one come those of the next B blocks of
  // outputs.
  [[gnu::always_inline]] void fetch(int64_t block) const {
    const int64_t at = block * kBytes, all = blocks_ * kBytes, past = at + fetching_.ahead() < all ? 0 : (B - 1) * all;
    for (int b = 0; b < B; ++b) fetching_.behind(w[b].codes + at, past);
  }

  Codes w[B];
  Results results[B];

 private:
  const int64_t blocks_;
  const Fetching<F> fetching_;
};

// mxfp4 and int8: a power of two a block, or a scale for all inputs.
template <Format F, int B, int N>
void linear_scaled(const Codes& first, int64_t k, const PackedRows& rows, const Groups& groups, const Results& to) {
  const Side<F, B> side(first, k, rows.count(), to);
  for (int64_t block = 0; block < blocks_of(k); ++block) {
    Bytes columns[B][8];
    Ints power[B];
    side.fetch(block);
    side.load(block, columns);
    // with three rows gcc finds registers for the columns only by moving sums out of theirs
    if constexpr (B > 1 && N == 3 && F != Format::int8) __asm__ volatile("" : : "r"(columns) : "memory");
    if constexpr (F == Format::mxfp4) {
      for (int b = 0; b < B; ++b) power[b] = exponents(side.w[b], block, 1);
    }
    groups.each<N>([&](auto size, int64_t row) {
      constexpr int kSome = decltype(size)::value;
      Ints sums[B][kSome];
      const Block* x = inputs_of(rows, block) + row;
      dots<F, B, kSome>(columns, x, sums);
      for (int r = 0; r < kSome; ++r) {
        for (int b = 0; b < B; ++b) {
          float* out = side.results[b].at(row + r);
          V16 scale = set1(x[r].scale);
          if constexpr (F == Format::mxfp4) scale = as_floats(plus(as_ints(scale), power[b]));
          store(out, fma(to_floats(sums[b][r]), scale, load(out)));
        }
      }
    });
  }
  if constexpr (F == Format::int8) {
    for (int b = 0; b < B; ++b) {
      const V16 scale = load(static_cast<const float*>(side.w[b].scales));
      for (int64_t row = 0; row < rows.count(); ++row) {
        float* out = side.results[b].at(row);
        store(out, mul(load(out), scale));
      }
    }
  }
}

constexpr int64_t kMostKept = 4;  // blocks of a group whose columns are kept for all rows

// Whole numbers with a scale and a zero point a group. kKeeps: whether a group's columns are made once for all rows, or anew
// for each group of rows.
template <Format F, int B, int N, bool kKeeps>
void linear_grouped(const Codes& first, int64_t k, const PackedRows& rows, const Groups& groups, const Results& to) {
  const Side<F, B> side(first, k, rows.count(), to);
  const int64_t blocks = blocks_of(k), each = first.group / 32;
  for (int64_t from = 0; from < blocks; from += each) {
    V16 scale[B], minus_zero[B];
    for (int b = 0; b < B; ++b) {
      const Group group(side.w[b], from / each);
      scale[b] = group.scale;
      minus_zero[b] = sub(set1(0.0f), group.zero);
    }
    const int64_t end = from + each < blocks ? from + each : blocks;
    Bytes kept[kKeeps ? kMostKept : 1][B][8];
    for (int64_t block = from; kKeeps && block < end; ++block) side.load(block, kept[block - from]);
    groups.each<N>([&](auto size, int64_t row) {
      constexpr int kSome = decltype(size)::value;
      V16 products[B][kSome];
      float inputs[kSome] = {};
      for (int b = 0; b < B; ++b) {
        for (int r = 0; r < kSome; ++r) products[b][r] = set1(0.0f);
      }
      for (int64_t block = from; block < end; ++block) {
        Ints sums[B][kSome];
        const Block* x = inputs_of(rows, block) + row;
        if (row == 0) side.fetch(block);
        if constexpr (kKeeps) {
          dots<F, B, kSome>(kept[block - from], x, sums);
        } else {
          Bytes columns[B][8];
          side.load(block, columns);
          dots<F, B, kSome>(columns, x, sums);
        }
        for (int r = 0; r < kSome; ++r) {
          for (int b = 0; b < B; ++b) products[b][r] = fma(to_floats(sums[b][r]), set1(x[r].scale), products[b][r]);
          inputs[r] += x[r].sum;
        }
      }
      for (int r = 0; r < kSome; ++r) {
        for (int b = 0; b < B; ++b) {
          float* out = side.results[b].at(row + r);
          store(out, fma(scale[b], fma(minus_zero[b], set1(inputs[r]), products[b][r]), load(out)));
        }
      }
    });
  }
}

template <Format F, int B>
void linear_as(const Codes& w, int64_t k, const PackedRows& rows, const Results& results) {
  const Groups groups(rows.count(), kCodeRows);
  by_size<kCodeRows>(groups, [&](auto size) {
    constexpr int N = decltype(size)::value;
    if constexpr (F == Format::mxfp4 || F == Format::int8) {
      linear_scaled<F, B, N>(w, k, rows, groups, results);
    } else if (rows.count() > N && w.group <= kMostKept * 32) {
      linear_grouped<F, B, N, true>(w, k, rows, groups, results);
    } else {
      linear_grouped<F, B, N, false>(w, k, rows, groups, results);
    }
  });
}

template <int B>
void linear_int8(const Codes& w, int64_t k, const PackedRows& rows, const Results& results) {
  switch (w.format) {
    case Format::mxfp4: linear_as<Format::mxfp4, B>(w, k, rows, results); break;
    case Format::int8: linear_as<Format::int8, B>(w, k, rows, results); break;
    case Format::int4: linear_as<Format::int4, B>(w, k, rows, results); break;
    case Format::int3: linear_as<Format::int3, B>(w, k, rows, results); break;
    default: linear_as<Format::int2, B>(w, k, rows, results); break;
  }
  const Block* end = static_cast<const Block*>(rows.packed) + blocks_of(k) * rows.n;
  const float* sound = reinterpret_cast<const float*>(end) + rows.from;
  for (int64_t row = 0; row < rows.count(); ++row) {
    if (sound[row] == 1.0f) continue;
    for (int b = 0; b < B; ++b) store(results.block(b).at(row), set1(sound[row]));
  }
}

// -- bf16 inputs ----------------------------------------------------------------------------------------------------

template <Format F, int B>
inline V16 value_of(Bytes column, const V16& scale, const V16& zero) {
  if constexpr (F == Format::int8) return mul(to_floats(signed_byte_of<B>(column)), scale);
  return mul(sub(to_floats(byte_of<B>(column)), zero), scale);
}

// What a block's codes mean, inputs 0 to 31 of each output, of which `left` are there: not yet rounded to bf16, which
// of mxfp4 they are already.
template <Format F>
inline void values_as(const Codes& w, int64_t block, int64_t left, V16 values[32]) {
  constexpr int64_t kBytes = foretoken::block_bytes(F);
  const std::uint8_t* at = w.codes + block * kBytes;
  Fetching<F>(1).behind(at);
  Bytes columns[8];
  unpack<F>(at, columns);
  V16 scale, zero = set1(0.0f);
  if constexpr (F == Format::int8) {
    scale = load(static_cast<const float*>(w.scales));
  } else if constexpr (F == Format::mxfp4) {
    scale = as_floats(plus(as_ints(set1(1.0f)), exponents(w, block, 1)));
    zero = set1(12.0f);
  } else {
    const Group group(w, block * 32 / w.group);
    scale = group.scale;
    zero = group.zero;
  }
  for (int j = 0; j < 8; ++j) {
    V16* v = values + 4 * j;
    v[2] = value_of<F, 0>(columns[j], scale, zero);
    v[3] = value_of<F, 1>(columns[j], scale, zero);
    v[0] = value_of<F, 2>(columns[j], scale, zero);
    v[1] = value_of<F, 3>(columns[j], scale, zero);
  }
  for (int64_t i = left; i < 32; ++i) values[i] = set1(0.0f);  // behind the end a code 0 has a zero point, too
}

inline void unrounded_values(const Codes& w, int64_t block, int64_t left, V16 values[32]) {
  switch (w.format) {
    case Format::mxfp4: return values_as<Format::mxfp4>(w, block, left, values);
    case Format::int8: return values_as<Format::int8>(w, block, left, values);
    case Format::int4: return values_as<Format::int4>(w, block, left, values);
    case Format::int3: return values_as<Format::int3>(w, block, left, values);
    default: return values_as<Format::int2>(w, block, left, values);
  }
}

// The bf16 numbers.
inline void block_values(const Codes& w, int64_t block, int64_t left, V16 values[32]) {
  unrounded_values(w, block, left, values);
  if (w.format == Format::mxfp4) return;
  for (int i = 0; i < 32; ++i) values[i] = round_bf16(values[i]);
}

std::size_t bytes_values(int64_t n, int64_t k);
void pack_values(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed);
void linear_values(const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results);

}  // namespace

#include "codes_fp32.inl"

namespace {

// -- all of them ----------------------------------------------------------------------------------------------------

std::size_t coded_bytes(Inputs inputs, int64_t n, int64_t k) {
  if (inputs == Inputs::bf16) return bytes_values(n, k);
  const std::size_t blocks = static_cast<std::size_t>(blocks_of(k) * n);
  return inputs == Inputs::fp32 ? blocks * 128 : blocks * sizeof(Block) + static_cast<std::size_t>(n) * 4;
}

void pack_coded(Inputs inputs, Format format, const float* x, int64_t stride, int64_t from, int64_t to, int64_t n,
                int64_t k, void* packed) {
  if (inputs == Inputs::bf16) return pack_values(x, stride, from, to, n, k, packed);
  if (inputs == Inputs::fp32) return pack_fp32(x, stride, from, to, n, k, static_cast<float*>(packed));
  pack_int8(format, x, stride, from, to, n, k, packed);
}

void linear_coded(Inputs inputs, const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows,
                  const Results& results) {
  if (inputs == Inputs::bf16) return linear_values(w, blocks, k, rows, results);
  clear(blocks, rows.count(), results);
  int64_t block = 0;
  // fewer rows wait for memory, and lose by two streams of it
  if (kCodeBlocks > 1 && inputs == Inputs::int8 && rows.count() > 4 && foretoken::first_cache_is_wide()) {
    for (; block + kCodeBlocks <= blocks; block += kCodeBlocks) {
      linear_int8<kCodeBlocks>(codes_at(w, block, k), k, rows, results.block(block));
    }
  }
  for (; block < blocks; ++block) {
    (inputs == Inputs::fp32 ? linear_fp32 : linear_int8<1>)(codes_at(w, block, k), k, rows, results.block(block));
  }
}

}  // namespace
