// Whether an instruction set computes here what the plain C++ computes, bit for bit. It is asked once, before the set is used.
#pragma once

#include "kernels.h"

namespace foretoken {

bool agrees(const Kernels& kernels);

}  // namespace foretoken
