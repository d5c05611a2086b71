#include "pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace ensemble {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kSpins = 2000;  // about 20 to 100 us: the next phase of the same call usually starts within that time

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Job {
  void (*body)(void*, int64_t);
  void* context;
  int64_t count;
  int64_t grain;
  std::atomic<int64_t> next{0};
  std::mutex error_guard;
  std::exception_ptr error;

  void work() {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      const int64_t end = std::min(begin + grain, count);
      try {
        for (int64_t i = begin; i < end; ++i) body(context, i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_guard);
        if (!error) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
  }
};

class Pool {
 public:
  // False where another thread is using the pool.
  bool try_run(int threads, Job& job) {
    const std::unique_lock<std::mutex> only(busy_, std::try_to_lock);
    if (!only.owns_lock()) return false;
    start(threads - 1);
    job_.store(&job, std::memory_order_relaxed);
    wanted_.store(threads - 1, std::memory_order_relaxed);
    {
      const std::lock_guard<std::mutex> lock(wake_guard_);
      open_.store(++last_, std::memory_order_seq_cst);
    }
    wake_.notify_all();
    job.work();
    // Nothing is left to take: close the job and wait only for workers inside it, not for those still asleep.
    open_.store(0, std::memory_order_seq_cst);
    for (int spins = 0; inside_.load(std::memory_order_seq_cst) != 0; ++spins) {
      if (spins < kSpins) {
        pause_briefly();
      } else {
        std::this_thread::yield();
      }
    }
    return true;
  }

 private:
  void start(int helpers) {
    try {
      while (started_ < helpers) {
        std::thread([this, index = started_] { serve(index); }).detach();
        ++started_;
      }
    } catch (const std::system_error&) {
      // The system gives no more threads; those that run, and the caller, do the work.
    }
  }

  void serve(int index) {
    uint64_t seen = 0;
    const auto is_new = [&](uint64_t ticket) { return ticket != 0 && ticket != seen; };
    for (;;) {
      uint64_t ticket = open_.load(std::memory_order_acquire);
      for (int spins = 0; spins < kSpins && !is_new(ticket); ++spins) {
        pause_briefly();
        ticket = open_.load(std::memory_order_acquire);
      }
      if (!is_new(ticket)) {
        std::unique_lock<std::mutex> lock(wake_guard_);
        wake_.wait(lock, [&] { return is_new(ticket = open_.load(std::memory_order_acquire)); });
      }
      seen = ticket;
      // Enter first, look again after: either the caller sees this worker inside, or the worker sees the job closed.
      inside_.fetch_add(1, std::memory_order_seq_cst);
      if (open_.load(std::memory_order_seq_cst) == ticket && index < wanted_.load(std::memory_order_relaxed)) {
        job_.load(std::memory_order_relaxed)->work();
      }
      inside_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  std::mutex busy_;
  std::mutex wake_guard_;
  std::condition_variable wake_;
  std::atomic<uint64_t> open_{0};  // number of the job that may be entered, 0 for none
  std::atomic<int> inside_{0};
  std::atomic<int> wanted_{0};
  std::atomic<Job*> job_{nullptr};
  uint64_t last_ = 0;
  int started_ = 0;
};

std::atomic<Pool*> the_pool{nullptr};

// Never destroyed: detached workers may outlive static destructors.
Pool& pool() {
  Pool* existing = the_pool.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
#if defined(__unix__) || defined(__APPLE__)
  // The child of a fork has no workers and maybe locked mutexes: it forgets the pool and makes its own.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
  (void)registered;
#endif
  auto* fresh = new Pool;
  if (the_pool.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *existing;
}

}  // namespace

void run_parallel(int threads, int64_t count, int64_t grain, void (*body)(void*, int64_t), void* context) {
  if (count <= 0) return;
  const int64_t pieces = (count + grain - 1) / grain;
  threads = static_cast<int>(std::min<int64_t>({threads, pieces, kMaxThreads}));
  Job job;
  job.body = body;
  job.context = context;
  job.count = count;
  job.grain = grain;
  if (threads <= 1 || !pool().try_run(threads, job)) job.work();
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace ensemble
