// Choosing from a row of logits: kernels/choosing.py defines the tokens and their scores, bit for bit. Included by
// isa.inl, so compiled once for each.
//
// The time would go into noise, nearly all of which cannot matter. Let B be a score that `count` tokens reach, and b a
// float32 below B by half of its own last place or more, which is 2^28 times B's last place in float64.
//
//   A token of logit x gets in only if x + g, rounded to float64, is at least B. Rounding moves it by less than B - b,
//   so x + g >= b.
//   g = -log(-log(1 - v)) for v of 64 bits, small for large noise. As -log(1 - v) >= v, g <= -log v: the token needs
//   log v <= x - b + e. e is how far the computed g may lie from the real one, below 1e-12.
//   v >= h / 2^24 if h is the upper 24 of its bits, so it needs log2 h <= 24 + (x - b + e) / log 2.
//   The bits of h as a float, read as a whole number / 2^23 - 127, are log2 h interpolated between powers of two: at
//   most log2 h. They are compared with 24 + (x - b) / log 2 + 2^-10, in floats: for x - b from -105 to 0 all their
//   errors together stay below 2^-14; above, everything passes, as it should; below, nothing can get in anyway: the
//   largest noise is 65 log 2 = 45.05. So 64 tokens of which none is within 46 of b need no noise at all.
//
// Who fails the comparison cannot get in; the few who pass are computed as they are defined.
#include "warping.inl"

#if defined(__clang__)
#define FORETOKEN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FORETOKEN_UNROLL _Pragma("GCC unroll 10")
#endif

namespace {

// -- noise ----------------------------------------------------------------------------------------------------------

// Rounded once: the upper half and 2^84 + 2^52 are subtracted without error.
inline Doubles from_whole(Longs u) {
  const Doubles high = doubles_of(u >> 32 | 0x4530000000000000u);
  const Doubles low = doubles_of((u & 0xffffffffu) | 0x4330000000000000u);
  return (high - (0x1p84 + 0x1p52)) + low;
}

// 1 / p + square / (p + 2) + ... to 1 / 21
template <int Power>
inline Doubles tangent(Doubles square) {
  if constexpr (Power == 21) {
    return Doubles{} + 1.0 / 21.0;
  } else {
    return tangent<Power + 2>(square) * square + 1.0 / Power;
  }
}

struct Fraction {  // f and e of x = (1 + f) 2^e
  Doubles f, exponent;
};

inline Fraction apart(Doubles x) {
  const Longs u = bits_of(x);
  const Doubles half = doubles_of((u & 0xfffffffffffffu) | 0x3fe0000000000000u);
  const Doubles exponent = doubles_of(u >> 52 | 0x4330000000000000u) - (0x1p52 + 1022.0);
  const auto small = half < 0.7071067811865476;
  return {(small ? half + half : half) - 1.0, small ? exponent - 1.0 : exponent};
}

inline Doubles logarithm(Fraction x) {
  const Doubles s = x.f / (x.f + 2.0);
  return (s + s) * tangent<1>(s * s) + x.exponent * kLog2;
}

// The scores of n tokens, a multiple of 16: their logits plus `gumbel` of their bits.
void perturb(const float* x, const uint64_t* bits, int64_t n, double* scores) {
  for (int64_t i = 0; i < n; i += kTogether) {
    const Longs u = gather<Longs>(bits + i);
    const Doubles low = (from_whole(u) + 0.5) * 0x1p-64, high = (from_whole(~u) + 0.5) * 0x1p-64;
    const auto small = u < (uint64_t{1} << 62);
    const Fraction much = apart(high);
    const Doubles wait = -logarithm({small ? -low : much.f, small ? Doubles{} : much.exponent});
    const Doubles score = widened(x + i) - logarithm(apart(wait));
    std::memcpy(scores + i, &score, sizeof score);
  }
}

struct Dice {
  explicit Dice(const Choice& choice) : step(choice.step), completion(choice.completion), stream(choice.stream) {
    uint32_t k = static_cast<uint32_t>(choice.seed), j = static_cast<uint32_t>(choice.seed >> 32);
    for (auto& key : keys) {
      key[0] = k;
      key[1] = j;
      k += 0x9e3779b9u;
      j += 0xbb67ae85u;
    }
  }

  uint64_t keys[10][2], step, completion, stream;
};

// Philox blocks, which serve two tokens each: N times 8 of them. The lower halves count.
template <int N>
struct Blocks {
  Words a[N], b[N], c[N], d[N];
};

// Of the tokens from `base`, an even one, on.
template <int N>
inline void philox(int64_t base, const Dice& dice, Blocks<N>* w) {
  static constexpr uint64_t kLanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int i = 0; i < N; ++i) {
    w->a[i] = plus(words(static_cast<uint64_t>(base) / 2 + 8 * static_cast<uint64_t>(i)), load(kLanes));
    w->b[i] = words(dice.step);
    w->c[i] = words(dice.completion);
    w->d[i] = words(dice.stream);
  }
FORETOKEN_UNROLL
  for (int round = 0; round < 10; ++round) {
    const Words k = words(dice.keys[round][0]), j = words(dice.keys[round][1]);
    for (int i = 0; i < N; ++i) {
      const Words p = product(w->a[i], words(0xd2511f53u)), q = product(w->c[i], words(0xcd9e8d57u));
      w->a[i] = mixed(q, w->b[i], k);
      w->c[i] = mixed(p, w->d[i], j);
      w->b[i] = q;
      w->d[i] = p;
    }
  }
}

// -- the best so far ------------------------------------------------------------------------------------------------

struct Candidate {
  double score;
  int64_t token;
};

inline bool better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

inline float next_below(double x) { return __builtin_nextafterf(static_cast<float>(x), -__builtin_inff()); }

struct Best {  // a heap, the worst at its root
  Candidate* heap;
  int64_t room, size;
  double floor;  // as many tokens as there is room for are known to reach it

  bool full() const { return size == room; }
  double bound() const { return full() ? heap[0].score : floor; }

  void offer(double score, int64_t token) {
    const Candidate c{score, token};
    if (full()) {
      if (better(c, heap[0])) sink(c);
    } else if (score >= floor) {
      int64_t i = size++;
      for (; i && better(heap[(i - 1) / 2], c); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
      heap[i] = c;
    }
  }

  // Best first; empties the heap.
  int64_t take(int64_t* tokens, double* scores) {
    const int64_t n = size;
    while (size) {
      const Candidate worst = heap[0];
      sink(heap[--size]);
      tokens[size] = worst.token;
      scores[size] = worst.score;
    }
    return n;
  }

 private:
  void sink(Candidate c) {  // in the root's place
    int64_t i = 0;
    for (int64_t child = 1; child < size; child = 2 * i + 1) {
      if (child + 1 < size && better(heap[child], heap[child + 1])) ++child;
      if (!better(c, heap[child])) break;
      heap[i] = heap[child];
      i = child;
    }
    heap[i] = c;
  }
};

struct Queue {  // tokens whose scores are wanted, until there are enough for whole registers
  float x[32];
  uint64_t bits[32];
  int64_t tokens[32];
  int64_t size = 0;

  Queue() {
    std::memset(x, 0, sizeof x);
    std::memset(bits, 0, sizeof bits);
  }

  template <int N>
  void add(unsigned lanes, const float* from, int64_t base, const Blocks<N>& blocks, int at) {
    uint64_t words[4][8];
    store(words[0], blocks.a[at]);
    store(words[1], blocks.b[at]);
    store(words[2], blocks.c[at]);
    store(words[3], blocks.d[at]);
    for (; lanes; lanes &= lanes - 1) {
      const int i = __builtin_ctz(lanes), odd = i % 2 * 2;
      x[size] = from[base + i];
      bits[size] = words[odd][i / 2] << 32 | (words[odd + 1][i / 2] & 0xffffffffu);
      tokens[size++] = base + i;
    }
  }

  void score_into(Best* best) {
    double scores[32];
    perturb(x, bits, padded(size, 16), scores);
    for (int64_t i = 0; i < size; ++i) best->offer(scores[i], tokens[i]);
    size = 0;
  }
};

// Scores of tokens that have the largest logits, at least `from`: what they reach, the best reach.
void find_floor(const float* x, int64_t wide, float from, const Dice* dice, Best* best) {
  Queue queue;
  int64_t left = best->room + (dice ? best->room + 16 : 0);  // of those with noise, more make a better floor
  for (int64_t base = 0; base < wide && left > 0; base += 16) {
    unsigned lanes = 0xffffu & ~above(set1(from), load(x + base));
    if (!lanes) continue;
    left -= __builtin_popcount(lanes);
    if (dice) {
      Blocks<1> blocks;
      philox(base, *dice, &blocks);
      queue.add(lanes, x, base, blocks, 0);
      if (queue.size > 16) queue.score_into(best);
    } else {
      for (; lanes; lanes &= lanes - 1) best->offer(x[base + __builtin_ctz(lanes)], base + __builtin_ctz(lanes));
    }
  }
  queue.score_into(best);
  if (best->full()) best->floor = best->bound();
  best->size = 0;
}

void find_largest(const float* x, int64_t wide, Best* best) {
  // once there are enough, an equal one comes too late: its id is higher
  auto limit = [&] { return best->full() ? static_cast<float>(best->bound()) : next_below(best->floor); };
  V16 beaten = set1(limit());
  for (int64_t base = 0; base < wide; base += 16) {
    unsigned lanes = above(load(x + base), beaten);
    if (!lanes) continue;
    for (; lanes; lanes &= lanes - 1) best->offer(x[base + __builtin_ctz(lanes)], base + __builtin_ctz(lanes));
    beaten = set1(limit());
  }
}

void find_perturbed(const float* x, int64_t wide, const Dice& dice, Best* best) {
  const V16 far = set1(-46.0f), slope = set1(0x1p23f * 1.44269504f), start = set1(0x1p23f * (127 + 24 + 0x1p-10f));
  Queue queue;
  V16 b = set1(next_below(best->bound()));
  for (int64_t group = 0; group < wide; group += 64) {
    if (!above(sub(largest_of_64(x + group), b), far)) continue;
    for (int64_t base = group; base < group + 64; base += 16 * kBlocks) {
      Blocks<kBlocks> blocks;
      philox(base, dice, &blocks);
      for (int i = 0; i < kBlocks; ++i) {
        const V16 beyond = sub(load(x + base + 16 * i), b);
        const unsigned lanes = at_most(blocks.a[i], blocks.c[i], add(mul(beyond, slope), start));
        if (!lanes) continue;
        queue.add(lanes, x, base + 16 * i, blocks, i);
        if (queue.size > 16) {
          queue.score_into(best);
          b = set1(next_below(best->bound()));
        }
      }
    }
  }
  queue.score_into(best);
}

// -- the choice -----------------------------------------------------------------------------------------------------

int64_t rank(const float* logits, int64_t n, const Choice& choice, int64_t count, void* memory, int64_t* tokens,
             double* scores) {
  const int64_t wide = padded(n, 64), k = choice.top_k < n ? choice.top_k : 0;
  if (count > n) count = n;
  Row row{};
  row.x = static_cast<float*>(memory);
  row.wide = wide;
  row.maxima = row.x + wide;
  row.blocks = (count > k ? count : k) / 4 + 1;  // so that hardly two of the largest meet in a maximum
  if (row.blocks < 4) row.blocks = 4;
  if (row.blocks > wide / 16) row.blocks = wide / 16;  // then all of them are alone
  row.list = row.maxima + wide;
  Best best{reinterpret_cast<Candidate*>(static_cast<char*>(row.list) + 16 * wide), count, 0, -__builtin_inf()};

  if (!divide_row(logits, n, choice.temperature, &row)) return -1;
  if (count == 0 || row.top == -__builtin_inff()) return 0;
  const float from = count == 1 ? row.top : kth_largest(row.maxima, 16 * row.blocks, count);
  if (k) keep_top_k(row, k);
  if (choice.top_p < 1.0) keep_top_p(row, choice.top_p);
  if (choice.min_p > 0.0) keep_min_p(row, choice.min_p);
  const Dice dice(choice);
  if (from > -__builtin_inff()) find_floor(row.x, wide, from, choice.noise ? &dice : nullptr, &best);
  if (choice.noise) {
    find_perturbed(row.x, wide, dice, &best);
  } else {
    find_largest(row.x, wide, &best);
  }
  return best.take(tokens, scores);
}

}  // namespace
