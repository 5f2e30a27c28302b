#include "pool.h"

#include <chrono>
#include <map>
#include <stdexcept>

#include "isas.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace foretoken {
namespace {

constexpr int kPieceBits = 20;
constexpr std::uint64_t kPieces = (1ull << kPieceBits) - 1;
// Long enough to bridge what the engine does between two passes, short enough to leave an idle machine quiet.
constexpr std::chrono::microseconds kSpin{300};

inline void breathe() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" : : : "memory");  // waits some tens of cycles, where `yield` does nothing on most processors
#else
  std::this_thread::yield();
#endif
}

std::atomic<unsigned> generation{0};  // counts forks: a child has none of its parent's threads
std::mutex guard;                     // of the pools; held over a fork, so that the child never finds it taken

}  // namespace

std::shared_ptr<Pool> Pool::of(int threads) {
  if (threads < 1 || threads > 4096) throw std::invalid_argument("a pool has 1 to 4096 threads");
  static auto* pools = new std::map<std::pair<int, unsigned>, std::shared_ptr<Pool>>;  // never freed: threads may run at exit
#if defined(__unix__) || defined(__APPLE__)
  static const int once = pthread_atfork([] { guard.lock(); }, [] { guard.unlock(); },
                                         [] {
                                           generation.fetch_add(1);
                                           guard.unlock();
                                         });
  (void)once;
#endif
  const std::lock_guard<std::mutex> hold(guard);
  auto& pool = (*pools)[{threads, generation.load()}];
  if (!pool) pool = std::make_shared<Pool>(threads);
  return pool;
}

Pool::Pool(int threads) : delays_(static_cast<std::size_t>(threads)), generation_(generation.load()) {
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { live(i); });
  } catch (...) {  // the system gives no more threads
    end();
    throw;
  }
}

Pool::~Pool() { end(); }

void Pool::end() {
  {
    const std::lock_guard<std::mutex> hold(sleep_);
    ending_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

bool Pool::forked() const { return generation_ != generation.load(std::memory_order_relaxed); }

void Pool::slow_down(int thread, int microseconds) { delays_.at(static_cast<std::size_t>(thread)) = microseconds; }

void Pool::start(std::int64_t pieces, Call call, const void* context) {
  while (pieces > static_cast<std::int64_t>(kPieces / 2)) {  // more than a ticket can count: by whoever asked
    call(context, --pieces, 0);
  }
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  epoch_ = (epoch_ + 1) & 0xffffffu;
  ticket_.store(epoch_ << (2 * kPieceBits) | static_cast<std::uint64_t>(pieces) << kPieceBits);
  if (asleep_.exchange(0) > 0) {  // once: who is slow to wake is not called again at every piece of work
    { const std::lock_guard<std::mutex> hold(sleep_); }
    wake_.notify_all();
  }
  work_on(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; ++spins) {
    if (spins < 2000) {
      breathe();
    } else {
      std::this_thread::yield();  // somebody holds a piece and has lost its core
    }
  }
}

// A claim on a later round of work than the one that was seen is as good: its own numbers say which piece it is.
void Pool::work_on(int thread) {
  for (;;) {
    const std::uint64_t claim = ticket_.fetch_add(1);
    const std::uint64_t piece = claim & kPieces, pieces = claim >> kPieceBits & kPieces;
    if (piece >= pieces) return;
    const int delay = delays_[static_cast<std::size_t>(thread)].load(std::memory_order_relaxed);
    if (delay) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    call_(context_, static_cast<std::int64_t>(piece), thread);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void Pool::live(int thread) {
  const FlushSubnormals flush;
  std::uint64_t seen = 0;
  for (;;) {
    const auto since = std::chrono::steady_clock::now();
    int spins = 0;
    while (ticket_.load(std::memory_order_acquire) >> (2 * kPieceBits) == seen && !ending_) {
      breathe();
      if (++spins % 64 == 0 && std::chrono::steady_clock::now() - since > kSpin) {
        std::unique_lock<std::mutex> hold(sleep_);
        for (;;) {
          asleep_.fetch_add(1);  // before looking: whoever publishes work after that look sees it
          if (ending_ || ticket_.load() >> (2 * kPieceBits) != seen) break;
          wake_.wait(hold);
        }
      }
    }
    if (ending_) return;
    seen = ticket_.load(std::memory_order_acquire) >> (2 * kPieceBits);
    work_on(thread);
  }
}

}  // namespace foretoken
