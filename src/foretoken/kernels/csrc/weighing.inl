// Softmax, and the values that it weighs: what attention needs beside products with keys. Part of isa.inl.

namespace {

void soften(Format values, float* scores, int64_t from, int64_t to, float scale, float* top, float* total) {
  const V16 never = set1(-__builtin_inff()), by = set1(scale);
  V16 best = never;
  const int64_t first = from / 16 * 16;
  // Of 16 numbers from i on, those that are seen, and others in place of the rest.
  auto seen = [&](V16 numbers, V16 others, int64_t i) {
    if (i >= from && to - i >= 16) return numbers;
    return keep(numbers, others, i < from ? static_cast<int>(from - i) : 0, to - i < 16 ? static_cast<int>(to - i) : 16);
  };
  for (int64_t i = first; i < to; i += 16) {
    const V16 scaled = seen(mul(load(scores + i), by), never, i);
    store(scores + i, scaled);
    best = max(best, scaled);
  }
  *top = largest(best);
  const V16 shift = set1(*top);
  V16 sums = set1(0.0f);
  for (int64_t i = first; i < to; i += 16) {
    const V16 weight = seen(exponential_of_small(sub(load(scores + i), shift)), set1(0.0f), i);
    store(scores + i, values == Format::bf16 ? round_bf16(weight) : weight);
    sums = add(sums, weight);
  }
  *total = sum(sums);
}

struct Scores {  // of queries, `apart` numbers from one to the next; places: a multiple of 32
  const float* from;
  int64_t apart, queries, places;
  float scale;

  V16 scaled(int64_t q, int64_t i) const { return mul(load(from + q * apart + i), set1(scale)); }
};

// As `soften`, of all places. What weighs 32 places goes to put(query, first place, first 16, second 16), not yet rounded.
template <class Put>
[[gnu::always_inline]] inline void soften_whole(const Scores& scores, float* tops, float* totals, const Put& put) {
  for (int64_t q = 0; q < scores.queries; ++q) {
    V16 best = set1(-__builtin_inff());
    for (int64_t i = 0; i < scores.places; i += 16) best = max(best, scores.scaled(q, i));
    tops[q] = largest(best);
  }
  by_rows<2>(scores.queries, [&](auto some, int64_t first) {  // two take turns: each waits for its own steps
    constexpr int kSome = decltype(some)::value;
    V16 shift[kSome], total[kSome];
    for (int q = 0; q < kSome; ++q) {
      shift[q] = set1(tops[first + q]);
      total[q] = set1(0.0f);
    }
    for (int64_t i = 0; i < scores.places; i += 32) {
      for (int q = 0; q < kSome; ++q) {
        auto weight = [&](int64_t at) { return exponential_of_small(sub(scores.scaled(first + q, at), shift[q])); };
        const V16 a = weight(i), b = weight(i + 16);
        total[q] = add(add(total[q], a), b);
        put(first + q, i, a, b);
      }
    }
    for (int q = 0; q < kSome; ++q) totals[first + q] = sum(total[q]);
  });
}

// 16 numbers, or if they are not whole the first `n`.
template <bool kWhole>
inline V16 load_some(const float* p, int64_t n) {
  return kWhole ? load(p) : load(p, n);
}

template <bool kWhole>
inline void store_some(float* p, V16 v, int64_t n) {
  kWhole ? store(p, v) : store(p, v, n);
}

// Adds the product of number i of Q queries' weights with 16 * C numbers of its value, from `at` on. Of the last 16, fewer
// may be there: `rest` of all of them.
template <Format F, int Q, int C, bool kWhole>
inline void add_value(const float* weights, int64_t stride, const void* const* values, int64_t i, int64_t at, int64_t rest,
                      V16 (&sums)[Q][C]) {
  V16 v[C];
  for (int c = 0; c < C; ++c) {
    v[c] = kWhole ? load_as<F>(values[i], at + 16 * c) : load_as<F>(values[i], at + 16 * c, rest - 16 * c);
  }
  for (int q = 0; q < Q; ++q) {
    const V16 w = set1(weights[q * stride + i]);
    for (int c = 0; c < C; ++c) sums[q][c] = fma(w, v[c], sums[q][c]);
  }
}

// The products of up to 32 numbers: those of even and of odd places apart, and then both with what is there. Places that are
// not seen are left out. The definition has zeros there, which would change nothing but perhaps the sign of a zero.
template <int Q, int C, bool kWhole>
inline void weigh_pairs(const float* weights, int64_t stride, const void* const* values, int64_t from, int64_t to,
                        int64_t at, int64_t rest, int64_t width, float* out) {
  V16 even[Q][C], odd[Q][C];
  auto add_one = [&](int64_t i, V16 (&sums)[Q][C]) {
    add_value<Format::bf16, Q, C, kWhole>(weights, stride, values, i, at, rest, sums);
  };
  for (int q = 0; q < Q; ++q) {
    for (int c = 0; c < C; ++c) even[q][c] = odd[q][c] = set1(0.0f);
  }
  if constexpr (Q == 1) {  // a row alone would wait for its own sums
    int64_t i = from;
    if (i % 2 && i < to) add_one(i++, odd);
    for (; i + 2 <= to; i += 2) {
      add_one(i, even);
      add_one(i + 1, odd);
    }
    if (i < to) add_one(i, even);
  } else {  // there are no registers for both
    for (int64_t i = from + from % 2; i < to; i += 2) add_one(i, even);
    for (int64_t i = from + 1 - from % 2; i < to; i += 2) add_one(i, odd);
  }
  for (int q = 0; q < Q; ++q) {
    for (int c = 0; c < C; ++c) {
      float* p = out + q * width + at + 16 * c;
      const V16 both = add(even[q][c], odd[q][c]);
      store_some<kWhole>(p, add(load_some<kWhole>(p, rest - 16 * c), both), rest - 16 * c);
    }
  }
}

// The products of values that are not bf16, one after the other with what is there.
template <Format F, int Q, int C, bool kWhole>
inline void weigh_singly(const float* weights, int64_t stride, const void* const* values, int64_t from, int64_t to,
                         int64_t at, int64_t rest, int64_t width, float* out) {
  V16 sums[Q][C];
  for (int q = 0; q < Q; ++q) {
    for (int c = 0; c < C; ++c) {
      sums[q][c] = load_some<kWhole>(out + q * width + at + 16 * c, rest - 16 * c);
    }
  }
  for (int64_t i = from; i < to; ++i) add_value<F, Q, C, kWhole>(weights, stride, values, i, at, rest, sums);
  for (int q = 0; q < Q; ++q) {
    for (int c = 0; c < C; ++c) {
      store_some<kWhole>(out + q * width + at + 16 * c, sums[q][c], rest - 16 * c);
    }
  }
}

template <Format F, int Q, int C, bool kWhole>
inline void weigh_block(const float* weights, int64_t stride, const void* const* values, int64_t from, int64_t to,
                        int64_t at, int64_t rest, int64_t width, float* out) {
  if constexpr (F == Format::bf16) {
    weigh_pairs<Q, C, kWhole>(weights, stride, values, from, to, at, rest, width, out);
  } else {
    weigh_singly<F, Q, C, kWhole>(weights, stride, values, from, to, at, rest, width, out);
  }
}

template <Format F, int Q, int C>
void weigh_queries(const float* weights, int64_t stride, const void* const* values, int64_t from, int64_t to,
                   int64_t width, float* out) {
  int64_t at = 0;
  for (; at + 16 * C <= width; at += 16 * C) {
    weigh_block<F, Q, C, true>(weights, stride, values, from, to, at, width - at, width, out);
  }
  for (; at < width; at += 16) {
    weigh_block<F, Q, 1, false>(weights, stride, values, from, to, at, width - at, width, out);
  }
}

template <Format F>
void weigh_as(const float* weights, int64_t stride, int64_t queries, const void* const* values, int64_t from,
              int64_t to, int64_t width, float* out) {
  int64_t q = 0;
  if constexpr (kChunks > 1) {  // half as many numbers of twice as many queries: each number is read for all of them
    for (; q + 2 * kQueries <= queries; q += 2 * kQueries) {
      weigh_queries<F, 2 * kQueries, kChunks / 2>(weights + q * stride, stride, values, from, to, width, out + q * width);
    }
  }
  for (; q + kQueries <= queries; q += kQueries) {
    weigh_queries<F, kQueries, kChunks>(weights + q * stride, stride, values, from, to, width, out + q * width);
  }
  for (; q < queries; ++q) {
    weigh_queries<F, 1, kChunks>(weights + q * stride, stride, values, from, to, width, out + q * width);
  }
}

void weigh(Format format, const float* weights, int64_t stride, int64_t queries, const void* const* values,
           int64_t from, int64_t to, int64_t width, float* out) {
  if (format == Format::bf16) {
    for (int64_t at = from / 32 * 32; at < to; at += 32) {
      const int64_t begin = from > at ? from - at : 0, end = to - at < 32 ? to - at : 32;
      weigh_as<Format::bf16>(weights + at, stride, queries, values + at, begin, end, width, out);
    }
    return;
  }
  if (format == Format::fp16) return weigh_as<Format::fp16>(weights, stride, queries, values, from, to, width, out);
  weigh_as<Format::fp32>(weights, stride, queries, values, from, to, width, out);
}

// The exponentials of all queries are made together.
void fold(const Found& so_far, const Found& block, int64_t queries, int64_t width) {
  const V16 top = load(so_far.tops, queries), block_top = load(block.tops, queries);
  const V16 both = max(top, block_top);
  const V16 old = exponential(sub(top, both)), fresh = exponential(sub(block_top, both));
  const V16 total = fma(load(so_far.sums, queries), old, mul(load(block.sums, queries), fresh));
  float tops[kFolded], totals[kFolded], olds[kFolded], freshes[kFolded];
  store(tops, both);
  store(totals, total);
  store(olds, old);
  store(freshes, fresh);
  for (int64_t q = 0; q < queries; ++q) {
    float* out = so_far.outs + q * width;
    const float* block_out = block.outs + q * width;
    if (block.sums[q] == 0.0f) continue;
    if (so_far.sums[q] == 0.0f) {
      so_far.tops[q] = block.tops[q];
      so_far.sums[q] = block.sums[q];
      std::memcpy(out, block_out, static_cast<std::size_t>(width) * 4);
      continue;
    }
    so_far.tops[q] = tops[q];
    so_far.sums[q] = totals[q];
    const V16 by_old = set1(olds[q]), by_fresh = set1(freshes[q]);
    for (int64_t at = 0; at < width; at += 16) {
      const int64_t rest = width - at;
      store(out + at, fma(load(out + at, rest), by_old, mul(load(block_out + at, rest), by_fresh)), rest);
    }
  }
}

void divide(const float* x, float by, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) store(out + i, div(load(x + i, n - i), set1(by)), n - i);
}

}  // namespace
