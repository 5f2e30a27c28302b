// Instruction sets, from slow to fast: the order of `ISAS` in kernels/native.py.
#pragma once

#include "kernels.h"

namespace foretoken {

enum class Isa : int {
  generic = 0,
  avx2 = 1,
  avxvnni = 2,
  avx512 = 3,
  avx512vnni = 4,
  avx512bf16 = 5,
  amx = 6,
  amx_emulated = 7,
  avxvnni_twin = 8
};

// An instruction set's kernels, or null: `reason` then says what this machine or this build lacks.
const Kernels* kernels_of(Isa isa, const char** reason = nullptr);

// While it lives, this thread counts subnormal numbers as zero, as the formats say: in operands and in results.
class FlushSubnormals {
 public:
  FlushSubnormals();
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned before_;
};

// While it lives, this thread's arithmetic is IEEE 754's, whatever somebody else has set: rounded to the nearest,
// subnormal numbers as they are.
class KeepSubnormals {
 public:
  KeepSubnormals();
  ~KeepSubnormals();
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
  unsigned before_;
};

}  // namespace foretoken
