// Attention of some rows over one block of positions. Part of attention.cpp.

namespace foretoken {
namespace {

using std::int64_t;

constexpr int64_t kBlock = 256;    // positions
// Numbers from one query's scores to the next's: 1,024 bytes would put all of them into the same few sets of the first cache.
constexpr int64_t kScores = kBlock + 16;
constexpr int64_t kKeys = 64;      // positions whose keys are read while they are near
constexpr int64_t kStretch = 32;   // and whose values are; also what is added up as one
constexpr int64_t kManyQueries = 16;  // from which on values are weighed on tiles
constexpr int64_t kQueries = 64;   // of one piece of work, all its heads together, at most (or one row's)

// Into the second cache. The empty statement keeps gcc from taking a function that only fetches for one without effect.
inline void will_read(const char* at) {
  __builtin_prefetch(at, 0, 2);
  __asm__ volatile("" : : "r"(at));
}

struct Reader {  // where a row's keys and values lie
  const Segment& segment;
  int64_t layer;
  int64_t row_bytes;

  // `path` is the row's own, or empty.
  void find(int64_t position, const std::vector<int64_t>& path, const void** key, const void** value) const {
    if (position >= segment.length) {
      const int64_t slot = position - segment.length;
      const int64_t at = (layer - segment.first_layer) * segment.layer_bytes +
                         (path.empty() ? slot : path[static_cast<std::size_t>(slot)]) * row_bytes;
      *key = segment.keys + at;
      *value = segment.values + at;
      return;
    }
    std::size_t i = 0;
    while (position >= segment.spans[i].end) ++i;
    const Span& span = segment.spans[i];
    const int64_t at = (layer - span.first_layer) * span.layer_bytes + (position - span.start) * row_bytes;
    *key = span.keys + at;
    *value = span.values + at;
  }
};

struct Piece {  // rows [from, to) of a segment, key heads [head, head_to), blocks [block, block_to)
  const Segment* segment;
  int64_t from, to, head, head_to, block, block_to;

  int64_t rows() const { return to - from; }
  int64_t heads() const { return head_to - head; }
};

struct Range {
  int64_t from, to;
  bool empty() const { return from >= to; }
};

// What blocks give the queries of a piece, which are in the order key head, row, head of its group: the largest score,
// the sum, and the weighted values. A sum of 0: nothing was seen.
struct Part {
  float *tops, *sums, *outs;
  Part(float* at, int64_t queries) : tops(at), sums(at + queries), outs(at + 2 * queries) {}
};

// One layer's attention, as every piece of it sees it.
struct Attention {
  const Shape& shape;
  const Kernels& kernels;
  const Rows& rows;
  int64_t layer, window;
  const float* query;
  float* attended;

  const int64_t dim = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;  // heads that share a key head
  const int64_t head_bytes = dim * static_cast<int64_t>(size_of(shape.cache));
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));

  // The positions that a row sees.
  Range seen(int64_t row) const {
    const int64_t end = rows.positions[static_cast<std::size_t>(row)] + 1;
    return {window ? std::max<int64_t>(0, end - window) : 0, end};
  }
  int64_t queries(const Piece& p) const { return p.rows() * p.heads() * group; }
  int64_t part_size(const Piece& p) const { return queries(p) * (dim + 2); }

  std::vector<Piece> pieces(int64_t threads) const;
  void add(const Piece& p, float* so_far, float* part) const;
  void finish(const Piece& p, float* part) const;
};

// One piece over one block of positions.
class Block {
 public:
  Block(const Attention& attention, const Piece& piece, int64_t block, float* part, Scratch& scratch)
      : a_(attention),
        p_(piece),
        base_(block * kBlock),
        heads_(piece.heads()),
        per_head_(piece.rows() * a_.group),
        part_(part, a_.queries(piece)),
        scratch_(scratch) {}

  void compute() {
    reserve();
    gather();
    // rows that find this block's keys in the same places go together; in scratch, rows of a tree do not
    bool together = true;
    for (int64_t row = p_.from; row < p_.to; ++row) {
      together &= path(row).empty() || base_ + kBlock <= p_.segment->length;
    }
    const int64_t step = together ? p_.rows() : 1;
    for (int64_t from = p_.from; from < p_.to; from += step) rows_together(from, from + step);
  }

 private:
  const std::vector<int64_t>& path(int64_t row) const { return a_.rows.paths[static_cast<std::size_t>(row)]; }
  int64_t first_query(int64_t h, int64_t row) const { return h * per_head_ + (row - p_.from) * a_.group; }

  // What a row sees of this block: places within it.
  Range seen(int64_t row) const {
    const Range all = a_.seen(row);
    return {std::max<int64_t>(0, all.from - base_), std::min(kBlock, all.to - base_)};
  }

  void reserve() {
    const int64_t all = per_head_ * heads_, dim = a_.dim;
    at_least(scratch_.scores, all * kScores);
    at_least(scratch_.queries, all * dim);
    at_least(scratch_.keys, kBlock);
    at_least(scratch_.values, kBlock);
    packed_each_ = static_cast<int64_t>(a_.kernels.packed_bytes(a_.shape.cache, per_head_, dim) + 63) / 64 * 64;
    at_least(scratch_.packed, 64 + packed_each_ * heads_);
    packed_ = aligned(scratch_.packed);
    std::memset(part_.sums, 0, static_cast<std::size_t>(all) * 4);
    std::memset(part_.outs, 0, static_cast<std::size_t>(all * dim) * 4);
  }

  // Queries from rows of all heads into the order of parts.
  void gather() {
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t row = p_.from; row < p_.to; ++row) {
        std::memcpy(scratch_.queries.data() + first_query(h, row) * a_.dim,
                    a_.query + (row * a_.shape.heads + (p_.head + h) * a_.group) * a_.dim,
                    static_cast<std::size_t>(a_.group * a_.dim) * 4);
      }
    }
  }

  // Rows that find the block's keys in the same places.
  void rows_together(int64_t from, int64_t to) {
    Range any{kBlock, 0};
    for (int64_t row = from; row < to; ++row) {
      any.from = std::min(any.from, seen(row).from);
      any.to = std::max(any.to, seen(row).to);
    }
    if (any.empty()) return;
    find(any, path(from));
    any.from = any.from / 16 * 16;
    score(any, from, to);
    soften(from, to);
    weigh_all(any, from, to);
  }

  void find(Range any, const std::vector<int64_t>& path) {
    const Reader reader{*p_.segment, a_.layer, a_.shape.kv_heads * a_.head_bytes};
    for (int64_t i = any.from / 16 * 16; i < any.to; ++i) {
      const int64_t seen = std::max(i, any.from);  // before the window: any key will do, its score is not used
      const std::size_t at = static_cast<std::size_t>(i);
      reader.find(base_ + seen, path, &scratch_.keys[at], &scratch_.values[at]);
    }
  }

  // All heads of a row lie together: while one group of rows is used, the next is fetched in the order of addresses, a
  // share with each head.
  void fetch(const std::vector<const void*>& rows, int64_t at, int64_t count, int64_t end, int64_t h) const {
    const int64_t bytes = heads_ * a_.head_bytes, to = std::min(end, at + count * (h + 1) / heads_);
    for (int64_t i = at + count * h / heads_; i < to; ++i) {
      const char* row = static_cast<const char*>(rows[static_cast<std::size_t>(i)]) + p_.head * a_.head_bytes;
      for (int64_t line = 0; line < bytes; line += 64) will_read(row + line);
    }
  }

  void score(Range any, int64_t from, int64_t to) {
    const Format format = a_.shape.cache;
    const int64_t queries = (to - from) * a_.group, dim = a_.dim;
    for (int64_t h = 0; h < heads_; ++h) {
      const float* x = scratch_.queries.data() + first_query(h, from) * dim;
      a_.kernels.pack(format, x, dim, 0, queries, queries, dim, packed_ + h * packed_each_);
    }
    for (int64_t i = any.from; i < any.to; i += kKeys) {
      const int64_t tiles = (std::min(any.to - i, kKeys) + kTile - 1) / kTile;
      for (int64_t h = 0; h < heads_; ++h) {
        if (i + kKeys < any.to) {
          fetch(scratch_.keys, i + kKeys, kKeys, any.to, h);
        } else {
          fetch(scratch_.values, any.from, kStretch, any.to, h);
        }
        const void* keys[kKeys];
        for (int64_t j = 0; j < tiles * kTile; ++j) {
          const void* key = scratch_.keys[static_cast<std::size_t>(std::min(i + j, any.to - 1))];
          keys[j] = static_cast<const char*>(key) + (p_.head + h) * a_.head_bytes;
        }
        a_.kernels.linear(format, keys, tiles, dim, {packed_ + h * packed_each_, queries, 0, queries},
                          {scratch_.scores.data() + first_query(h, from) * kScores + i, kScores});
      }
    }
  }

  void soften(int64_t from, int64_t to) {
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t row = from; row < to; ++row) {
        const Range range = seen(row);
        if (range.empty()) continue;
        const int64_t first = first_query(h, row);
        for (int64_t q = first; q < first + a_.group; ++q) {
          a_.kernels.soften(a_.shape.cache, scratch_.scores.data() + q * kScores, range.from, range.to, a_.scale,
                            part_.tops + q, part_.sums + q);
        }
      }
    }
  }

  // Of bf16, places that many queries see whole go at once, for kernels with tiles; if they are of many heads, no more than
  // can be fetched meanwhile.
  void weigh_all(Range any, int64_t from, int64_t to) {
    Range whole = any;
    for (int64_t row = from; row < to; ++row) {
      whole.from = std::max(whole.from, seen(row).from);
      whole.to = std::min(whole.to, seen(row).to);
    }
    whole.from = (whole.from + kStretch - 1) / kStretch * kStretch;
    whole.to = whole.to / kStretch * kStretch;
    const bool few = (to - from) * a_.group < kManyQueries;
    if (a_.shape.cache != Format::bf16 || few || whole.empty()) return weigh(any, any.to, kStretch, from, to);
    weigh({any.from, whole.from}, any.to, kStretch, from, to);
    weigh(whole, any.to, heads_ > 1 ? kKeys : kBlock, from, to);
    weigh({whole.to, any.to}, any.to, kStretch, from, to);
  }

  // `step` places at a time. last: where the places end that are weighed after these, too.
  void weigh(Range some, int64_t last, int64_t step, int64_t from, int64_t to) {
    for (int64_t at = some.from / kStretch * kStretch; at < some.to; at += step) {
      const int64_t end = std::min(some.to, at + step);
      for (int64_t h = 0; h < heads_; ++h) {
        fetch(scratch_.values, end, step, last, h);
        const void* values[kBlock];
        for (int64_t i = std::max(at, some.from); i < end; ++i) {
          const void* value = scratch_.values[static_cast<std::size_t>(i)];
          values[i - at] = static_cast<const char*>(value) + (p_.head + h) * a_.head_bytes;
        }
        auto of = [&](int64_t row) {
          const Range all = seen(row);
          return Range{std::max(at, all.from), std::min(end, all.to)};
        };
        for (int64_t row = from, next = from; row < to; row = next) {  // rows that see the same, together
          const Range range = of(row);
          for (next = row + 1; next < to && of(next).from == range.from && of(next).to == range.to; ++next) {
          }
          if (range.empty()) continue;
          const int64_t q = first_query(h, row);
          a_.kernels.weigh(a_.shape.cache, scratch_.scores.data() + q * kScores + at, kScores, (next - row) * a_.group,
                           values, range.from - at, range.to - at, a_.dim, part_.outs + q * a_.dim);
        }
      }
    }
  }

  const Attention& a_;
  const Piece& p_;
  const int64_t base_, heads_, per_head_;  // queries of a key head
  const Part part_;
  Scratch& scratch_;
  int64_t packed_each_ = 0;  // bytes of a key head's packed queries
  char* packed_ = nullptr;
};

}  // namespace
}  // namespace foretoken
