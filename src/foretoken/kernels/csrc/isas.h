// Instruction sets, those of ARM and of x86 from slow to fast: their numbers in kernels/native.py.
#pragma once

#include "kernels.h"

namespace foretoken {

enum class Isa : int {
  generic = 0,
  neon = 1,
  dotprod = 2,
  avx2 = 3,
  avxvnni = 4,
  avx512 = 5,
  avx512vnni = 6,
  avx512bf16 = 7,
  amx = 8,
  amx_emulated = 9,
  avxvnni_twin = 10
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
