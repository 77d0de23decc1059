#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "child.hpp"
#include "counting.hpp"

namespace bench {

/// What the processes that make the load are told to do next.
enum class step : std::int32_t {
  connect,        ///< all stores; `number`: handshakes under way at once, 0: all
  init,           ///< the same, and each adds to one key
  publish,        ///< each sets a key of its own
  operate,        ///< `number` operations on each store, in `depth` streams
  wait_common,    ///< each begins to wait for one key
  wait_own,       ///< each begins to wait for a key of its own
  collect,        ///< until all waits have ended
  set,            ///< the first store sets the common key
  barrier,        ///< `number` barriers
  arrive,         ///< ranks `first`... begin one barrier, `number` of them
  witness,        ///< the first store asks again and again, and connects anew now and then, until told otherwise
  leave,          ///< all stores close
};
enum class barrier_kind : std::int32_t { roll, store_based, seed };
enum class operation : std::int32_t { add, get, set, check, wait };

/// One step. Plain bytes on a socket.
struct order {
  step what = step::connect;
  std::int64_t number = 0;
  std::int64_t first = 0;
  std::int32_t depth = 1;
  barrier_kind kind = barrier_kind::store_based;
  operation op = operation::add;
  std::int32_t round = 0;  // makes keys new
};

/// What became of a step, in one process or summed up.
struct outcome {
  std::uint64_t begun = 0;  // ns, of the first to begin
  std::uint64_t ended = 0;  // ns, of the last to end
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  std::uint64_t allocations = 0;  // of the load
  std::uint64_t cpu_ns = 0;       // of the load
  std::uint64_t bytes_sent = 0;   // since the connections stand; only of counted connections
  std::uint64_t bytes_received = 0;
  char error[200] = {};           // the first
  std::uint64_t samples = 0;
};
struct outcome_of_all : outcome {
  std::vector<std::uint64_t> took;       // ns, of each operation
  std::vector<std::uint64_t> connected;  // ns, of a witness's connects
  [[nodiscard]] double seconds() const noexcept { return static_cast<double>(ended - begun) / 1e9; }
};

/// Who the load is: stores `first` .. `first + count - 1` of `world`.
struct crowd {
  int port = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t world = 0;
  double limit = 120;     // s, of each operation
  bool counted = false;   // connections count their bytes, and members have fixed identities
  bool const* over = nullptr;  // shared with the parent: ends a witness
};

/// The body of one process of the load.
int run_load(int socket, crowd const& who);

/// Stores of our own in one or several processes, which do one step after the other.
class load {
 public:
  load(crowd who, int procs, int cpu);
  outcome_of_all run(order const& o) {
    begin(o);
    return finish();
  }
  /// The two halves of run(), for steps that several loads take at once.
  void begin(order const& o);
  outcome_of_all finish();

 private:
  std::vector<std::unique_ptr<child>> processes_;
};

/// Memory that forked processes share.
template <class T>
class shared {
 public:
  shared();
  shared(shared const&) = delete;
  shared& operator=(shared const&) = delete;
  ~shared();
  T* operator->() const noexcept { return at_; }
  T& operator*() const noexcept { return *at_; }

 private:
  T* at_;
};

[[nodiscard]] void* map_shared(std::size_t n);
void unmap_shared(void* p, std::size_t n) noexcept;
template <class T>
shared<T>::shared() : at_(new (map_shared(sizeof(T))) T()) {}
template <class T>
shared<T>::~shared() {
  unmap_shared(at_, sizeof(T));
}

}  // namespace bench
