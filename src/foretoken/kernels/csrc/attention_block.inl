// Attention of some rows over one block of positions after the other. Part of attention.cpp.

namespace foretoken {
namespace {

using std::int64_t;

constexpr int64_t kBlock = 256;    // positions
static_assert(kBlock <= kMostPlaces && kBlock == kCodedPlaces);
constexpr int64_t kKeys = 64;      // positions whose keys are read while they are near, at most
constexpr int64_t kNearKeys = 16;  // the same in a wide first cache, for kernels without tiles
constexpr int64_t kStretch = 32;   // and whose values are; also what is added up as one
constexpr int64_t kManyQueries = 16;  // from which on values are weighed more places at a time
constexpr int64_t kHeads = 2;      // whose places fit into the second cache beside those of the next ones, without tiles
constexpr int64_t kQueries = 64;   // of one piece of work, all its heads together, at most (or one row's)
// The same where there is `attend`, of all heads and of one.
constexpr int64_t kMoreQueries = 256, kMostQueries = 512;

struct Reader {  // where a row's keys and values lie
  const Segment& segment;
  int64_t layer;
  int64_t row_bytes;

  // Of positions [from, to). `path` is the row's own, or empty.
  void find(int64_t from, int64_t to, const std::vector<int64_t>& path, const void** keys, const void** values) const {
    int64_t position = from;
    for (std::size_t i = 0; position < std::min(to, segment.length); ++i) {
      const Span& span = segment.spans[i];
      const int64_t first = (layer - span.first_layer) * span.layer_bytes - span.start * row_bytes;
      for (; position < std::min(to, span.end); ++position, ++keys, ++values) {
        *keys = span.keys + (first + position * row_bytes);
        *values = span.values + (first + position * row_bytes);
      }
    }
    for (; position < to; ++position, ++keys, ++values) {
      const int64_t slot = position - segment.length;
      const int64_t at = (layer - segment.first_layer) * segment.layer_bytes +
                         (path.empty() ? slot : path[static_cast<std::size_t>(slot)]) * row_bytes;
      *keys = segment.keys + at;
      *values = segment.values + at;
    }
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

// What blocks give the queries of a piece, which are in the order key head, row, head of its group.
inline Found found_at(float* at, int64_t queries) { return {at, at + queries, at + 2 * queries}; }

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
  // Whether the kernel for places that all queries see takes so many queries of a key head.
  bool attends(int64_t count) const {
    return kernels.attend && shape.cache == Format::bf16 && dim % 32 == 0 && dim <= kWidestKey && count >= kernels.attend_from;
  }
  int64_t per_head(const Piece& p) const { return p.rows() * group; }  // queries of a key head
  int64_t queries(const Piece& p) const { return p.heads() * per_head(p); }
  int64_t part_size(const Piece& p) const { return queries(p) * (dim + 2); }

  std::vector<Piece> pieces(int64_t threads) const;
  void add(const Piece& p, Range heads, float* so_far, float* part, float* next) const;
  void finish(const Piece& p, Range heads, float* part) const;
};

}  // namespace
}  // namespace foretoken

#include "attention_coded.inl"

namespace foretoken {
namespace {

// One piece, over blocks of positions one after the other.
class Walk {
 public:
  static constexpr int64_t kNone = -1;

  Walk(const Attention& attention, const Piece& piece, Scratch& scratch)
      : a_(attention),
        p_(piece),
        heads_(piece.heads()),
        per_head_(a_.per_head(piece)),
        scratch_(scratch),
        coded_(attention, per_head_, heads_, scratch) {
    reserve();
    gather();
  }

  // What a block gives, into `part`. next: the block that this thread will probably compute next, or kNone.
  void compute(int64_t block, float* part, int64_t next) {
    base_ = block * kBlock;
    next_block_ = next;
    part_ = found_at(part, a_.queries(p_));
    if (const char* coded = coded_at(block); coded && all_see_all()) {
      return coded_.attend(coded, next == kNone ? nullptr : coded_at(next), part_);
    }
    if (a_.attends(per_head_) && all_see_all()) return attend();
    std::memset(part_.sums, 0, static_cast<std::size_t>(per_head_ * heads_) * 4);
    std::memset(part_.outs, 0, static_cast<std::size_t>(per_head_ * heads_ * a_.dim) * 4);
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
  float* query(int64_t q) const { return scratch_.queries.data() + q * a_.dim; }
  const char* of_head(const std::vector<const void*>& rows, int64_t i, int64_t h) const {
    return static_cast<const char*>(rows[static_cast<std::size_t>(i)]) + (p_.head + h) * a_.head_bytes;
  }

  // What a row sees of this block: places within it.
  Range seen(int64_t row) const {
    const Range all = a_.seen(row);
    return {std::max<int64_t>(0, all.from - base_), std::min(kBlock, all.to - base_)};
  }

  void reserve() {
    const int64_t all = per_head_ * heads_, dim = a_.dim;
    at_least(scratch_.scores, all * kScoresApart);
    at_least(scratch_.queries, all * dim);
    at_least(scratch_.keys, 2 * kBlock);
    at_least(scratch_.values, 2 * kBlock);
    packed_each_ = static_cast<int64_t>(a_.kernels.packed_bytes(a_.shape.cache, per_head_, dim) + 63) / 64 * 64;
    at_least(scratch_.packed, packed_each_ * heads_);
    packed_ = scratch_.packed.data();
  }

  // Queries from rows of all heads into the order of parts.
  void gather() {
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t row = p_.from; row < p_.to; ++row) {
        std::memcpy(query(first_query(h, row)), a_.query + (row * a_.shape.heads + (p_.head + h) * a_.group) * a_.dim,
                    static_cast<std::size_t>(a_.group * a_.dim) * 4);
      }
    }
  }

  // Whether all rows see the whole block, in the same places.
  bool all_see_all() const {
    for (int64_t row = p_.from; row < p_.to; ++row) {
      const Range range = seen(row);
      if (range.from > 0 || range.to < kBlock) return false;
      if (!path(row).empty() && base_ + kBlock > p_.segment->length) return false;
    }
    return true;
  }

  // All rows, all of which see the whole block, some heads after the others. Meanwhile the same places of the next heads are
  // fetched, or behind the last ones those of the next block's first heads: a share with each head.
  void attend() {
    const void **keys = scratch_.keys.data(), **values = scratch_.values.data();
    reader().find(base_, base_ + kBlock, path(p_.from), keys, values);
    const int64_t places_of_next = find_next(p_.from, kBlock);
    for (int64_t from = 0, to = 0; from < heads_; from = to) {
      to = std::min(heads_, from + heads_at_once_);
      const bool here = to < heads_;
      const int64_t first = here ? to : 0;
      const Range next{first, std::min(heads_, first + heads_at_once_)};
      const int64_t at = here ? 0 : kBlock, count = here ? kBlock : places_of_next;
      for (int64_t h = from; h < to; ++h) {
        const int64_t q = h * per_head_;
        const int64_t share = count * (h - from) / (to - from), share_to = count * (h - from + 1) / (to - from);
        char* packed = packed_ + h * packed_each_;
        if (!packed_whole_) a_.kernels.pack_for_repacked(query(q), a_.dim, 0, per_head_, per_head_, a_.dim, packed);
        a_.kernels.attend({keys, values, kBlock, (p_.head + h) * a_.head_bytes, a_.head_bytes},
                          {keys + at + share, values + at + share, share_to - share, (p_.head + next.from) * a_.head_bytes,
                           (next.to - next.from) * a_.head_bytes},
                          {packed, per_head_, a_.dim, a_.scale,
                           {part_.tops + q, part_.sums + q, part_.outs + q * a_.dim}});
      }
    }
    packed_whole_ = true;
  }

  // Where a block's keys and values lie in int8, from this piece's first head on; null if they do not. Layers with a window never
  // use them: some rows would see a part of the block, and a row's bits must not depend on what other rows see.
  const char* coded_at(int64_t block) const {
    const Segment& s = *p_.segment;
    const int64_t layer = a_.layer - s.first_coded;
    if (a_.window || block >= static_cast<int64_t>(s.coded.size()) || layer < 0 || layer >= s.coded_layers) return nullptr;
    return s.coded[static_cast<std::size_t>(block)] + layer * s.coded_bytes +
           p_.head * CodedPlaces::bytes(a_.dim);
  }

  // Rows that find the block's keys in the same places.
  void rows_together(int64_t from, int64_t to) {
    Range any{kBlock, 0};
    for (int64_t row = from; row < to; ++row) {
      any.from = std::min(any.from, seen(row).from);
      any.to = std::max(any.to, seen(row).to);
    }
    if (any.empty()) return;
    find(any, from);
    any.from = any.from / 16 * 16;
    score(any, from, to);
    soften(from, to);
    weigh_all(any, from, to);
  }

  Reader reader() const { return {*p_.segment, a_.layer, a_.shape.kv_heads * a_.head_bytes}; }

  // Where places of the next block lie, behind this block's: how many, at most `most`.
  int64_t find_next(int64_t row, int64_t most) {
    if (next_block_ == kNone) return 0;
    const int64_t first = next_block_ * kBlock, count = std::clamp<int64_t>(a_.seen(row).to - first, 0, most);
    reader().find(first, first + count, path(row), scratch_.keys.data() + kBlock, scratch_.values.data() + kBlock);
    return count;
  }

  // With the first keys of the next block, if there is one.
  void find(Range any, int64_t row) {
    const void **keys = scratch_.keys.data(), **values = scratch_.values.data();
    reader().find(base_ + any.from, base_ + any.to, path(row), keys + any.from, values + any.from);
    next_ = any.to == kBlock ? find_next(row, keys_) : 0;
    for (int64_t i = any.from / 16 * 16; i < any.from; ++i) {  // before the window: any key will do, its score is not used
      keys[i] = keys[any.from];
      values[i] = values[any.from];
    }
  }

  // All heads of a row lie together: while one group of rows is used, the next is fetched in the order of addresses, a
  // share with each head.
  template <int kCache>
  void fetch(const std::vector<const void*>& rows, Range some, int64_t h) const {
    const int64_t count = some.to - some.from;
    for (int64_t i = some.from + count * h / heads_; i < some.from + count * (h + 1) / heads_; ++i) {
      will_use<kCache>(of_head(rows, i, 0), heads_ * a_.head_bytes);
    }
  }

  void fetch_keys(Range some, int64_t h) const {
    near_ ? fetch<3>(scratch_.keys, some, h) : fetch<2>(scratch_.keys, some, h);
  }

  void score(Range any, int64_t from, int64_t to) {
    const Format format = a_.shape.cache;
    const int64_t queries = (to - from) * a_.group, dim = a_.dim;
    packed_whole_ = false;
    for (int64_t h = 0; h < heads_; ++h) {
      a_.kernels.pack(format, query(first_query(h, from)), dim, 0, queries, queries, dim, packed_ + h * packed_each_);
    }
    for (int64_t i = any.from; i < any.to; i += keys_) {
      const int64_t tiles = (std::min(any.to - i, keys_) + kTile - 1) / kTile;
      for (int64_t h = 0; h < heads_; ++h) {
        const int64_t next = i + keys_;
        if (next < any.to) {
          fetch_keys({next, std::min(any.to, next + keys_)}, h);
        } else {
          fetch<2>(scratch_.values, {any.from, std::min(any.to, any.from + kStretch)}, h);
        }
        const void* keys[kKeys];
        for (int64_t j = 0; j < tiles * kTile; ++j) {
          keys[j] = of_head(scratch_.keys, std::min(i + j, any.to - 1), h);
        }
        a_.kernels.linear(format, keys, tiles, dim, {packed_ + h * packed_each_, queries, 0, queries},
                          {scratch_.scores.data() + first_query(h, from) * kScoresApart + i, kScoresApart});
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
          a_.kernels.soften(a_.shape.cache, scratch_.scores.data() + q * kScoresApart, range.from, range.to, a_.scale,
                            part_.tops + q, part_.sums + q);
        }
      }
    }
  }

  // Of bf16, places that many queries see whole go at once; if they are of many heads, no more than can be fetched meanwhile.
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
    weigh(whole, any.to, heads_ > 1 ? 2 * kStretch : kBlock, from, to);
    weigh({whole.to, any.to}, any.to, kStretch, from, to);
  }

  // `step` places at a time. last: where the places end that are weighed after these, too.
  void weigh(Range some, int64_t last, int64_t step, int64_t from, int64_t to) {
    for (int64_t at = some.from / kStretch * kStretch; at < some.to; at += step) {
      const int64_t end = std::min(some.to, at + step);
      for (int64_t h = 0; h < heads_; ++h) {
        if (end < last) {
          fetch<2>(scratch_.values, {end, std::min(last, end + step)}, h);
        } else {
          fetch_keys({kBlock, kBlock + next_}, h);
        }
        const void* values[kBlock];
        for (int64_t i = std::max(at, some.from); i < end; ++i) {
          const char* value = of_head(scratch_.values, i, h);
          values[i - at] = value;
          if (near_ && h + 1 < heads_) will_use<3>(value + a_.head_bytes, a_.head_bytes);  // it lies in the second cache
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
          a_.kernels.weigh(a_.shape.cache, scratch_.scores.data() + q * kScoresApart + at, kScoresApart,
                           (next - row) * a_.group, values, range.from - at, range.to - at, a_.dim, part_.outs + q * a_.dim);
        }
      }
    }
  }

  const Attention& a_;
  const Piece& p_;
  const int64_t heads_, per_head_;  // queries of a key head
  Scratch& scratch_;
  CodedWalk coded_;
  const bool tiles_ = a_.kernels.rows.together > 0;
  const bool near_ = !tiles_ && first_cache_is_wide();  // whether the first cache is used for what comes next
  const int64_t heads_at_once_ = tiles_ ? heads_ : kHeads;
  const int64_t keys_ = near_ ? kNearKeys : kKeys;
  int64_t base_ = 0;  // the block's first position
  int64_t next_block_ = kNone;
  int64_t next_ = 0;  // keys of the next block that are fetched
  Found part_{};
  int64_t packed_each_ = 0;  // bytes of a key head's packed queries
  char* packed_ = nullptr;
  bool packed_whole_ = false;  // whether all queries are, by `pack_for_repacked`
};

}  // namespace
}  // namespace foretoken
