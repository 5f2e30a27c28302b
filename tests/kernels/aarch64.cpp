// Says of each instruction set of 64-bit ARM whether this machine has it and whether it computes what plain C++ computes.
// test_aarch64.py compiles it, and an emulator runs it.
#include <cstdio>

#include "isas.h"

using foretoken::Isa;

namespace {

void say(const char* name, Isa isa) {
  const char* reason = nullptr;
  std::printf("%s: %s\n", name, foretoken::kernels_of(isa, &reason) ? "agrees" : reason);
}

}  // namespace

int main() {
  say("neon", Isa::neon);
  say("dotprod", Isa::dotprod);
}
