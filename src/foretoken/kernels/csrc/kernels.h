// The kernels of one instruction set, as a table of functions. Every instruction set gives the same bits:
// docs/lossless.md says which, `kernels/reference.py` defines them, and tests compare with ==.
//
// Rows are float32. A weight's format decides the order in which its products are summed, never the instruction set,
// the number of rows or of threads. Subnormal numbers count as zero but in `rank`, so callers set the processor's
// flags (`FlushSubnormals`, `KeepSubnormals`).
#pragma once

#include <cstddef>
#include <cstdint>

namespace foretoken {

enum class Format : int { bf16 = 0, fp16 = 1, fp32 = 2, mxfp4 = 3, int8 = 4, int4 = 5, int3 = 6, int2 = 7 };

inline bool is_float(Format format) { return format <= Format::fp32; }
inline std::size_t size_of(Format format) { return format == Format::fp32 ? 4 : 2; }  // of a number of a float format

// Whether this processor's first cache for data holds 48 KiB or more: enough for weights that are fetched into it ahead.
bool first_cache_is_wide();

// What rows are rounded to before they meet low-bit weights. bf16: the weights are the bf16 numbers that their codes
// mean, and the sums are bf16's. int8: for drafts. fp32: with mxfp4 only, to compare. fastest: for drafts; int8, or
// bf16 where the instruction set is faster with it, which depends on the number of rows. Kernels never see it.
enum class Inputs : int { bf16 = 0, int8 = 1, fp32 = 2, fastest = 3 };

constexpr std::int64_t kTogether = 32;  // blocks of outputs that a linear kernel is given at a time, at most
constexpr std::int64_t kTile = 16;  // outputs of a block, of which a linear kernel computes one or several at a time

// 16 outputs of low-bit weights, in blocks of 32 inputs: docs/formats.md.
struct Codes {
  Format format;
  std::int64_t group;  // inputs that share a scale and a zero point; of no meaning for mxfp4 and int8
  const std::uint8_t* codes;
  const void* scales;
};

// Blocks of 32 inputs.
inline std::int64_t blocks_of(std::int64_t k) { return (k + 31) / 32; }

// Bytes of a block's codes.
constexpr std::int64_t block_bytes(Format format) {
  switch (format) {
    case Format::int8: return 512;
    case Format::int3: return 192;
    case Format::int2: return 128;
    default: return 256;
  }
}
// Bytes of the scales of 16 outputs.
inline std::int64_t scale_bytes(Format format, std::int64_t group, std::int64_t k) {
  if (format == Format::mxfp4) return blocks_of(k) * kTile;
  if (format == Format::int8) return kTile * 4;
  return (blocks_of(k) * 32 + group - 1) / group * kTile * 4;
}
// The codes and scales of a later 16 outputs, which lie behind each other.
inline Codes codes_at(const Codes& w, std::int64_t later, std::int64_t k) {
  return {w.format, w.group, w.codes + later * blocks_of(k) * block_bytes(w.format),
          static_cast<const char*>(w.scales) + later * scale_bytes(w.format, w.group, k)};
}

// Bytes of a repacked block of bf16.
inline std::size_t repacked_bytes(std::int64_t k) { return static_cast<std::size_t>(blocks_of(k) * 32) * 2 * kTile; }

// What makes logits a distribution, and which seeded noise is added: `Warp` and `Noise` in kernels/choosing.py.
struct Choice {
  float temperature;
  std::int64_t top_k;
  double top_p, min_p;
  bool noise;
  std::uint64_t seed;
  std::uint32_t completion, step, stream;
};

// Bytes of memory that `rank` works in.
inline std::int64_t rank_bytes(std::int64_t n, std::int64_t count) {
  return (n + 63) / 64 * 64 * 24 + (count < n ? count : n) * 16;
}

// Rows [from, to) of the n rows that `packed` holds. `from` is a multiple of 16.
struct PackedRows {
  const void* packed;
  std::int64_t n, from, to;

  std::int64_t count() const { return to - from; }
};

// Where a linear kernel writes: row after row, `stride` numbers apart, 16 numbers of each block. Of many rows, tile after
// tile: 16 lines of 16 numbers, a block's tiles of all rows behind each other; the last may have lines of no row.
struct Results {
  float* to = nullptr;
  std::int64_t stride = 0;
  std::int64_t block_stride = kTile, group_stride = 16 * stride;
  bool tiled = false;

  static Results tiles(float* to, std::int64_t rows) { return {to, kTile, (rows + 15) / 16 * 256, 256, true}; }

  float* at(std::int64_t row) const { return to + row * stride; }  // where they are not tiled
  float* line(std::int64_t row, std::int64_t block) const {
    return to + block * block_stride + row / 16 * group_stride + row % 16 * stride;
  }
  Results block(std::int64_t block) const { return {to + block * block_stride, stride, block_stride, group_stride, tiled}; }
  // The same places in other memory.
  Results in(float* other) const { return {other, stride, block_stride, group_stride, tiled}; }
  // How many numbers of some rows and blocks lie behind each other.
  std::int64_t count(std::int64_t rows, std::int64_t blocks) const { return tiled ? blocks * block_stride : rows * stride; }
};

// What `attend` takes at most: places, and numbers of a key.
constexpr std::int64_t kMostPlaces = 256, kWidestKey = 256;
// Numbers from one query's scores to the next's: with 1,024 bytes all would lie in the same few sets of the first cache.
constexpr std::int64_t kScoresApart = kMostPlaces + 16;

// Fetches the line that holds a byte, into the first cache (`kCache` 3) or the second (2). gcc 12 takes a function that only
// fetches for one without effect, and leaves out its calls: the empty statement keeps it from that.
template <int kCache>
inline void will_use(const char* at) {
  __builtin_prefetch(at, 0, kCache);
  __asm__ volatile("" : : "m"(*at));
}
template <int kCache>
inline void will_use(const char* from, std::int64_t bytes) {
  for (std::int64_t line = 0; line < bytes; line += 64) will_use<kCache>(from + line);
}

// Where keys and values of some positions lie: of each, some bytes from byte `at` on.
struct Places {
  const void* const* keys;
  const void* const* values;
  std::int64_t count, at, bytes;

  const char* key(std::int64_t i) const { return static_cast<const char*>(keys[i]) + at; }
  const char* value(std::int64_t i) const { return static_cast<const char*>(values[i]) + at; }
};

// The keys and values of one key head at kCodedPlaces places in int8 (docs/formats.md): keys as a weight [places, width],
// values as one [width, places]. They lie one behind the other: scales of keys, scales of values, codes of keys, codes of
// values. width: a multiple of 16.
constexpr std::int64_t kCodedPlaces = 256;
struct CodedPlaces {
  Codes keys, values;

  static std::int64_t scale_bytes(std::int64_t width) { return (kCodedPlaces + width) * 4; }
  static std::int64_t key_bytes(std::int64_t width) { return kCodedPlaces / kTile * blocks_of(width) * block_bytes(Format::int8); }
  static std::int64_t bytes(std::int64_t width) {
    return scale_bytes(width) + key_bytes(width) + width / kTile * blocks_of(kCodedPlaces) * block_bytes(Format::int8);
  }
  static CodedPlaces at(const char* from, std::int64_t width) {
    const auto* codes = reinterpret_cast<const std::uint8_t*>(from + scale_bytes(width));
    return {{Format::int8, 0, codes, from}, {Format::int8, 0, codes + key_bytes(width), from + kCodedPlaces * 4}};
  }
};

// What attention finds for some queries: of each the largest score, the sum of the exponentials (0: nothing was seen), and the
// values that they weigh.
struct Found {
  float *tops, *sums, *outs;
};
// How many queries `fold` takes at most.
constexpr std::int64_t kFolded = 16;
// Queries of attention, packed for their keys.
struct Queries {
  const void* packed;
  std::int64_t count, width;
  float scale;
  Found found;
};

// Rows are many if there are more than `few`. Then a linear kernel with tiles is best given at most `together` of them, a
// multiple of 32, and `blocks` at a time; but two where these rows take at most `bytes`, which then stay near. Others are best
// given half of these rows. 0: rows are never many.
struct ManyRows {
  std::int64_t few = 0, together = 0, blocks = 0, bytes = 0;

  bool are(std::int64_t n) const { return together && n > few; }
};

struct Kernels {
  const char* name;

  // How many blocks of outputs a linear kernel is best given at a time, at most `kTogether`.
  std::int64_t together;
  ManyRows rows;
  // From how many rows on mxfp4 is multiplied faster with bf16 inputs than with int8.
  std::int64_t mxfp4_rows;

  // Bytes that `pack` fills for n rows of k inputs.
  std::size_t (*packed_bytes)(Format, std::int64_t n, std::int64_t k);
  // Rows [from, to) of x (float32, n rows of k, `stride` numbers apart) into the layout that `linear` reads.
  void (*pack)(Format, const float* x, std::int64_t stride, std::int64_t from, std::int64_t to, std::int64_t n,
               std::int64_t k, void* packed);
  // Blocks of 16 outputs for some rows: weights[block * 16 + i] . row. Weight rows lie anywhere, in the format's own
  // layout.
  void (*linear)(Format, const void* const* weights, std::int64_t blocks, std::int64_t k, const PackedRows&,
                 const Results&);

  // A layout of the instruction set's own for bf16 weights, block after block of 16 outputs, for weights that are
  // copied anyway, from a multiple of 64 bytes on: what `linear` would shuffle each time is shuffled once. The sums are
  // the same. Null where rows as they lie are as good.
  void (*repack)(const void* const weights[kTile], std::int64_t k, void* block);
  // Rows for `linear_repacked`: as many bytes as `pack` fills. Null where `pack` does it.
  void (*pack_repacked)(const float* x, std::int64_t stride, std::int64_t from, std::int64_t to, std::int64_t n,
                        std::int64_t k, void* packed);
  // The same, by whichever of the two does it.
  void pack_for_repacked(const float* x, std::int64_t stride, std::int64_t from, std::int64_t to, std::int64_t n,
                         std::int64_t k, void* packed) const {
    if (pack_repacked) return pack_repacked(x, stride, from, to, n, k, packed);
    pack(Format::bf16, x, stride, from, to, n, k, packed);
  }
  void (*linear_repacked)(const void* weights, std::int64_t blocks, std::int64_t k, const PackedRows&, const Results&);

  // Of many rows, in bf16 for whatever weights: the inputs of one step alone, which are the results of two blocks. k: inputs
  // of all steps. Null where rows are never many.
  void (*pack_step)(const Results&, const PackedRows&, std::int64_t k, std::int64_t step, void* packed);

  // The same three for low-bit weights; of several blocks, the codes and the scales of each lie behind the last one's.
  std::size_t (*coded_bytes)(Inputs, std::int64_t n, std::int64_t k);
  void (*pack_coded)(Inputs, Format, const float* x, std::int64_t stride, std::int64_t from, std::int64_t to,
                     std::int64_t n, std::int64_t k, void* packed);
  void (*linear_coded)(Inputs, const Codes&, std::int64_t blocks, std::int64_t k, const PackedRows&, const Results&);

  void (*embed)(Format, const void* row, std::int64_t width, float* out);
  void (*norm)(const float* x, const float* weight, float eps, std::int64_t width, float* out);
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  void (*rotate)(float* head, const float* cosines, const float* sines, std::int64_t half);
  // A row into a cache of some format.
  void (*store)(Format, const float* x, std::int64_t n, void* out);

  // Softmax of scores[from, to), a block's, after scaling, in place and not yet divided: the largest, and the sum. What is
  // left in place is rounded to bf16 if `values` is that.
  void (*soften)(Format values, float* scores, std::int64_t from, std::int64_t to, float scale, float* largest, float* sum);
  // out[q * width + d] += weights[q * stride + i] * values[i][d], for each i in [from, to), in the format's order: of bf16
  // that of `linear`, whose inputs are 0, 1, 2, ...; of others one after the other.
  void (*weigh)(Format, const float* weights, std::int64_t stride, std::int64_t queries, const void* const* values,
                std::int64_t from, std::int64_t to, std::int64_t width, float* out);
  // `linear` with keys, `soften` and `weigh`, in bf16, for queries that all see these places: a multiple of 32 of them, at
  // most kMostPlaces. width: a multiple of 32, at most kWidestKey. The places in `next` are fetched meanwhile. The sums are
  // the same. Of fewer queries than `attend_from` the three one after the other are as good, and where there is no `attend`.
  void (*attend)(const Places& seen, const Places& next, const Queries&);
  std::int64_t attend_from;
  // Codes kCodedPlaces places into CodedPlaces.
  void (*code_places)(Format, const Places&, std::int64_t width, char* coded);
  // Attention over CodedPlaces that all queries see. The queries were packed by `pack_coded` for int8. Some bytes from `next` on
  // are fetched meanwhile. Null where `linear_coded` with keys, `soften`, `pack_coded` and `linear_coded` with values, one after
  // the other, are as good.
  void (*attend_coded)(const CodedPlaces& seen, const char* next, std::int64_t next_bytes, const Queries&);
  // Adds what one block gave to what the blocks before it gave, for up to kFolded queries.
  void (*fold)(const Found& so_far, const Found& block, std::int64_t queries, std::int64_t width);
  void (*divide)(const float* x, float by, std::int64_t n, float* out);

  // Index of the largest of n > 0 floats, the lowest on a tie; -1 if any is NaN.
  std::int64_t (*argmax)(const float* values, std::int64_t n);

  // The `count` tokens with the largest warped and perturbed of n > 0 logits, best first: how many there are, or -1 if
  // a logit is NaN or +inf. memory: `rank_bytes`, from a multiple of 64 on. Subnormals count: `KeepSubnormals`.
  std::int64_t (*rank)(const float* logits, std::int64_t n, const Choice&, std::int64_t count, void* memory,
                       std::int64_t* tokens, double* scores);

  // The logarithm of the sum of exp(logit / temperature), of n > 0 logits; NaN if one is NaN or +inf, or all are -inf.
  // Its last bits are those of the machine's `log`.
  double (*log_total)(const float* logits, std::int64_t n, float temperature);
};

// By instruction set, from slow to fast; null where the build has none of it.
const Kernels* kernels_generic();
const Kernels* kernels_neon();
const Kernels* kernels_dotprod();
const Kernels* kernels_avx2();
const Kernels* kernels_avxvnni();
const Kernels* kernels_avx512();
const Kernels* kernels_avx512vnni();
const Kernels* kernels_avx512bf16();
const Kernels* kernels_amx();
const Kernels* kernels_avxvnni_twin();  // avxvnni by AVX-512's form of its instruction: for tests where only that is there
const Kernels* kernels_amx_emulated();  // AMX's documented arithmetic in plain C++: for tests on machines without it

}  // namespace foretoken
