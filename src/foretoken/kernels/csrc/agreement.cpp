#include "agreement.h"

#include <cstring>
#include <vector>

#include "attention_in_parts.h"
#include "bits.h"
#include "buffer.h"
#include "isas.h"

namespace foretoken {
namespace {

using std::int64_t;

constexpr int64_t kMost = 40;  // rows that fill no block, as 24 do not

class Random {
 public:
  explicit Random(std::uint32_t seed) : state_(seed) {}

  std::uint32_t next() {
    state_ = state_ * 1664525u + 1013904223u;
    return state_ >> 8;
  }
  // A finite bf16 number: its exponent is one of `spread` around this one, which is 127 for numbers from 1 to 2.
  std::uint16_t bf16(std::uint32_t exponent, std::uint32_t spread) {
    const std::uint32_t its = exponent - spread / 4 + next() % spread;
    return static_cast<std::uint16_t>((next() & 0x807fu) | ((its & 0xffu) % 190u << 7));
  }
  // A float of 12 bits, from 2000 down to a two thousandth of that.
  float moderate() { return (static_cast<float>(next() % 4001) - 2000.0f) / static_cast<float>(1u << next() % 12); }

 private:
  std::uint32_t state_;
};

Buffer<float> floats(int64_t count) { return Buffer<float>(static_cast<std::size_t>(count)); }

Buffer<char> room(std::size_t bytes) { return Buffer<char>(bytes + InLines<char>::kLine); }

// compute(kernels) gives numbers: whether both instruction sets give the same.
template <class Compute>
bool same_by(const Kernels& kernels, const Compute& compute) {
  const auto expected = compute(*kernels_generic()), got = compute(kernels);
  return std::memcmp(expected.data(), got.data(), expected.size() * sizeof expected[0]) == 0;
}

Buffer<float> linear(const Kernels& by, const void* const* rows, int64_t blocks, const float* x, int64_t n, int64_t k) {
  Buffer<float> sums = floats(n * blocks * kTile);
  Buffer<char> packed = room(by.packed_bytes(Format::bf16, n, k));
  by.pack(Format::bf16, x, k, 0, n, n, k, packed.data());
  by.linear(Format::bf16, rows, blocks, k, {packed.data(), n, 0, n}, {sums.data(), blocks * kTile});
  return sums;
}

// The same of weights in the instruction set's own layout, if it has one.
Buffer<float> linear_repacked(const Kernels& by, const void* const* rows, int64_t blocks, const float* x, int64_t n, int64_t k) {
  if (!by.repack) return linear(by, rows, blocks, x, n, k);
  Buffer<float> sums = floats(n * blocks * kTile);
  Buffer<char> own(static_cast<std::size_t>(blocks) * repacked_bytes(k)), packed = room(by.packed_bytes(Format::bf16, n, k));
  for (int64_t i = 0; i < blocks; ++i) {
    by.repack(rows + i * kTile, k, own.data() + static_cast<std::size_t>(i) * repacked_bytes(k));
  }
  by.pack_for_repacked(x, k, 0, n, n, k, packed.data());
  by.linear_repacked(own.data(), blocks, k, {packed.data(), n, 0, n}, {sums.data(), blocks * kTile});
  return sums;
}

// Products of bf16, on numbers of all sizes, subnormal ones among them.
bool agrees_on_floats(const Kernels& kernels) {
  constexpr int64_t k = 150, own_k = 128, own_blocks = 3;
  Random random(12345);
  for (int round = 0; round < 8; ++round) {
    const std::uint32_t spread = round % 4 == 3 ? 200 : 1u << (round % 4 * 2);
    const std::uint32_t exponent = round < 4 ? 120 : 62;  // around 1, or where products leave the normal numbers
    std::vector<std::uint16_t> weights(static_cast<std::size_t>(own_blocks * kTile * k));
    Buffer<float> x = floats(kMost * k);
    for (auto& w : weights) w = random.bf16(exponent, spread);
    for (auto& v : x) v = from_bf16(random.bf16(exponent, spread));
    const void *rows[kTile], *own_rows[own_blocks * kTile];
    // one behind the other, or at unequal distances, as keys may lie
    for (int64_t i = 0; i < kTile; ++i) rows[i] = weights.data() + (round % 2 ? i + i * i % 7 : i) * k;
    for (int64_t i = 0; i < own_blocks * kTile; ++i) own_rows[i] = weights.data() + i * own_k;
    for (int64_t n : {kMost, int64_t{24}, int64_t{5}, int64_t{1}}) {  // which is multiplied in several ways
      if (!same_by(kernels, [&](const Kernels& by) { return linear(by, rows, 1, x.data(), n, k); })) return false;
      auto own = [&](const Kernels& by) { return linear_repacked(by, own_rows, own_blocks, x.data(), n, own_k); };
      if (!same_by(kernels, own)) return false;
    }
  }
  return true;
}

// So many rows that an instruction set multiplies them in another way, if it does.
bool agrees_on_many_rows(const Kernels& kernels) {
  if (!kernels.rows.together) return true;
  const int64_t n = kernels.rows.few + 21, blocks = 3, k = 600;
  Random random(777);
  std::vector<std::uint16_t> weights(static_cast<std::size_t>(blocks * kTile * k));
  Buffer<float> x = floats(n * k);
  for (auto& w : weights) w = random.bf16(120, 16);
  for (auto& v : x) v = from_bf16(random.bf16(120, 16));
  const void* rows[blocks * kTile];
  for (int64_t i = 0; i < blocks * kTile; ++i) rows[i] = weights.data() + i * k;
  return same_by(kernels, [&](const Kernels& by) { return linear(by, rows, blocks, x.data(), n, k); }) &&
         same_by(kernels, [&](const Kernels& by) { return linear_repacked(by, rows, blocks, x.data(), n, k); });
}

// Products of low-bit weights.
bool agrees_on_codes(const Kernels& kernels) {
  constexpr int64_t k = 150, blocks = 2;
  Random random(54321);
  Buffer<float> x = floats(kMost * k);
  for (auto& v : x) v = random.moderate();
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(blocks * blocks_of(k) * block_bytes(Format::int8)));
  for (auto& c : codes) c = static_cast<std::uint8_t>(random.next() % 255 - 127);  // of int8: -127 to 127
  for (Format format : {Format::mxfp4, Format::int8, Format::int4, Format::int3, Format::int2}) {
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(blocks * scale_bytes(format, 64, k)));
    for (std::size_t i = 0; i < scales.size(); ++i) {  // powers of two, or floats and bf16 numbers of moderate size
      scales[i] = static_cast<std::uint8_t>(format == Format::mxfp4 ? 110 + random.next() % 30
                                            : format == Format::int8 ? (i % 4 == 3 ? 0x3c : random.next())
                                                                     : (i % 2 == 1 ? 0x3f : random.next()));
    }
    const Codes w{format, 64, codes.data(), scales.data()};
    for (Inputs inputs : {Inputs::bf16, Inputs::int8}) {
      for (int64_t n : {int64_t{1}, int64_t{3}, int64_t{17}, kMost}) {
        auto multiply = [&](const Kernels& by) {
          Buffer<float> sums = floats(n * blocks * kTile);
          Buffer<char> packed = room(by.coded_bytes(inputs, n, k));
          by.pack_coded(inputs, format, x.data(), k, 0, n, n, k, packed.data());
          by.linear_coded(inputs, w, blocks, k, {packed.data(), n, 0, n}, {sums.data(), blocks * kTile});
          return sums;
        };
        if (!same_by(kernels, multiply)) return false;
      }
    }
  }
  return true;
}

// Some queries, and some places' keys and values, in bf16.
struct Text {
  static constexpr int64_t kWidth = 64, kPlaces = kCodedPlaces;

  Buffer<float> queries = floats(kMost * kWidth);
  std::vector<std::uint16_t> numbers = std::vector<std::uint16_t>(2 * kPlaces * kWidth);
  const void *keys[kPlaces], *values[kPlaces];

  explicit Text(Random random) {
    for (auto& q : queries) q = from_bf16(random.bf16(124, 4));
    for (auto& v : numbers) v = random.bf16(124, 4);
    for (int64_t i = 0; i < kPlaces; ++i) {
      keys[i] = numbers.data() + (i * 37 % kPlaces) * kWidth;
      values[i] = numbers.data() + (kPlaces + i) * kWidth;
    }
  }
  Places places() const { return {keys, values, kPlaces, 0, kWidth * 2}; }
};

// What attention finds, behind each other: of all queries the outputs, the largest scores and the sums.
struct Finding {
  Buffer<float> all;
  Found found;

  explicit Finding(int64_t queries)
      : all(floats(queries * (Text::kWidth + 2))),
        found{all.data() + queries * Text::kWidth, all.data() + queries * (Text::kWidth + 1), all.data()} {}
};

// Attention by its parts: what of the places [from, to) some queries find.
Buffer<float> attention_in_parts(const Kernels& by, const Text& text, int64_t n, int64_t from, int64_t to) {
  constexpr int64_t k = Text::kWidth;
  Finding its(n);
  Buffer<float> scores = floats(n * kScoresApart);
  Buffer<char> packed = room(by.packed_bytes(Format::bf16, n, k));
  by.pack(Format::bf16, text.queries.data(), k, 0, n, n, k, packed.data());
  by.linear(Format::bf16, text.keys, Text::kPlaces / kTile, k, {packed.data(), n, 0, n}, {scores.data(), kScoresApart});
  for (int64_t q = 0; q < n; ++q) {
    by.soften(Format::bf16, scores.data() + q * kScoresApart, from, to, 0.125f, its.found.tops + q, its.found.sums + q);
  }
  by.weigh(Format::bf16, scores.data(), kScoresApart, n, text.values, from, to, k, its.found.outs);
  return its.all;
}

// The same of all places in one go, if the instruction set has that.
Buffer<float> attention(const Kernels& by, const Text& text, int64_t n) {
  constexpr int64_t k = Text::kWidth;
  if (!by.attend || n < by.attend_from) return attention_in_parts(by, text, n, 0, Text::kPlaces);
  Finding its(n);
  Buffer<char> packed = room(by.packed_bytes(Format::bf16, n, k));
  by.pack_for_repacked(text.queries.data(), k, 0, n, n, k, packed.data());
  by.attend(text.places(), text.places(), {packed.data(), n, k, 0.125f, its.found});
  return its.all;
}

// The same of places that are coded first.
Buffer<float> attention_in_int8(const Kernels& by, const Text& text, int64_t n) {
  constexpr int64_t k = Text::kWidth;
  Finding its(n);
  Buffer<char> coded(static_cast<std::size_t>(CodedPlaces::bytes(k))), packed = room(by.coded_bytes(Inputs::int8, n, k));
  by.code_places(Format::bf16, text.places(), k, coded.data());
  by.pack_coded(Inputs::int8, Format::int8, text.queries.data(), k, 0, n, n, k, packed.data());
  const CodedPlaces places = CodedPlaces::at(coded.data(), k);
  const Queries queries{packed.data(), n, k, 0.125f, its.found};
  if (by.attend_coded) {
    by.attend_coded(places, coded.data(), CodedPlaces::bytes(k), queries);
  } else {
    Buffer<float> scores = floats(n * kScoresApart);
    Buffer<char> weights = room(by.coded_bytes(Inputs::int8, n, Text::kPlaces));
    attend_in_parts(by, places, queries, scores.data(), weights.data());
  }
  return its.all;
}

bool agrees_on_attention(const Kernels& kernels) {
  const Text text(Random(2026));
  for (int64_t n : {kMost, int64_t{24}, int64_t{3}, int64_t{1}}) {
    auto parts = [&](int64_t from, int64_t to) {
      return same_by(kernels, [&](const Kernels& by) { return attention_in_parts(by, text, n, from, to); });
    };
    if (!parts(0, Text::kPlaces) || !parts(5, 61)) return false;
    if (!same_by(kernels, [&](const Kernels& by) { return attention(by, text, n); })) return false;
    if (!same_by(kernels, [&](const Kernels& by) { return attention_in_int8(by, text, n); })) return false;
  }
  return true;
}

// What stands between products: numbers that fill no register.
bool agrees_on_numbers(const Kernels& kernels) {
  constexpr int64_t n = 77, half = 21;
  Random random(99);
  Buffer<float> x = floats(2 * n);
  for (auto& v : x) v = from_bf16(random.bf16(124, 16));
  const float* y = x.data() + n;
  auto compute = [&](const Kernels& by) {
    Buffer<float> all = floats(4 * n);
    by.norm(x.data(), y, 1e-5f, n, all.data());
    by.silu_mul(x.data(), y, n, all.data() + n);
    std::memcpy(all.data() + 2 * n, x.data(), n * 4);
    by.rotate(all.data() + 2 * n, y, y + half, half);
    by.divide(x.data(), 3.0f, n, all.data() + 3 * n);
    return all;
  };
  return same_by(kernels, compute);
}

// Which tokens are chosen of a row of logits, and their scores.
bool agrees_on_choices(const Kernels& kernels) {
  constexpr int64_t n = 300, count = 9;
  Random random(31);
  Buffer<float> logits = floats(n);
  for (auto& v : logits) v = from_bf16(random.bf16(126, 8));
  for (int round = 0; round < 4; ++round) {
    const Choice choice{0.8f, round == 1 ? 50 : 0, round == 2 ? 0.9 : 1.0, round == 3 ? 0.05 : 0.0, round != 1, 5, 0, 7, 0};
    const KeepSubnormals keep;
    auto choose = [&](const Kernels& by) {  // how many were found, their scores and their tokens
      Buffer<char> memory(static_cast<std::size_t>(rank_bytes(n, count)));
      std::int64_t tokens[count] = {};
      Buffer<double> all(1 + 2 * count);
      all[0] = static_cast<double>(by.rank(logits.data(), n, choice, count, memory.data(), tokens, all.data() + 1));
      for (int64_t i = 0; i < count; ++i) all[static_cast<std::size_t>(1 + count + i)] = static_cast<double>(tokens[i]);
      return all;
    };
    if (!same_by(kernels, choose)) return false;
  }
  return true;
}

}  // namespace

bool agrees(const Kernels& kernels) {
  const FlushSubnormals flush;
  return agrees_on_floats(kernels) && agrees_on_many_rows(kernels) && agrees_on_codes(kernels) &&
         agrees_on_attention(kernels) && agrees_on_numbers(kernels) && agrees_on_choices(kernels);
}

}  // namespace foretoken
