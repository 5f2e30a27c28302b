// Attention of rows over prefix and ancestors.
//
// A row's keys are taken by position, in blocks of 256 positions: within a block, the largest score, the sum of the
// exponentials, and their products with the values; then block after block is added up. Where a block's keys lie, who
// computes it, and which rows are computed with it changes no bit. What a row does not see is not read.
#include <algorithm>
#include <cstring>

#include "plan.h"

namespace foretoken {
namespace {

using std::int64_t;

constexpr int64_t kBlock = 256;    // positions
// Numbers from one query's scores to the next's: 1,024 bytes would put all of them into the same few sets of the first cache.
constexpr int64_t kScores = kBlock + 16;
constexpr int64_t kKeys = 64;      // positions whose keys are read while they are near
constexpr int64_t kStretch = 32;   // and whose values are
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

// By rows and key heads.
std::vector<Piece> Attention::pieces(int64_t threads) const {
  const int64_t kv_heads = shape.kv_heads;
  // all heads of a block lie together: one piece reads them all, unless there are too few blocks for everybody
  const int64_t longest = *std::max_element(rows.positions.begin(), rows.positions.end()) / kBlock + 1;
  const int64_t share = longest < 2 * threads ? (kv_heads + threads - 1) / threads : kv_heads;
  const int64_t heads_each = std::clamp<int64_t>(kQueries / group, 1, share);
  std::vector<Piece> all;
  for (const Segment& segment : rows.segments) {
    const int64_t rows_each = std::max<int64_t>(1, kQueries / shape.heads);
    const int64_t few = segment.to - segment.from <= rows_each ? rows_each : std::max<int64_t>(1, kQueries / group);
    const int64_t heads = few == rows_each ? heads_each : 1;
    for (int64_t from = segment.from; from < segment.to; from += few) {
      const int64_t to = std::min(segment.to, from + few);
      Range any = seen(from);
      for (int64_t row = from; row < to; ++row) {
        any.from = std::min(any.from, seen(row).from);
        any.to = std::max(any.to, seen(row).to);
      }
      for (int64_t head = 0; head < kv_heads; head += heads) {
        all.push_back({&segment, from, to, head, std::min(kv_heads, head + heads), any.from / kBlock,
                       (any.to + kBlock - 1) / kBlock});
      }
    }
  }
  return all;
}

// Adds a block's part to what came before.
void Attention::add(const Piece& p, float* so_far, float* part) const {
  const int64_t all = queries(p);
  const Part to(so_far, all), from(part, all);
  for (int64_t q = 0; q < all; ++q) {
    if (to.sums[q] == 0.0f) {
      to.tops[q] = from.tops[q];
      to.sums[q] = from.sums[q];
      std::memcpy(to.outs + q * dim, from.outs + q * dim, static_cast<std::size_t>(dim) * 4);
    } else if (from.sums[q] != 0.0f) {
      kernels.fold(to.tops + q, to.sums + q, to.outs + q * dim, from.tops + q, from.sums + q, from.outs + q * dim, dim);
    }
  }
}

void Attention::finish(const Piece& p, float* part) const {
  const Part from(part, queries(p));
  for (int64_t h = 0, q = 0; h < p.heads(); ++h) {
    for (int64_t row = p.from; row < p.to; ++row) {
      float* to = attended + (row * shape.heads + (p.head + h) * group) * dim;
      for (int64_t g = 0; g < group; ++g, ++q) kernels.divide(from.outs + q * dim, from.sums[q], dim, to + g * dim);
    }
  }
}

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
    weigh(any, from, to);
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
          a_.kernels.soften(scratch_.scores.data() + q * kScores, range.from, range.to, a_.scale, part_.tops + q,
                            part_.sums + q);
        }
      }
    }
  }

  void weigh(Range any, int64_t from, int64_t to) {
    for (int64_t at = any.from; at < any.to; at += kStretch) {
      const int64_t end = std::min(any.to, at + kStretch);
      for (int64_t h = 0; h < heads_; ++h) {
        fetch(scratch_.values, at + kStretch, kStretch, any.to, h);
        const void* values[kStretch];
        for (int64_t i = at; i < end; ++i) {
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

void Plan::attend(int64_t index, const Rows& rows) {
  const int64_t window = layers_[static_cast<std::size_t>(index)].window;
  const Attention attention{shape_, *kernels_, rows, index, window, query_.data(), attended_.data()};
  const std::vector<Piece> pieces = attention.pieces(pool_->threads());
  auto piece_at = [&](int64_t i) -> const Piece& { return pieces[static_cast<std::size_t>(i)]; };
  auto scratch_of = [&](int thread) -> Scratch& { return scratch_[static_cast<std::size_t>(thread)]; };
  const int64_t count = static_cast<int64_t>(pieces.size());
  int64_t most_blocks = 0;
  for (const Piece& p : pieces) most_blocks = std::max(most_blocks, p.block_to - p.block);

  if (most_blocks <= 1 || count >= 8 * pool_->threads()) {
    pool_->run(count, [&](int64_t i, int thread) {
      const Piece& p = piece_at(i);
      Scratch& scratch = scratch_of(thread);
      const int64_t size = attention.part_size(p);
      at_least(scratch.partial, 2 * size);
      float *so_far = scratch.partial.data(), *part = so_far + size;
      Block(attention, p, p.block, so_far, scratch).compute();
      for (int64_t block = p.block + 1; block < p.block_to; ++block) {
        Block(attention, p, block, part, scratch).compute();
        attention.add(p, so_far, part);
      }
      attention.finish(p, so_far);
    });
    return;
  }
  // too few pieces: their blocks are shared out, too, and what those give is kept and added up after
  struct Task {
    int64_t piece, block, at;
  };
  std::vector<Task> tasks;
  std::vector<int64_t> starts;
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    starts.push_back(total);
    for (int64_t block = piece_at(i).block; block < piece_at(i).block_to; ++block) {
      tasks.push_back({i, block, total});
      total += attention.part_size(piece_at(i));
    }
  }
  at_least(partials_, total);
  pool_->run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
    const Task& task = tasks[static_cast<std::size_t>(i)];
    Block(attention, piece_at(task.piece), task.block, partials_.data() + task.at, scratch_of(thread)).compute();
  });
  pool_->run(count, [&](int64_t i, int) {
    const Piece& p = piece_at(i);
    float* so_far = partials_.data() + starts[static_cast<std::size_t>(i)];
    const int64_t size = attention.part_size(p);
    for (int64_t block = p.block + 1; block < p.block_to; ++block) {
      attention.add(p, so_far, so_far + (block - p.block) * size);
    }
    attention.finish(p, so_far);
  });
}

}  // namespace foretoken
