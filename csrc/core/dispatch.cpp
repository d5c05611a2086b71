#include "dispatch.h"

#include <atomic>

namespace ensemble {
namespace {

std::vector<const Kernels*> find_available() {
  std::vector<const Kernels*> found;
#if defined(ENSEMBLE_ISA_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f");
  if (avx2 && avx512) found.push_back(&kKernelsAvx512);
  if (avx2) found.push_back(&kKernelsAvx2);
#endif
#if defined(ENSEMBLE_ISA_NEON)
  found.push_back(&kKernelsNeon);  // part of every aarch64 processor
#endif
  found.push_back(&kKernelsPlain);
  return found;
}

const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> found = find_available();
  return found;
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> current{available().front()};
  return current;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* k : available()) names.emplace_back(k->name);
  return names;
}

bool set_isa(const std::string& name) {
  for (const Kernels* k : available()) {
    if (name == "auto" || name == k->name) {
      chosen().store(k, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace ensemble
