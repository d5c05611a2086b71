// Which instruction set runs: chosen once from the processor, or set by hand.
#pragma once

#include <string>
#include <vector>

#include "../isa/kernels.h"

namespace ensemble {

// The kernels in use. Ordered from best to plain, the first that this processor runs unless set_isa chose another.
const Kernels& kernels();

// Names of the instruction sets that this build has and this processor runs, best first; "plain" is always last.
std::vector<std::string> available_isas();

// Uses the named instruction set from now on ("auto": the best). False where it is not available.
bool set_isa(const std::string& name);

}  // namespace ensemble
