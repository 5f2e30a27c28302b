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
constexpr int64_t kStretch = 32;   // positions whose values are read while they are near
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
};

}  // namespace

void Plan::attend(int64_t index, const Rows& rows) {
  const Shape& s = shape_;
  const int64_t dim = s.head_dim, group = s.heads / s.kv_heads, window = layers_[static_cast<std::size_t>(index)].window;
  const int64_t item = static_cast<int64_t>(size_of(s.cache)), row_bytes = s.kv_heads * dim * item;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  auto position = [&](int64_t row) { return rows.positions[static_cast<std::size_t>(row)]; };
  auto first_of = [&](int64_t row) { return window ? std::max<int64_t>(0, position(row) + 1 - window) : 0; };

  // pieces: by rows and key heads; if those are few, by blocks too, whose parts are then kept and added up after
  std::vector<Piece> wholes;
  int64_t most_blocks = 1;
  // all heads of a block lie together: one piece reads them all, unless there are too few blocks for everybody
  const int64_t longest = *std::max_element(rows.positions.begin(), rows.positions.end()) / kBlock + 1;
  const int64_t share = longest < 2 * pool_->threads() ? (s.kv_heads + pool_->threads() - 1) / pool_->threads() : s.kv_heads;
  const int64_t heads_each = std::clamp<int64_t>(kQueries / group, 1, share);
  for (const Segment& segment : rows.segments) {
    const int64_t rows_each = std::max<int64_t>(1, kQueries / s.heads);
    const int64_t few = segment.to - segment.from <= rows_each ? rows_each : std::max<int64_t>(1, kQueries / group);
    const int64_t heads = few == rows_each ? heads_each : 1;
    for (int64_t from = segment.from; from < segment.to; from += few) {
      const int64_t to = std::min(segment.to, from + few);
      int64_t lo = first_of(from), hi = 0;
      for (int64_t row = from; row < to; ++row) {
        lo = std::min(lo, first_of(row));
        hi = std::max(hi, position(row) + 1);
      }
      const Piece piece{&segment, from, to, 0, 0, lo / kBlock, (hi + kBlock - 1) / kBlock};
      most_blocks = std::max(most_blocks, piece.block_to - piece.block);
      for (int64_t head = 0; head < s.kv_heads; head += heads) {
        wholes.push_back(piece);
        wholes.back().head = head;
        wholes.back().head_to = std::min(s.kv_heads, head + heads);
      }
    }
  }
  const bool split = most_blocks > 1 && static_cast<int64_t>(wholes.size()) < 8 * pool_->threads();

  // what one block gives: for each query of a piece, largest and sum; then the weighted values
  auto part_size = [&](const Piece& p) { return (p.to - p.from) * (p.head_to - p.head) * group * (dim + 2); };

  auto compute = [&](const Piece& p, int64_t block, float* part, Scratch& scratch) {
    const int64_t heads = p.head_to - p.head, per_head = (p.to - p.from) * group, all = per_head * heads;
    const Reader reader{*p.segment, index, row_bytes};
    at_least(scratch.scores, all * kBlock + 16);
    at_least(scratch.queries, all * dim);
    at_least(scratch.out, all * kTile);
    at_least(scratch.keys, kBlock);
    at_least(scratch.values, kBlock);
    const int64_t packed_each = static_cast<int64_t>(kernels_->packed_bytes(s.cache, per_head, dim) + 63) / 64 * 64;
    at_least(scratch.packed, 64 + packed_each * heads);
    char* packed = aligned(scratch.packed);
    float *tops = part, *sums = part + all, *outs = part + 2 * all;
    std::memset(outs, 0, static_cast<std::size_t>(all * dim) * 4);
    const int64_t base = block * kBlock;
    const std::vector<int64_t> straight;

    // queries in the order head, row, head of the group
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t row = p.from; row < p.to; ++row) {
        std::memcpy(scratch.queries.data() + (h * per_head + (row - p.from) * group) * dim,
                    query_.data() + (row * s.heads + (p.head + h) * group) * dim, static_cast<std::size_t>(group * dim) * 4);
      }
    }
    // rows that find this block's keys in the same places go together; in scratch, rows of a tree do not
    bool together = true;
    for (int64_t row = p.from; row < p.to; ++row) {
      together &= rows.paths[static_cast<std::size_t>(row)].empty() || base + kBlock <= p.segment->length;
    }
    const int64_t step = together ? p.to - p.from : 1;
    for (int64_t from = p.from; from < p.to; from += step) {
      const int64_t to = from + step, queries = step * group;
      int64_t lo = kBlock, hi = 0;
      for (int64_t row = from; row < to; ++row) {
        lo = std::min(lo, std::max<int64_t>(0, first_of(row) - base));
        hi = std::max(hi, std::min(kBlock, position(row) + 1 - base));
      }
      if (lo >= hi) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t q = 0; q < queries; ++q) sums[h * per_head + (from - p.from) * group + q] = 0.0f;
        }
        continue;
      }
      const std::vector<int64_t>& path = together ? straight : rows.paths[static_cast<std::size_t>(from)];
      const int64_t first = lo / 16 * 16;
      for (int64_t i = first; i < hi; ++i) {
        const int64_t seen = std::max(i, lo);  // before the window: any key will do, its score is not used
        reader.find(base + seen, path, &scratch.keys[static_cast<std::size_t>(i)], &scratch.values[static_cast<std::size_t>(i)]);
      }
      for (int64_t h = 0; h < heads; ++h) {
        const float* x = scratch.queries.data() + (h * per_head + (from - p.from) * group) * dim;
        kernels_->pack(s.cache, x, dim, 0, queries, queries, dim, packed + h * packed_each);
      }
      // all heads of a row lie together: while one group of rows is used, the next is fetched in the order of addresses,
      // a share with each head
      auto fetch = [&](const std::vector<const void*>& rows_at, int64_t at, int64_t count, int64_t h) {
        for (int64_t i = at + count * h / heads; i < std::min(hi, at + count * (h + 1) / heads); ++i) {
          const char* row = static_cast<const char*>(rows_at[static_cast<std::size_t>(i)]) + p.head * dim * item;
          for (int64_t line = 0; line < heads * dim * item; line += 64) will_read(row + line);
        }
      };
      for (int64_t i = first; i < hi; i += 16) {
        for (int64_t h = 0; h < heads; ++h) {
          if (i + 16 < hi) {
            fetch(scratch.keys, i + 16, 16, h);
          } else {
            fetch(scratch.values, first, kStretch, h);
          }
          const void* keys[kTile];
          for (int64_t j = 0; j < 16; ++j) {
            keys[j] = static_cast<const char*>(scratch.keys[static_cast<std::size_t>(std::min(i + j, hi - 1))]) +
                      (p.head + h) * dim * item;
          }
          kernels_->linear(s.cache, keys, dim, packed + h * packed_each, queries, scratch.out.data());
          float* scores = scratch.scores.data() + (h * per_head + (from - p.from) * group) * kBlock + i;
          for (int64_t q = 0; q < queries; ++q) std::memcpy(scores + q * kBlock, scratch.out.data() + q * 16, 64);
        }
      }
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t row = from; row < to; ++row) {
          const int64_t a = std::max<int64_t>(0, first_of(row) - base), b = std::min(kBlock, position(row) + 1 - base);
          for (int64_t g = 0; g < group; ++g) {
            const int64_t q = h * per_head + (row - p.from) * group + g;
            sums[q] = 0.0f;
            if (a < b) kernels_->soften(scratch.scores.data() + q * kBlock, a, b, scale, tops + q, sums + q);
          }
        }
      }
      for (int64_t at = first; at < hi; at += kStretch) {
        for (int64_t h = 0; h < heads; ++h) {
          fetch(scratch.values, at + kStretch, kStretch, h);
          const void* values[kStretch];
          const int64_t end = std::min(hi, at + kStretch);
          for (int64_t i = at; i < end; ++i) {
            values[i - at] = static_cast<const char*>(scratch.values[static_cast<std::size_t>(i)]) + (p.head + h) * dim * item;
          }
          for (int64_t row = from; row < to; ++row) {
            const int64_t a = std::max(at, std::max<int64_t>(0, first_of(row) - base));
            const int64_t b = std::min(end, position(row) + 1 - base);
            const int64_t q = h * per_head + (row - p.from) * group;
            if (a < b) {
              kernels_->weigh(s.cache, scratch.scores.data() + q * kBlock + at, kBlock, group, values, a - at, b - at, dim,
                              outs + q * dim);
            }
          }
        }
      }
    }
  };

  // adds a block's part to what came before; a part whose sum is 0 had nothing to see
  auto add = [&](const Piece& p, float* so_far, const float* part) {
    const int64_t all = (p.to - p.from) * (p.head_to - p.head) * group;
    for (int64_t q = 0; q < all; ++q) {
      const float* out = part + 2 * all + q * dim;
      float* to = so_far + 2 * all + q * dim;
      if (so_far[all + q] == 0.0f) {
        so_far[q] = part[q];
        so_far[all + q] = part[all + q];
        std::memcpy(to, out, static_cast<std::size_t>(dim) * 4);
      } else if (part[all + q] != 0.0f) {
        kernels_->fold(so_far + q, so_far + all + q, to, part + q, part + all + q, out, dim);
      }
    }
  };
  auto finish = [&](const Piece& p, const float* part) {
    const int64_t heads = p.head_to - p.head, per_head = (p.to - p.from) * group, all = per_head * heads;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < per_head; ++i) {
        const int64_t q = h * per_head + i, row = p.from + i / group, head = (p.head + h) * group + i % group;
        kernels_->divide(part + 2 * all + q * dim, part[all + q], dim, attended_.data() + (row * s.heads + head) * dim);
      }
    }
  };

  if (!split) {
    pool_->run(static_cast<int64_t>(wholes.size()), [&](int64_t i, int thread) {
      const Piece& p = wholes[static_cast<std::size_t>(i)];
      Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
      const int64_t size = part_size(p);
      at_least(scratch.partial, 2 * size);
      float *so_far = scratch.partial.data(), *part = so_far + size;
      for (int64_t block = p.block; block < p.block_to; ++block) {
        float* to = block == p.block ? so_far : part;
        compute(p, block, to, scratch);
        if (block > p.block) add(p, so_far, part);
      }
      finish(p, so_far);
    });
    return;
  }
  struct Task {
    int64_t whole, block, at;
  };
  std::vector<Task> tasks;
  std::vector<int64_t> starts;
  int64_t total = 0;
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    starts.push_back(total);
    for (int64_t block = wholes[i].block; block < wholes[i].block_to; ++block) {
      tasks.push_back({static_cast<int64_t>(i), block, total});
      total += part_size(wholes[i]);
    }
  }
  at_least(partials_, total);
  pool_->run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
    const Task& task = tasks[static_cast<std::size_t>(i)];
    compute(wholes[static_cast<std::size_t>(task.whole)], task.block, partials_.data() + task.at,
            scratch_[static_cast<std::size_t>(thread)]);
  });
  pool_->run(static_cast<int64_t>(wholes.size()), [&](int64_t i, int) {
    const Piece& p = wholes[static_cast<std::size_t>(i)];
    float* so_far = partials_.data() + starts[static_cast<std::size_t>(i)];
    const int64_t size = part_size(p);
    for (int64_t block = p.block + 1; block < p.block_to; ++block) add(p, so_far, so_far + (block - p.block) * size);
    finish(p, so_far);
  });
}

}  // namespace foretoken
