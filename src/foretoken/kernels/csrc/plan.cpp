#include "plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "isas.h"

namespace foretoken {
using std::int64_t;

Plan::Plan(const Shape& shape, std::vector<Layer> layers, const char* embedding, std::vector<float> norm, Matrix head,
           const Kernels* kernels, std::shared_ptr<Pool> pool)
    : shape_(shape),
      layers_(std::move(layers)),
      embedding_(embedding),
      norm_(std::move(norm)),
      head_(std::move(head)),
      kernels_(kernels),
      pool_(std::move(pool)),
      arithmetic_{kernels_, pool_.get()},
      scratch_(static_cast<std::size_t>(pool_->threads())),
      tiles_(static_cast<std::size_t>(pool_->threads())) {
  for (const Layer& w : layers_) {
    if (!w.query.meets_like(w.key) || !w.query.meets_like(w.value) || !w.gate.meets_like(w.up)) {
      throw std::invalid_argument("matrices that share their inputs are of different formats");
    }
  }
}

void Plan::run(const Rows& rows, bool embed, int64_t lo, int64_t hi, float* hidden, float* logits, int64_t* best,
               const float* entering) {
  const auto hold = pool_->lock();
  const FlushSubnormals flush;
  run_locked(rows, embed, lo, hi, hidden, entering);
  if (logits) head_locked(static_cast<int64_t>(rows.positions.size()), hidden, logits, best);
}

void Plan::head(int64_t n, const float* hidden, float* logits, int64_t* best) {
  const auto hold = pool_->lock();
  const FlushSubnormals flush;
  head_locked(n, hidden, logits, best);
}

int64_t Plan::chain(Rows rows, int64_t* tokens) {
  const auto hold = pool_->lock();
  const FlushSubnormals flush;
  const std::size_t steps = rows.positions.size();
  at_least(step_hidden_, shape_.hidden);
  at_least(step_logits_, shape_.vocabulary);
  Rows one{rows.tokens, {0}, {nullptr}, {nullptr}, std::move(rows.segments), {{}}, 0, 0};
  Segment& segment = one.segments[0];
  segment.from = 0;
  segment.to = 1;
  for (std::size_t i = 0; i < steps; ++i, ++segment.slot) {
    one.positions[0] = rows.positions[i];
    one.cosines[0] = rows.cosines[i];
    one.sines[0] = rows.sines[i];
    one.paths[0].swap(rows.paths[i]);
    run_locked(one, true, 0, kParts * static_cast<int64_t>(layers_.size()), step_hidden_.data());
    head_locked(1, step_hidden_.data(), step_logits_.data(), tokens + i);
    if (tokens[i] < 0) return static_cast<int64_t>(i);
    one.tokens[0] = tokens[i];
  }
  return static_cast<int64_t>(steps);
}

void Plan::attention(const Rows& rows, int64_t layer, const float* query, float* out) {
  const auto hold = pool_->lock();
  const FlushSubnormals flush;
  const int64_t n = static_cast<int64_t>(rows.positions.size());
  const std::size_t bytes = static_cast<std::size_t>(n * shape_.heads * shape_.head_dim) * 4;
  reserve(n);
  std::memcpy(query_.data(), query, bytes);
  attend(layer, rows);
  std::memcpy(out, attended_.data(), bytes);
}

float* Plan::inner(const Rows& rows) {
  const int64_t n = static_cast<int64_t>(rows.positions.size());
  at_least(inner_, std::max(n, rows.of) * shape_.intermediate);
  return inner_.data() + rows.before * shape_.intermediate;
}

void Plan::reserve(int64_t n) {
  const Shape& s = shape_;
  if (n <= reserved_) return;
  const int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  at_least(normed_, n * s.hidden);
  at_least(query_, n * queries);
  at_least(key_, n * keys);
  at_least(value_, n * keys);
  at_least(attended_, n * queries);
  int64_t bytes = arithmetic_.packed_bytes(head_, n);
  for (const Layer& w : layers_) {
    for (const Matrix* m : {&w.query, &w.output, &w.gate, &w.down}) bytes = std::max(bytes, arithmetic_.packed_bytes(*m, n));
  }
  at_least(packed_, bytes);
  for (Scratch& scratch : scratch_) at_least(scratch.other, arithmetic_.room_for(n));
  for (auto& tile : tiles_) at_least(tile, arithmetic_.room_for(n));
  reserved_ = n;  // last: memory may have run out on the way
}

void Plan::run_locked(const Rows& rows, bool embed, int64_t lo, int64_t hi, float* hidden, const float* entering) {
  const int64_t n = static_cast<int64_t>(rows.positions.size());
  reserve(n);
  if (embed) {
    const std::size_t bytes = static_cast<std::size_t>(shape_.hidden) * size_of(shape_.embedding);
    for (int64_t row = 0; row < n; ++row) {
      const std::size_t token = static_cast<std::size_t>(rows.tokens[static_cast<std::size_t>(row)]);
      kernels_->embed(shape_.embedding, embedding_ + token * bytes, shape_.hidden, hidden + row * shape_.hidden);
    }
  }
  for (int64_t part = lo; part < hi; ++part) {
    const int64_t index = part / kParts;
    switch (part % kParts) {
      case 0: attention_part(index, rows, hidden, part == lo ? entering : nullptr); break;
      case 1:
        if (const Layer& w = layers_[static_cast<std::size_t>(index)]; part + 1 < hi && arithmetic_.packs_alike(w.gate, w.up)) {
          if (part + 2 < hi && arithmetic_.packs_steps(w.down, n)) {
            feed_forward(index, n, hidden);
            part += 2;
          } else {
            gate_and_up_parts(index, n, hidden, inner(rows));
            ++part;
          }
        } else {
          gate_part(index, n, hidden, inner(rows));
        }
        break;
      case 2: up_part(index, n, hidden, inner(rows)); break;
      default: down_part(index, n, hidden, inner(rows));
    }
  }
}

void Plan::head_locked(int64_t n, const float* hidden, float* logits, int64_t* best) {
  reserve(n);
  norm_and_pack(hidden, norm_, head_, n);
  arithmetic_.multiply({{&head_, logits, shape_.vocabulary, false}}, packed_.data(), n, tiles_);
  if (best) {
    pool_->run(n, [&](int64_t row, int) { best[row] = kernels_->argmax(logits + row * shape_.vocabulary, shape_.vocabulary); });
  }
}

void Plan::norm_and_pack(const float* x, const std::vector<float>& weight, const Matrix& matrix, int64_t n) {
  const int64_t k = shape_.hidden;
  char* to = packed_.data();
  arithmetic_.each_to_pack(n, k, [&](int64_t from, int64_t end) {
    for (int64_t row = from; row < end; ++row) {
      kernels_->norm(x + row * k, weight.data(), shape_.eps, k, normed_.data() + row * k);
    }
    arithmetic_.pack_rows(matrix, normed_.data(), from, end, n, to);
  });
}

// Rotation; then keys and values into their slot, rounded to the cache's type before any row reads them.
void Plan::place(int64_t index, const Rows& rows, const Segment& segment, int64_t row) {
  const Layer& w = layers_[static_cast<std::size_t>(index)];
  const Shape& s = shape_;
  const std::size_t at = static_cast<std::size_t>(row);
  const int64_t keys = s.kv_heads * s.head_dim;
  auto turn = [&](float* heads, int64_t count, const std::vector<float>& norm) {
    for (int64_t h = 0; h < count; ++h) {
      float* head = heads + h * s.head_dim;
      if (!norm.empty()) kernels_->norm(head, norm.data(), s.eps, s.head_dim, head);
      kernels_->rotate(head, rows.cosines[at], rows.sines[at], s.head_dim / 2);
    }
  };
  turn(query_.data() + row * s.heads * s.head_dim, s.heads, w.query_norm);
  turn(key_.data() + row * keys, s.kv_heads, w.key_norm);
  const int64_t row_bytes = keys * static_cast<int64_t>(size_of(s.cache));
  const int64_t to = (index - segment.first_layer) * segment.layer_bytes + (segment.slot + row - segment.from) * row_bytes;
  kernels_->store(s.cache, key_.data() + row * keys, keys, segment.keys + to);
  kernels_->store(s.cache, value_.data() + row * keys, keys, segment.values + to);
}

void Plan::attention_part(int64_t index, const Rows& rows, float* hidden, const float* entering) {
  const Layer& w = layers_[static_cast<std::size_t>(index)];
  const Shape& s = shape_;
  const int64_t n = static_cast<int64_t>(rows.positions.size());
  const int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  char* packed = packed_.data();
  if (!entering && w.query.inputs != s.hidden) {
    throw std::invalid_argument("a layer whose attention reads more than a state was given nothing else");
  }
  auto pack = [&](const Matrix& matrix) {
    entering ? arithmetic_.pack(matrix, entering, n, packed) : norm_and_pack(hidden, w.input_norm, matrix, n);
  };
  const Output query{&w.query, query_.data(), queries, false}, key{&w.key, key_.data(), keys, false},
      value{&w.value, value_.data(), keys, false};
  pack(w.query);
  if (arithmetic_.packs_alike(w.query, w.key) && arithmetic_.packs_alike(w.query, w.value)) {
    arithmetic_.multiply({query, key, value}, packed, n, tiles_);
  } else {
    arithmetic_.multiply({query}, packed, n, tiles_);
    for (const Output& output : {key, value}) {
      pack(*output.matrix);
      arithmetic_.multiply({output}, packed, n, tiles_);
    }
  }
  for (const Segment& segment : rows.segments) {
    const int64_t count = segment.to - segment.from;
    pool_->run_light(count, count * queries, [&](int64_t i, int) { place(index, rows, segment, segment.from + i); });
  }
  attend(index, rows);
  arithmetic_.pack(w.output, attended_.data(), n, packed);
  arithmetic_.multiply({{&w.output, hidden, s.hidden, true}}, packed, n, tiles_);
}

// use(blocks, rows, results) for silu(gate) * up, some blocks after others.
template <class F>
void Plan::gate_and_up(int64_t index, int64_t n, const float* hidden, const F& use) {
  const Layer& w = layers_[static_cast<std::size_t>(index)];
  norm_and_pack(hidden, w.post_norm, w.gate, n);
  const Cut shares = arithmetic_.cut(w.gate.blocks(), 2 * w.gate.block_bytes(), n);
  const char* x = packed_.data();
  pool_->run(shares.pieces(), [&](int64_t piece, int thread) {
    float* gate = tiles_[static_cast<std::size_t>(thread)].data();
    float* up = scratch_[static_cast<std::size_t>(thread)].other.data();
    arithmetic_.each_piece(w.gate, 2, shares.from(piece), shares.from(piece + 1), x, n, gate,
                           [&](Blocks blocks, const PackedRows& some, const Results& results) {
                             arithmetic_.linear(w.gate, blocks, some, results);
                             arithmetic_.linear(w.up, blocks, some, results.in(up));
                             kernels_->silu_mul(gate, up, results.count(some.count(), blocks.count()), gate);
                             use(blocks, some, results);
                           });
  });
}

// All three projections. What is between them is packed while it is near.
void Plan::feed_forward(int64_t index, int64_t n, float* hidden) {
  const Layer& w = layers_[static_cast<std::size_t>(index)];
  at_least(packed_inner_, arithmetic_.packed_bytes(w.down, n));
  char* packed = packed_inner_.data();
  gate_and_up(index, n, hidden, [&](Blocks blocks, const PackedRows& rows, const Results& results) {
    for (int64_t block = 0; block < blocks.count(); block += 2) {  // from an even one on: `Cut` sees to that
      kernels_->pack_step(results.block(block), rows, w.down.inputs, (blocks.from + block) / 2, packed);
    }
  });
  arithmetic_.multiply({{&w.down, hidden, shape_.hidden, true}}, packed, n, tiles_);
}

void Plan::gate_and_up_parts(int64_t index, int64_t n, const float* hidden, float* inner) {
  const Matrix& gate = layers_[static_cast<std::size_t>(index)].gate;
  const Output out{&gate, inner, gate.outputs, false};
  gate_and_up(index, n, hidden,
              [&](Blocks blocks, const PackedRows& rows, const Results& results) { out.put(blocks, rows, results); });
}

void Plan::gate_part(int64_t index, int64_t n, const float* hidden, float* inner) {
  const Layer& w = layers_[static_cast<std::size_t>(index)];
  norm_and_pack(hidden, w.post_norm, w.gate, n);
  arithmetic_.multiply({{&w.gate, inner, w.gate.outputs, false}}, packed_.data(), n, tiles_);
}

// The same numbers as of gate_and_up_parts: each product of silu(gate) and up is one of two numbers.
void Plan::up_part(int64_t index, int64_t n, const float* hidden, float* inner) {
  const Layer& w = layers_[static_cast<std::size_t>(index)];
  const int64_t wide = w.gate.outputs;
  norm_and_pack(hidden, w.post_norm, w.up, n);
  const Cut shares = arithmetic_.cut(w.up.blocks(), w.up.block_bytes(), n);
  const char* x = packed_.data();
  pool_->run(shares.pieces(), [&](int64_t piece, int thread) {
    float* gate = scratch_[static_cast<std::size_t>(thread)].other.data();
    float* up = tiles_[static_cast<std::size_t>(thread)].data();
    const Output out{&w.up, inner, wide, false};
    arithmetic_.each_piece(w.up, 2, shares.from(piece), shares.from(piece + 1), x, n, up,
                           [&](Blocks blocks, const PackedRows& some, const Results& results) {
                             const Results gates = results.in(gate);
                             arithmetic_.linear(w.up, blocks, some, results);
                             out.get(blocks, some, gates);
                             kernels_->silu_mul(gate, up, results.count(some.count(), blocks.count()), gate);
                             out.put(blocks, some, gates);
                           });
  });
}

void Plan::down_part(int64_t index, int64_t n, float* hidden, const float* inner) {
  const Layer& w = layers_[static_cast<std::size_t>(index)];
  char* packed = packed_.data();
  arithmetic_.pack(w.down, inner, n, packed);
  arithmetic_.multiply({{&w.down, hidden, shape_.hidden, true}}, packed, n, tiles_);
}

}  // namespace foretoken
