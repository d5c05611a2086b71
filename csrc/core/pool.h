// A small persistent thread pool. It is ours so that no OpenMP runtime meets torch's.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace ensemble {

// Calls body(context, i) for every i in [0, count) on at most `threads` threads, the caller among them, and returns
// when all are done. Which thread runs an index is not fixed, so bodies must write only to places of their index.
// While another thread of the process uses the pool the caller runs alone. After fork() the child starts afresh.
// The first exception thrown by a body is rethrown here.
void run_parallel(int threads, int64_t count, int64_t grain, void (*body)(void*, int64_t), void* context);

template <typename Body>
void parallel_for(int threads, int64_t count, int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  run_parallel(
      threads, count, grain, [](void* context, int64_t i) { (*static_cast<Plain*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace ensemble
