// A decoder compiled for passes: its weights by address, its buffers, and one call that runs any range of its layers
// over any rows. Rows of several sequences, chains and trees are all lists of rows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "matrix.h"
#include "pool.h"

namespace foretoken {

struct Layer {
  std::vector<float> input_norm, post_norm, query_norm, key_norm;  // the last two may be empty
  Matrix query, key, value, output, gate, up, down;
  std::int64_t window = 0;  // keys that a row sees, itself included; 0: all
};

struct Shape {
  // intermediate: of the widest layer; vocabulary: ids that may be chosen
  std::int64_t hidden, intermediate, heads, kv_heads, head_dim, vocabulary;
  float eps;
  Format embedding, cache;
};

// Where one stretch of a sequence's committed keys and values lies: positions [start, end).
struct Span {
  std::int64_t start, end;
  const char *keys, *values;
  std::int64_t layer_bytes, first_layer;
};

// The rows [from, to) of a pass: one sequence. They are written to slots [slot, slot + to - from) of its scratch.
struct Segment {
  std::int64_t from, to, length, slot;
  char *keys, *values;  // where slot 0 of layer `first_layer` lies
  std::int64_t layer_bytes, first_layer;
  // For each block of kCodedPlaces at the beginning of the prefix that is in int8: where its CodedPlaces in layer `first_coded`
  // lie, of all key heads one behind the other. coded_bytes: from one layer to the next; coded_layers: how many layers.
  std::vector<const char*> coded;
  std::int64_t coded_bytes, first_coded, coded_layers;
  std::vector<Span> spans;  // of the prefix, in order
};

struct Rows {
  std::vector<std::int64_t> tokens, positions;
  std::vector<const float*> cosines, sines;  // of each row: head_dim / 2 numbers
  std::vector<Segment> segments;
  // Of each row: the slots of its ancestors and itself, from the end of the prefix down. Empty: slots 0, 1, 2, ...
  std::vector<std::vector<std::int64_t>> paths;
  // If the rows of a pass run piece by piece within each part: how many rows of the pass are before these, and how many
  // rows the pass has. 0: these are all.
  std::int64_t before = 0, of = 0;
};

struct Scratch {  // a thread's own
  Buffer<float> other, scores, queries, partial;
  Buffer<char> packed, coded_queries, coded_weights;
  std::vector<const void*> keys, values;
};

// A layer has four parts: number 4 i is the attention of layer i, 4 i + 1 its gate projection, 4 i + 2 its up projection,
// 4 i + 3 its down projection. What the second gives to the third, and that to the fourth, is kept in the plan for all
// rows of a pass: all three must run before another pass does.
constexpr std::int64_t kParts = 4;

class Plan {
 public:
  Plan(const Shape& shape, std::vector<Layer> layers, const char* embedding, std::vector<float> norm, Matrix head,
       const Kernels* kernels, std::shared_ptr<Pool> pool);

  // Embeds the tokens first if `embed`; runs parts [lo, hi) over hidden (float32 [rows, hidden], in place); if `logits`
  // is given, goes on to the output layer: float32 [rows, vocabulary], and if `best` is given, each row's choice (-1 for
  // a NaN). If `entering` is given, part lo is an attention, which reads this in place of its norm of hidden: float32
  // [rows, inputs of its projections].
  void run(const Rows& rows, bool embed, std::int64_t lo, std::int64_t hi, float* hidden, float* logits,
           std::int64_t* best, const float* entering = nullptr);

  // Output layer alone.
  void head(std::int64_t n, const float* hidden, float* logits, std::int64_t* best);

  // Greedy steps of one sequence, one row each: `rows` holds the first token and all positions, of which `tokens`
  // receives what follows each. Ends early at a NaN; returns how many steps were made.
  std::int64_t chain(Rows rows, std::int64_t* tokens);

  // Attention alone, over keys and values that are there: query and out are float32 [rows, heads * head_dim].
  void attention(const Rows& rows, std::int64_t layer, const float* query, float* out);

  Pool& pool() { return *pool_; }

 private:
  void run_locked(const Rows& rows, bool embed, std::int64_t lo, std::int64_t hi, float* hidden,
                  const float* entering = nullptr);
  void head_locked(std::int64_t n, const float* hidden, float* logits, std::int64_t* best);
  void reserve(std::int64_t n);
  float* inner(const Rows& rows);  // what is between the parts of a feed-forward: [rows, intermediate]
  void attention_part(std::int64_t index, const Rows& rows, float* hidden, const float* entering);
  template <class F>
  void gate_and_up(std::int64_t index, std::int64_t n, const float* hidden, const F& use);
  void gate_and_up_parts(std::int64_t index, std::int64_t n, const float* hidden, float* inner);
  void feed_forward(std::int64_t index, std::int64_t n, float* hidden);
  void gate_part(std::int64_t index, std::int64_t n, const float* hidden, float* inner);
  void up_part(std::int64_t index, std::int64_t n, const float* hidden, float* inner);
  void down_part(std::int64_t index, std::int64_t n, float* hidden, const float* inner);
  void attend(std::int64_t index, const Rows& rows);
  void norm_and_pack(const float* x, const std::vector<float>& weight, const Matrix& matrix, std::int64_t n);
  void place(std::int64_t index, const Rows& rows, const Segment& segment, std::int64_t row);

  Shape shape_;
  std::vector<Layer> layers_;
  const char* embedding_;
  std::vector<float> norm_;
  Matrix head_;
  const Kernels* kernels_;
  std::shared_ptr<Pool> pool_;
  Arithmetic arithmetic_;

  std::int64_t reserved_ = 0;
  std::vector<Scratch> scratch_;
  std::vector<Buffer<float>> tiles_;
  Buffer<float> normed_, query_, key_, value_, attended_, inner_;
  Buffer<float> partials_;
  Buffer<float> step_hidden_, step_logits_;  // of a chain's steps
  Buffer<char> packed_, packed_inner_;
};

}  // namespace foretoken
