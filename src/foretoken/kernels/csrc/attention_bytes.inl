// Attention over places in int8 in one go, where there are products of bytes (`dot`). Part of isa.inl. It gives what
// `attend_in_parts` gives.

#if defined(FORETOKEN_WIDE_DOT)

namespace {

using foretoken::kScoresApart;

constexpr int64_t kCodedAtOnce = 32;  // queries
constexpr int64_t kPlaceBlocks = kCodedPlaces / 32;

struct alignas(64) CodedRoom {
  float scores[kCodedAtOnce][kScoresApart];
  float weights[2][kCodedPlaces];  // of two queries
  Block packed[kPlaceBlocks][kCodedAtOnce];
};

// Fetches lines one behind the other into the second cache, evenly over `all` steps (see `Ahead` in attention_avx512bf16.inl).
class Stream {
 public:
  Stream(const char* from, int64_t bytes, int64_t all) : at_(from), evenly_(bytes / 64, all) {}

  void step(int64_t steps) {
    evenly_.step(steps, [this] {
      foretoken::will_use<2>(at_);
      at_ += 64;
    });
  }

 private:
  const char* at_;
  Evenly evenly_;
};

// Steps: what is done while lines are fetched takes about so many tens of cycles.
constexpr int64_t kCodedMeeting = 1;    // a block of tiles and one row
constexpr int64_t kCodedSoftening = 2;  // 32 places of a query

// T tiles of outputs meet N rows, whose numbers are at least 0 if kPositive: then the codes may have signs. x: `n` rows a block.
template <int T, int N, bool kPositive>
inline void meet_tiles(const std::uint8_t* codes, int64_t blocks, const float* scales, const Block* x, int64_t n, float* out,
                       int64_t stride, Stream& stream) {
  const int64_t apart = blocks * kInt8Bytes;
  V16 sums[T][N];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < N; ++r) sums[t][r] = set1(0.0f);
  }
  for (int64_t block = 0; block < blocks; ++block, codes += kInt8Bytes, x += n) {
    Ints whole[T][N];
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < N; ++r) whole[t][r] = ints(kPositive ? 0 : x[r].start);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      Bytes columns[T];
      for (int t = 0; t < T; ++t) {
        columns[t] = load_bytes(codes + t * apart + 64 * j);
        if constexpr (!kPositive) columns[t] = flipped(columns[t]);
      }
      for (int r = 0; r < N; ++r) {
        for (int t = 0; t < T; ++t) {
          whole[t][r] = kPositive ? dot_positive(whole[t][r], columns[t], x[r].inputs + j)
                                  : dot(whole[t][r], columns[t], x[r].inputs + j);
        }
      }
    }
    for (int r = 0; r < N; ++r) {
      for (int t = 0; t < T; ++t) sums[t][r] = fma(to_floats(whole[t][r]), set1(x[r].scale), sums[t][r]);
    }
    stream.step(N * kCodedMeeting);
  }
  for (int r = 0; r < N; ++r) {
    for (int t = 0; t < T; ++t) store(out + r * stride + t * kTile, mul(sums[t][r], load(scales + t * kTile)));
  }
}

// How many times tiles of these outputs are taken, several at once as far as it goes.
constexpr int64_t tiles_of(int64_t outputs) { return outputs / kTile / kCodedTiles + outputs / kTile % kCodedTiles; }

// x: the first row's of `n`.
template <bool kPositive>
void meet_coded(const Codes& w, int64_t outputs, int64_t k, const Block* x, int64_t n, int64_t count, float* out,
                int64_t stride, Stream& stream) {
  const int64_t blocks = blocks_of(k);
  const float* scales = static_cast<const float*>(w.scales);
  const Groups groups(count, kCodedRows);
  by_size<kCodedRows>(groups, [&](auto size) {
    auto tiles = [&](auto many, int64_t at) {
      groups.each<decltype(size)::value>([&](auto some, int64_t row) {
        meet_tiles<decltype(many)::value, decltype(some)::value, kPositive>(w.codes + at / kTile * blocks * kInt8Bytes, blocks,
                                                                            scales + at, x + row, n, out + row * stride + at,
                                                                            stride, stream);
      });
    };
    int64_t at = 0;
    for (; at + kCodedTiles * kTile <= outputs; at += kCodedTiles * kTile) tiles(Size<kCodedTiles>{}, at);
    for (; at < outputs; at += kTile) tiles(Size<1>{}, at);
  });
}

// The exponentials of one or two queries as inputs, of which none is negative. most: the largest of each 32, in one lane or
// another.
inline void pack_weights(const float (&weights)[2][kCodedPlaces], const V16 (&most)[2][kPlaceBlocks], int64_t queries, Block* to) {
  static_assert(2 * kPlaceBlocks == 16);
  float tops[16] = {}, by[16], scales[16];
  for (int64_t q = 0; q < queries; ++q) {
    for (int64_t block = 0; block < kPlaceBlocks; ++block) tops[q * kPlaceBlocks + block] = largest(most[q][block]);
  }
  store(by, div(set1(127.0f), load(tops)));
  store(scales, div(load(tops), set1(127.0f)));
  const V16 whole = set1(kWholeFloat);
  for (int64_t q = 0; q < queries; ++q) {
    for (int64_t block = 0; block < kPlaceBlocks; ++block) {
      const int64_t i = q * kPlaceBlocks + block;
      const bool used = tops[i] >= kSmallest;
      const V16 factor = set1(used ? by[i] : 0.0f);
      auto number = [&](int64_t at) { return add(mul(load(weights[q] + block * 32 + at), factor), whole); };
      Block& out = to[block * kCodedAtOnce + q];
      store_bytes(number(0), number(16), out.inputs);
      out.scale = used ? scales[i] : 1.0f;
    }
  }
}

void attend_coded(const CodedPlaces& seen, const char* next, int64_t next_bytes, const Queries& queries) {
  CodedRoom& room = own_room<CodedRoom>();
  const int64_t width = queries.width, all = queries.count;
  const Block* packed = static_cast<const Block*>(queries.packed);
  const float* sound = reinterpret_cast<const float*>(packed + blocks_of(width) * all);
  const int64_t meetings = tiles_of(kCodedPlaces) * blocks_of(width) + tiles_of(width) * kPlaceBlocks;
  Stream stream(next, next_bytes, all * (meetings * kCodedMeeting + kPlaceBlocks * kCodedSoftening));
  for (int64_t from = 0; from < all; from += kCodedAtOnce) {
    const int64_t count = all - from < kCodedAtOnce ? all - from : kCodedAtOnce;
    meet_coded<false>(seen.keys, kCodedPlaces, width, packed + from, all, count, room.scores[0], kScoresApart, stream);
    for (int64_t q = 0; q < count; ++q) {
      for (int64_t i = 0; sound[from + q] != 1.0f && i < kCodedPlaces; i += 16) store(room.scores[q] + i, set1(sound[from + q]));
    }
    float *tops = queries.found.tops + from, *sums = queries.found.sums + from, *outs = queries.found.outs + from * width;
    for (int64_t q = 0; q < count; q += 2) {
      V16 most[2][kPlaceBlocks];
      const int64_t two = count - q < 2 ? 1 : 2;
      soften_whole({room.scores[q], kScoresApart, two, kCodedPlaces, queries.scale}, tops + q, sums + q,
                   [&](int64_t which, int64_t i, V16 a, V16 b) {
                     store(room.weights[which] + i, a);
                     store(room.weights[which] + i + 16, b);
                     most[which][i / 32] = max(a, b);
                     stream.step(kCodedSoftening);
                   });
      pack_weights(room.weights, most, two, room.packed[0] + q);
    }
    meet_coded<true>(seen.values, width, kCodedPlaces, room.packed[0], kCodedAtOnce, count, outs, width, stream);
    for (int64_t q = 0; q < count; ++q) {
      for (int64_t i = 0; sums[q] != sums[q] && i < width; i += 16) store(outs + q * width + i, set1(sums[q]));
    }
  }
}

constexpr auto kAttendCoded = attend_coded;

}  // namespace

#else

namespace {
constexpr decltype(foretoken::Kernels::attend_coded) kAttendCoded = nullptr;
}

#endif
