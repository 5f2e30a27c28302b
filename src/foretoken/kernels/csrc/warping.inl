// A row of logits divided by the temperature and cut by top_k, top_p and min_p, as `warped` in kernels/choosing.py
// defines it, bit for bit. Included by choosing.inl.
//
// No templates of the standard library here or there: the linker would share them between instruction sets.

namespace {

using foretoken::Choice;
using std::uint32_t;
using std::uint64_t;

// -- masses ---------------------------------------------------------------------------------------------------------

constexpr double kLog2 = 0.6931471805599453;
constexpr double kWhole = 0x1.8p52;  // added, it rounds to a whole number, which then stands in the last bits

// As many as fill a register.
typedef double Doubles __attribute__((vector_size(kRegister)));
typedef uint64_t Longs __attribute__((vector_size(kRegister)));
typedef float Singles __attribute__((vector_size(kRegister / 2)));
constexpr int kTogether = kRegister / 8;

template <class Vector, class Number>
inline Vector gather(const Number* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Longs bits_of(Doubles x) { return reinterpret_cast<Longs>(x); }
inline Doubles doubles_of(Longs u) { return reinterpret_cast<Doubles>(u); }
inline Doubles widened(const float* x) { return __builtin_convertvector(gather<Singles>(x), Doubles); }

inline Doubles rounded_down(Doubles x) {
  const Doubles near = (x + kWhole) - kWhole;
  return near - (near > x ? Doubles{} + 1.0 : Doubles{});
}

template <int Power>
constexpr double factorial() {
  if constexpr (Power == 0) {
    return 1.0;
  } else {
    return Power * factorial<Power - 1>();
  }
}

constexpr int kAbreast = 4;  // registers that do the same: while one waits for itself, another computes

// y = 1 / p! + r / (p + 1)! + ... to r^13
template <int Power>
inline void taylor(const Doubles (&r)[kAbreast], Doubles (&y)[kAbreast]) {
  if constexpr (Power < 13) taylor<Power + 1>(r, y);
  for (int i = 0; i < kAbreast; ++i) {
    if constexpr (Power < 13) {
      y[i] = y[i] * r[i] + 1.0 / factorial<Power>();
    } else {
      y[i] = Doubles{} + 1.0 / factorial<13>();
    }
  }
}

// `mass` of n tokens, a multiple of 32. Beyond SPAN it is below 1, so 0, without a question.
void masses(const float* x, int64_t n, double top, uint64_t* out) {
  for (int64_t at = 0; at < n; at += kAbreast * kTogether) {
    Doubles r[kAbreast], y[kAbreast];
    Longs exponent[kAbreast];
    for (int i = 0; i < kAbreast; ++i) {
      const Doubles below = widened(x + at + i * kTogether) - top, v = below > -28.0 ? below : Doubles{} - 28.0;
      const Doubles power = rounded_down(v * (1.0 / kLog2) + 0.5);
      r[i] = (v - power * 0.693147180369123816490) - power * 1.90821492927058770002e-10;
      exponent[i] = bits_of(power + (kWhole + 40.0)) << 52;  // masses are in parts of 2^-40
    }
    taylor<0>(r, y);
    for (int i = 0; i < kAbreast; ++i) {
      const Doubles parts = doubles_of(bits_of(y[i]) + exponent[i]);
      const Longs whole = bits_of(rounded_down(parts) + 0x1p52) & 0xfffffffffffffu;
      std::memcpy(out + at + i * kTogether, &whole, sizeof whole);
    }
  }
}

// -- rows -----------------------------------------------------------------------------------------------------------

struct Row {
  float* x;  // divided by the temperature, padded with -inf to a multiple of 64
  int64_t wide;
  float* maxima;  // lane by lane of every `blocks`th register of x: each is another token's logit
  int64_t blocks;
  void* list;  // 16 bytes for each of `wide`
  float top;
};

inline V16 largest_of_64(const float* x) {
  return max(max(load(x), load(x + 16)), max(load(x + 32), load(x + 48)));
}

// Whether all of them are numbers below infinity.
bool divide_row(const float* logits, int64_t n, float temperature, Row* row) {
  const V16 never = set1(-__builtin_inff()), by = set1(temperature);
  for (int64_t i = 0; i < row->blocks; ++i) store(row->maxima + 16 * i, never);
  bool nan = false;
  int64_t block = 0;
  for (int64_t i = 0; i < row->wide; i += 16) {
    V16 v = never;
    if (i + 16 <= n) {
      v = div(load(logits + i), by);
    } else if (i < n) {
      v = keep(div(load(logits + i, n - i), by), never, 0, static_cast<int>(n - i));
    }
    nan |= any_nan(v);
    store(row->x + i, v);
    float* most = row->maxima + 16 * block;
    store(most, max(load(most), v));
    if (++block == row->blocks) block = 0;
  }
  V16 most = never;
  for (int64_t i = 0; i < row->blocks; ++i) most = max(most, load(row->maxima + 16 * i));
  row->top = largest(most);
  return !nan && row->top < __builtin_inff();
}

// By its bits, eight at a time from the top, in whole numbers that are ordered as the floats are.
float kth_largest(const float* x, int64_t n, int64_t k) {
  uint32_t found = 0, known = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t counts[256] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t u = bits_of(x[i]), ordered = u ^ (-(u >> 31) | 0x80000000u);
      if ((ordered & known) == found) ++counts[ordered >> shift & 0xffu];
    }
    uint32_t digit = 255;
    for (; digit && k > counts[digit]; --digit) k -= counts[digit];
    found |= digit << shift;
    known |= 0xffu << shift;
  }
  return float_of(found & 0x80000000u ? found ^ 0x80000000u : ~found);
}

void cut_below(const Row& row, float least) {
  for (int64_t i = 0; i < row.wide; i += 16) store(row.x + i, cut_below(load(row.x + i), least));
}

void keep_top_k(const Row& row, int64_t k) {
  const float bound = kth_largest(row.maxima, 16 * row.blocks, k);  // k tokens reach it, and hardly more
  float* list = static_cast<float*>(row.list);
  int64_t n = 0;
  for (int64_t base = 0; base < row.wide; base += 16) {
    unsigned lanes = above(load(row.x + base), set1(bound));
    for (; lanes; lanes &= lanes - 1) list[n++] = row.x[base + __builtin_ctz(lanes)];
  }
  cut_below(row, n < k ? bound : kth_largest(list, n, k));
}

struct Heavy {
  float x;
  uint32_t token;
  uint64_t mass;
};

struct Cut {  // the last that is kept: of those that equal it, the ones up to this token
  float x;
  int64_t token;
};

// Where the masses of tokens in order, beginning at `before`, reach the limit, which all together do. The list is by
// token; each round leaves of it what is on one side of one of them.
Cut find_cut(Heavy* list, int64_t n, uint64_t before, double limit) {
  for (;;) {
    const float pivot = list[n / 2].x;
    uint64_t above = 0, equal = 0;
    bool any_above = false;
    for (int64_t i = 0; i < n; ++i) {
      any_above |= list[i].x > pivot;
      above += list[i].x > pivot ? list[i].mass : 0;
      equal += list[i].x == pivot ? list[i].mass : 0;
    }
    const bool in_above = any_above && !(static_cast<double>(before + above) < limit);
    const bool in_equal = !in_above && !(static_cast<double>(before + above + equal) < limit);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Heavy h = list[i];
      if (in_above ? h.x > pivot : in_equal ? h.x == pivot : h.x < pivot) list[kept++] = h;
    }
    if (!in_above) before += above;
    if (in_equal) {
      Cut cut{pivot, list[0].token};  // the first is kept: its `before` was below the limit, or it is the very first
      for (int64_t i = 0; i < kept && (i == 0 || static_cast<double>(before) < limit); ++i) {
        cut.token = list[i].token;
        before += list[i].mass;
      }
      return cut;
    }
    if (!in_above) before += equal;
    n = kept;
  }
}

// Masses are added up by distance below the top; only those at whose distance the sum reaches its limit are ordered.
void keep_top_p(const Row& row, double p) {
  constexpr int kDistances = 512;
  const V16 top = set1(row.top), scale = set1(kDistances / 28.0f), last = set1(kDistances - 1.0f);
  const V16 far = set1(-28.0f);
  auto distance = [&](int64_t base) { return min(mul(sub(top, load(row.x + base)), scale), last); };
  uint64_t sums[4][kDistances] = {};  // four, so that neighbours do not wait for each other's sum
  uint64_t mass[64];
  float distances[64];
  for (int64_t base = 0; base < row.wide; base += 64) {
    if (!above(sub(largest_of_64(row.x + base), top), far)) continue;
    masses(row.x + base, 64, static_cast<double>(row.top), mass);
    for (int64_t i = 0; i < 64; i += 16) store(distances + i, distance(base + i));
    for (int i = 0; i < 64; ++i) sums[i % 4][static_cast<int>(distances[i])] += mass[i];
  }
  uint64_t total = 0, before = 0;
  for (int d = 0; d < kDistances; ++d) {
    sums[0][d] += sums[1][d] + sums[2][d] + sums[3][d];
    total += sums[0][d];
  }
  const double limit = p * static_cast<double>(total);
  int d = 0;
  while (d < kDistances - 1 && static_cast<double>(before + sums[0][d]) < limit) before += sums[0][d++];
  Heavy* list = static_cast<Heavy*>(row.list);
  int64_t n = 0;
  auto lanes_in = [&](V16 at) {
    return above(set1(static_cast<float>(d + 1)), at) & ~above(set1(static_cast<float>(d)), at);
  };
  for (int64_t base = 0; base < row.wide; base += 32) {
    uint32_t lanes = lanes_in(distance(base)) | lanes_in(distance(base + 16)) << 16;
    if (!lanes) continue;
    masses(row.x + base, 32, static_cast<double>(row.top), mass);
    for (; lanes; lanes &= lanes - 1) {
      const int i = __builtin_ctz(lanes);
      list[n++] = {row.x[base + i], static_cast<uint32_t>(base + i), mass[i]};
    }
  }
  const Cut cut = find_cut(list, n, before, limit);
  cut_below(row, cut.x);
  for (int64_t i = cut.token + 1; i < row.wide; ++i) row.x[i] = row.x[i] == cut.x ? -__builtin_inff() : row.x[i];
}

void keep_min_p(const Row& row, double p) {
  const V16 never = set1(-__builtin_inff()), top = set1(row.top);
  const double limit = p * 0x1p40, bound = __builtin_log(p) - 0.01;  // from there down, surely lighter than the limit
  const uint64_t least = static_cast<uint64_t>(__builtin_ceil(limit < 0x1p50 ? limit : 0x1p50));
  const V16 far = set1(bound > -28.0 ? static_cast<float>(bound) : -28.0f);
  for (int64_t base = 0; base < row.wide; base += 64) {
    float* x = row.x + base;
    if (!above(sub(largest_of_64(x), top), far)) {
      for (int i = 0; i < 64; i += 16) store(x + i, never);
      continue;
    }
    uint64_t mass[64];
    masses(x, 64, static_cast<double>(row.top), mass);
    for (int i = 0; i < 64; ++i) {
      const uint32_t light = -static_cast<uint32_t>((mass[i] - least) >> 63);
      x[i] = float_of((bits_of(x[i]) & ~light) | (light & 0xff800000u));  // -inf
    }
  }
}

}  // namespace
