// Attention over blocks whose keys and values lie in int8. Part of attention.cpp.

namespace foretoken {
namespace {

// Keys, and then values, are the weights of a linear layer with int8 inputs: kernels/coded.py defines what it gives. All rows
// see all places.
class CodedWalk {
 public:
  // queries: of each key head; they lie in `scratch`.
  CodedWalk(const Attention& attention, int64_t queries, int64_t heads, Scratch& scratch)
      : a_(attention), queries_(queries), heads_(heads), scratch_(scratch) {}

  // places: CodedPlaces of one key head behind the other. next: those that will probably be attended to next, or null.
  void attend(const char* places, const char* next, const Found& part) {
    if (!packed_) pack_queries();
    const int64_t dim = a_.dim, bytes = CodedPlaces::bytes(dim);
    for (int64_t h = 0, q = 0; h < heads_; ++h, q += queries_, places += bytes) {
      const CodedPlaces seen = CodedPlaces::at(places, dim);
      const Queries its{scratch_.coded_queries.data() + h * bytes_of(dim), queries_, dim, a_.scale,
                        {part.tops + q, part.sums + q, part.outs + q * dim}};
      if (a_.kernels.attend_coded) {
        const char* later = h + 1 < heads_ ? places + bytes : next;
        a_.kernels.attend_coded(seen, later, later ? bytes : 0, its);
      } else {
        attend_in_parts(a_.kernels, seen, its, scratch_.scores.data(), scratch_.coded_weights.data());
      }
    }
  }

 private:
  int64_t bytes_of(int64_t k) const {  // of a head's packed queries or weights
    return static_cast<int64_t>(a_.kernels.coded_bytes(Inputs::int8, queries_, k) + 63) / 64 * 64;
  }

  void pack_queries() {
    const int64_t dim = a_.dim, bytes = bytes_of(dim);
    at_least(scratch_.coded_queries, bytes * heads_);
    if (!a_.kernels.attend_coded) at_least(scratch_.coded_weights, bytes_of(kBlock));
    for (int64_t h = 0; h < heads_; ++h) {
      a_.kernels.pack_coded(Inputs::int8, Format::int8, scratch_.queries.data() + h * queries_ * dim, dim, 0, queries_, queries_,
                            dim, scratch_.coded_queries.data() + h * bytes);
    }
    packed_ = true;
  }

  const Attention& a_;
  const int64_t queries_, heads_;
  Scratch& scratch_;
  bool packed_ = false;
};

}  // namespace
}  // namespace foretoken
