// Attention of rows over prefix and ancestors.
//
// A row's keys are taken by position, in blocks of 256 positions: within a block, the largest score, the sum of the
// exponentials, and their products with the values; then block after block is added up. Where a block's keys lie, who
// computes it, and which rows are computed with it changes no bit. What a row does not see is not read.
#include <algorithm>
#include <cstring>

#include "attention_in_parts.h"
#include "plan.h"

#include "attention_block.inl"

namespace foretoken {
namespace {

// By rows and key heads.
std::vector<Piece> Attention::pieces(int64_t threads) const {
  const int64_t kv_heads = shape.kv_heads;
  // all heads of a block lie together: one piece reads them all, unless there are too few blocks for everybody
  const int64_t longest = *std::max_element(rows.positions.begin(), rows.positions.end()) / kBlock + 1;
  const int64_t share = longest < 2 * threads ? (kv_heads + threads - 1) / threads : kv_heads;
  const int64_t heads_each = std::clamp<int64_t>(kQueries / group, 1, share);
  std::vector<Piece> all;
  for (const Segment& segment : rows.segments) {
    const int64_t count = segment.to - segment.from;
    const int64_t rows_each = std::max<int64_t>(1, (attends(kernels.attend_from) ? kMoreQueries : kQueries) / shape.heads);
    int64_t most = std::max<int64_t>(1, kQueries / group);
    // `attend` makes tiles or columns of keys and values for each piece, so pieces are large, as long as everybody has some
    while (attends(2 * most * group) && 2 * most * group <= kMostQueries && count / (2 * most) * kv_heads >= 8 * threads) {
      most *= 2;
    }
    const int64_t few = count <= rows_each ? rows_each : most;
    const int64_t heads = count <= rows_each ? heads_each : 1;
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

// Adds a block's part to what came before, for the queries of some of the piece's key heads. Meanwhile the next part is
// fetched, if there is one: another thread may have computed it.
void Attention::add(const Piece& p, Range heads, float* so_far, float* part, float* next) const {
  const int64_t all = queries(p), to = heads.to * per_head(p);
  auto from = [&](float* at, int64_t query) {
    const Found found = found_at(at, all);
    return Found{found.tops + query, found.sums + query, found.outs + query * dim};
  };
  for (int64_t query = heads.from * per_head(p); query < to; query += kFolded) {
    const int64_t some = std::min(kFolded, to - query);
    if (next) {
      const Found later = from(next, query);
      will_use<2>(reinterpret_cast<const char*>(later.tops), some * 4);
      will_use<2>(reinterpret_cast<const char*>(later.sums), some * 4);
      will_use<2>(reinterpret_cast<const char*>(later.outs), some * dim * 4);
    }
    kernels.fold(from(so_far, query), from(part, query), some, dim);
  }
}

void Attention::finish(const Piece& p, Range heads, float* part) const {
  const Found from = found_at(part, queries(p));
  for (int64_t h = heads.from, q = h * per_head(p); h < heads.to; ++h) {
    for (int64_t row = p.from; row < p.to; ++row) {
      float* to = attended + (row * shape.heads + (p.head + h) * group) * dim;
      for (int64_t g = 0; g < group; ++g, ++q) kernels.divide(from.outs + q * dim, from.sums[q], dim, to + g * dim);
    }
  }
}

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
      Walk walk(attention, p, scratch);
      auto behind = [&](int64_t block) { return block + 1 < p.block_to ? block + 1 : Walk::kNone; };
      walk.compute(p.block, so_far, behind(p.block));
      for (int64_t block = p.block + 1; block < p.block_to; ++block) {
        walk.compute(block, part, behind(block));
        attention.add(p, {0, p.heads()}, so_far, part, nullptr);
      }
      attention.finish(p, {0, p.heads()}, so_far);
    });
    return;
  }
  // too few pieces: their blocks are shared out, too, a few at a time, and what those give is kept and added up after
  struct Task {
    int64_t piece, block, block_to, at;
  };
  std::vector<Task> tasks;
  std::vector<int64_t> starts;
  int64_t total = 0, all_blocks = 0;
  for (const Piece& p : pieces) all_blocks += p.block_to - p.block;
  const int64_t each = std::max<int64_t>(1, all_blocks / (8 * pool_->threads()));
  for (int64_t i = 0; i < count; ++i) {
    const Piece& p = piece_at(i);
    starts.push_back(total);
    for (int64_t block = p.block; block < p.block_to; block += each) {
      const int64_t to = std::min(p.block_to, block + each);
      tasks.push_back({i, block, to, total});
      total += (to - block) * attention.part_size(p);
    }
  }
  at_least(partials_, total);
  pool_->run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
    const Task& task = tasks[static_cast<std::size_t>(i)];
    Walk walk(attention, piece_at(task.piece), scratch_of(thread));
    // threads mostly take tasks in turn, so the next task of this thread is probably `threads` places further on
    const std::size_t later = static_cast<std::size_t>(i + pool_->threads());
    const int64_t next = later < tasks.size() && tasks[later].piece == task.piece ? tasks[later].block : Walk::kNone;
    for (int64_t block = task.block, at = task.at; block < task.block_to; ++block) {
      walk.compute(block, partials_.data() + at, block + 1 < task.block_to ? block + 1 : next);
      at += attention.part_size(piece_at(task.piece));
    }
  });
  // some key heads at a time: as many as have queries enough for a fold
  struct Share {
    int64_t piece;
    Range heads;
  };
  std::vector<Share> shares;
  for (int64_t i = 0; i < count; ++i) {
    const Piece& p = piece_at(i);
    const int64_t some = std::max<int64_t>(1, kFolded / attention.per_head(p));
    for (int64_t head = 0; head < p.heads(); head += some) shares.push_back({i, {head, std::min(p.heads(), head + some)}});
  }
  pool_->run(static_cast<int64_t>(shares.size()), [&](int64_t i, int) {
    const Share& share = shares[static_cast<std::size_t>(i)];
    const Piece& p = piece_at(share.piece);
    float* so_far = partials_.data() + starts[static_cast<std::size_t>(share.piece)];
    const int64_t size = attention.part_size(p);
    for (int64_t block = p.block + 1; block < p.block_to; ++block) {
      float* part = so_far + (block - p.block) * size;
      attention.add(p, share.heads, so_far, part, block + 1 < p.block_to ? part + size : nullptr);
    }
    attention.finish(p, share.heads, so_far);
  });
}

}  // namespace foretoken
