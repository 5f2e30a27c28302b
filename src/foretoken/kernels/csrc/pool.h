// Threads that share out work in pieces. Whoever is free takes the next piece, so fast and slow cores are both
// kept busy, and a thread that lost its core is waited for only if it holds a piece. What a piece computes never
// depends on who computes it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace foretoken {

class Pool {
 public:
  // The caller is one of the threads. One pool a number of threads: several models share their cores.
  static std::shared_ptr<Pool> of(int threads);

  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // work(piece, thread) for each piece of [0, pieces), in any order; returns when all are done. Only by the holder of
  // `lock`. Work must not throw: other threads may be in it. Where memory runs out in it, the process ends.
  template <class F>
  void run(std::int64_t pieces, const F& work) {
    if (pieces <= 1 || workers_.empty() || forked()) return alone(pieces, work);
    start(pieces, [](const void* f, std::int64_t piece, int thread) noexcept { (*static_cast<const F*>(f))(piece, thread); },
          &work);
  }

  // The same for light work on that many numbers in all: the caller does it alone if they are few.
  template <class F>
  void run_light(std::int64_t pieces, std::int64_t numbers, const F& work) {
    if (numbers < kAlone) return alone(pieces, work);
    run(pieces, work);
  }

  // One pass at a time. A forked child is alone, and its parent's lock may never be given back.
  std::unique_lock<std::mutex> lock() {
    return forked() ? std::unique_lock<std::mutex>() : std::unique_lock<std::mutex>(passes_);
  }

  // For tests: makes one thread (1, 2, ...; 0 is the caller) wait before each piece.
  void slow_down(int thread, int microseconds);

 private:
  static constexpr std::int64_t kAlone = 16 << 10;  // numbers: less is not worth sharing out

  using Call = void (*)(const void*, std::int64_t, int) noexcept;

  template <class F>
  static void alone(std::int64_t pieces, const F& work) {
    for (std::int64_t i = 0; i < pieces; ++i) work(i, 0);
  }

  void start(std::int64_t pieces, Call call, const void* context);
  void work_on(int thread);
  void end();
  void live(int thread);
  bool forked() const;

  // epoch (24 bits), pieces (20), next piece (20) in one word: a claim that comes late says so by itself
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::int64_t> done_{0};
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::uint64_t epoch_ = 0;

  std::atomic<int> asleep_{0};
  std::atomic<bool> ending_{false};
  std::mutex sleep_;
  std::condition_variable wake_;
  std::mutex passes_;
  std::vector<std::thread> workers_;
  std::vector<std::atomic<int>> delays_;
  unsigned generation_;
};

}  // namespace foretoken
