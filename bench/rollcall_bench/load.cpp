#include "load.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <stdexcept>

#include "counted_stream.hpp"
#include "members.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace bench {

namespace {

/// Connections are spread over so many addresses of 127.0.0.0/8: with more than 12,000 on one, the kernel's search for a free port is
/// what one measures.
constexpr std::int64_t addresses = 16;
constexpr std::int64_t witness_connects_every = 16;

class worker {
 public:
  explicit worker(crowd const& who) : who_(who), members_(static_cast<std::size_t>(who.count)) { uv_idle_init(loop_.native(), &busy_); }

  outcome run(order const& o) {
    now_ = outcome();
    took.clear();
    connected.clear();
    order_ = o;
    const allocation_counts before = allocations();
    const std::uint64_t cpu = thread_cpu_ns();
    now_.begun = now_ns();
    try {
      take_step();
    } catch (std::exception const& e) {
      fail(e.what());
    }
    if (now_.ended == 0) now_.ended = now_ns();
    now_.cpu_ns = thread_cpu_ns() - cpu;
    now_.allocations = allocations().calls - before.calls;
    now_.bytes_sent = counts_.bytes_written;
    now_.bytes_received = counts_.bytes_read;
    return now_;
  }
  std::vector<std::uint64_t> took;
  std::vector<std::uint64_t> connected;

 private:
  using member = std::optional<meeting>;

  void take_step() {
    switch (order_.what) {
      case step::connect:
      case step::init: return connect_all();
      case step::publish: return publish_all();
      case step::operate: return operate_all();
      case step::wait_common:
      case step::wait_own: return begin_waits();
      case step::collect: return collect();
      case step::set: return static_cast<void>(rc::sync_wait(loop_, set_common()));
      case step::barrier: return barriers();
      case step::arrive: return begin_arrivals();
      case step::witness: return static_cast<void>(rc::sync_wait(loop_, watch()));
      case step::leave: return leave();
    }
  }
  void fail(char const* why) noexcept {
    ++now_.failed;
    if (now_.error[0] == 0) std::strncpy(now_.error, why, sizeof now_.error - 1);
  }
  void done_since(std::uint64_t begun) noexcept {
    now_.ended = now_ns();
    ++now_.done;
    took.push_back(now_.ended - begun);
  }
  [[nodiscard]] rc::deadline limit() const { return std::chrono::duration<double>(who_.limit); }
  [[nodiscard]] std::int64_t rank(std::size_t i) const noexcept { return who_.first + static_cast<std::int64_t>(i); }
  [[nodiscard]] std::string own_key(std::size_t i) const { return "own/" + std::to_string(rank(i)); }
  [[nodiscard]] std::string wait_key(std::size_t i) const {
    std::string key = "wait/" + std::to_string(order_.round);
    if (order_.what == step::wait_own) key += "/" + std::to_string(rank(i));
    return key;
  }

  /// Runs `f(i)`, a task, for the members `first` .. `first + count - 1` at once.
  template <class F>
  void for_each(std::size_t first, std::size_t count, F f) {
    rc::scope all(loop_);
    took.reserve(took.size() + count);
    for (std::size_t i = first; i < first + count; ++i) all.spawn(f(i));
    rc::sync_wait(loop_, all.join());
  }

  rc::task<> connect_one(std::size_t i) {
    const std::uint64_t begun = now_ns();
    try {
      const int last_byte = static_cast<int>(1 + rank(i) % addresses);
      const std::string host = "127.0.0." + std::to_string(last_byte);
      if (who_.counted) {
        rc::net::stream_ptr s = dial_counted(loop_.core(), who_.port, counts_, last_byte);
        rc::tcp_store store = co_await rc::tcp_store::over(loop_, std::move(s), limit(), rc::client_options{}, nullptr, identity_of(rank(i)));
        members_[i].emplace(store, rank(i), who_.world, true);
      } else {
        rc::tcp_store store = co_await rc::tcp_store::connect(loop_, host, who_.port, limit());
        members_[i].emplace(store, rank(i), who_.world, false);
      }
      if (order_.what == step::init) co_await members_[i]->store().add("init", 1, limit());
      done_since(begun);
    } catch (std::exception const& e) {
      fail(e.what());
    }
  }
  rc::task<> connect_some(std::size_t first, std::size_t stride) {
    for (std::size_t i = first; i < members_.size(); i += stride) co_await connect_one(i);
  }
  void connect_all() {
    const std::size_t at_once = order_.number > 0 ? std::min(static_cast<std::size_t>(order_.number), members_.size()) : members_.size();
    for_each(0, at_once, [&](std::size_t i) { return connect_some(i, at_once); });
  }

  rc::task<> publish_one(std::size_t i) {
    const std::uint64_t begun = now_ns();
    const std::string key = own_key(i);
    const std::string number = "number/" + std::to_string(rank(i));
    const std::string value(64, 'v');
    co_await members_[i]->store().set(key, value, limit());
    co_await members_[i]->store().add(number, 1, limit());
    done_since(begun);
  }
  void publish_all() {
    for_each(0, members_.size(), [&](std::size_t i) { return publish_one(i); });
  }

  rc::task<> stream_of_operations(std::size_t i, std::int64_t times) {
    rc::tcp_store const store = members_[i]->store();
    const std::string key = order_.op == operation::add ? "number/" + std::to_string(rank(i)) : own_key(i);
    const std::string_view view = key;
    const std::string value(64, 'w');
    for (std::int64_t n = 0; n < times; ++n) {
      const std::uint64_t begun = now_ns();
      switch (order_.op) {
        case operation::add: co_await store.add(view, 1, rc::deadline::never()); break;
        case operation::get: co_await store.fetch_existing(view, rc::deadline::never()); break;
        case operation::set: co_await store.set(view, value, rc::deadline::never()); break;
        case operation::check: co_await store.check(view, rc::deadline::never()); break;
        case operation::wait: co_await store.wait(view, rc::deadline::never()); break;
      }
      done_since(begun);
    }
  }
  void operate_all() {
    const auto depth = static_cast<std::size_t>(order_.depth);
    took.reserve(members_.size() * static_cast<std::size_t>(order_.number));
    for_each(0, members_.size() * depth,
             [&](std::size_t i) { return stream_of_operations(i / depth, order_.number / order_.depth); });
  }

  rc::task<> wait_one(std::size_t i, std::string key) {
    try {
      co_await members_[i]->store().wait(key, limit());
      woken_.push_back(now_ns());
    } catch (std::exception const& e) {
      if (!leaving_) fail(e.what());
    }
  }
  void begin_waits() {
    leaving_ = false;
    waits_.emplace(loop_);
    woken_.clear();
    woken_.reserve(members_.size());
    for (std::size_t i = 0; i < members_.size(); ++i) waits_->spawn(wait_one(i, wait_key(i)));
    run_what_is_ready();
    now_.done = members_.size();
  }
  /// What was begun is written when this returns.
  void run_what_is_ready() {
    while (uv_backend_timeout(loop_.native()) == 0 && uv_loop_alive(loop_.native()) != 0) uv_run(loop_.native(), UV_RUN_NOWAIT);
  }
  void collect() {
    rc::sync_wait(loop_, waits_->join());
    waits_.reset();
    if (who_.counted) run_until_quiet();
    now_.done = woken_.size();
    now_.ended = woken_.empty() ? now_ns() : *std::max_element(woken_.begin(), woken_.end());
    took = woken_;
  }
  rc::task<> set_common() {
    const std::string key = wait_key(0);
    co_await members_[0]->store().set(key, "1", limit());
    ++now_.done;
  }

  rc::task<> barriers_of(std::size_t i) {
    try {
      for (int round = 0; round < static_cast<int>(order_.number); ++round) {
        const std::uint64_t begun = now_ns();
        rc::task<> one = members_[i]->pass(order_.kind, order_.round + round, limit());
        co_await std::move(one);
        done_since(begun);
      }
    } catch (std::exception const& e) {
      fail(e.what());
    }
  }
  void barriers() {
    took.reserve(members_.size() * static_cast<std::size_t>(order_.number));
    for_each(0, members_.size(), [&](std::size_t i) { return barriers_of(i); });
  }
  rc::task<> arrive_one(std::size_t i) {
    try {
      rc::task<> one = members_[i]->pass(order_.kind, order_.round, limit());
      co_await std::move(one);
      woken_.push_back(now_ns());
    } catch (std::exception const& e) {
      fail(e.what());
    }
  }
  /// Of counted connections: a barrier takes several round trips, and the last answer is the one that does not come. Turns in which
  /// nothing comes mean that.
  void run_until_quiet() {
    uv_idle_start(&busy_, [](uv_idle_t*) {});  // connections that are idle do not keep a loop running
    for (int quiet = 0; quiet < 20;) {
      const std::uint64_t before = counts_.reads;
      uv_run(loop_.native(), UV_RUN_NOWAIT);
      quiet = counts_.reads == before ? quiet + 1 : 0;
      if (quiet > 0) ::usleep(5000);
    }
    uv_idle_stop(&busy_);
  }
  void begin_arrivals() {
    if (!waits_) {
      waits_.emplace(loop_);
      woken_.clear();
      woken_.reserve(members_.size());
    }
    for (std::int64_t i = 0; i < order_.number; ++i) waits_->spawn(arrive_one(static_cast<std::size_t>(order_.first + i)));
    run_until_quiet();
    now_.done = static_cast<std::uint64_t>(order_.number);
  }

  /// Never ends by itself: what one feels of others who are many.
  rc::task<> watch() {
    char value[128];
    const std::string key = own_key(0);
    rc::tcp_store const store = members_[0]->store();
    for (std::int64_t n = 0; !*who_.over; ++n) {
      const std::uint64_t begun = now_ns();
      try {
        co_await store.get_into(key, value, limit());
        done_since(begun);
        if (n % witness_connects_every == 0) {
          const std::uint64_t dialled = now_ns();
          rc::tcp_store another = co_await rc::tcp_store::connect(loop_, "127.0.0.1", who_.port, limit());
          connected.push_back(now_ns() - dialled);
        }
      } catch (std::exception const& e) {
        fail(e.what());
        co_return;
      }
      co_await rc::sleep_for(1ms);
    }
  }

  void leave() {
    leaving_ = true;
    for (member& m : members_)
      if (m) m->store().close();
    if (waits_) rc::sync_wait(loop_, waits_->join());
    waits_.reset();
    now_.done = members_.size();
    for (member& m : members_) m.reset();
    while (loop_.live_handles() != 0) uv_run(loop_.native(), UV_RUN_NOWAIT);
  }

  crowd who_;
  order order_;
  outcome now_;
  traffic counts_;
  rc::loop loop_;
  uv_idle_t busy_;
  std::vector<member> members_;
  std::optional<rc::scope> waits_;
  std::vector<std::uint64_t> woken_;
  bool leaving_ = false;
};

bool send_samples(int socket, std::vector<std::uint64_t> const& v) {
  const std::uint64_t n = v.size();
  return write_all(socket, &n, sizeof n) && write_all(socket, v.data(), v.size() * sizeof v[0]);
}
bool take_samples(int socket, std::vector<std::uint64_t>& to) {
  std::uint64_t n = 0;
  if (!read_all(socket, &n, sizeof n)) return false;
  const std::size_t had = to.size();
  to.resize(had + static_cast<std::size_t>(n));
  return read_all(socket, to.data() + had, static_cast<std::size_t>(n) * sizeof to[0]);
}

}  // namespace

rc::net::stream_ptr dial_counted(rc::detail::loop_core& core, int port, traffic& counts, int last_byte) {
  rc::unique_fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1U + static_cast<std::uint32_t>(last_byte));
  if (::connect(fd.get(), reinterpret_cast<sockaddr const*>(&to), sizeof to) != 0) throw std::runtime_error("nobody listens");
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  rc::net::socket_options{}.apply(fd.get());
  rc::net::stream_ptr s;
  if (rc::net::detail::socket_stream::adopt(core, fd, s) != 0) throw std::runtime_error("a connection cannot be watched");
  return rc::net::stream_ptr(new counted_stream(std::move(s), counts));
}

int run_load(int socket, crowd const& who) {
  worker w(who);
  order o;
  while (read_all(socket, &o, sizeof o)) {
    const outcome done = w.run(o);
    if (!write_all(socket, &done, sizeof done) || !send_samples(socket, w.took) || !send_samples(socket, w.connected)) return 1;
  }
  ::_exit(0);  // the kernel closes what is left
}

load::load(crowd who, int procs, int cpu) {
  const std::int64_t all = who.count;
  for (std::int64_t i = 0; i < procs; ++i) {
    crowd part = who;
    part.first = who.first + all * i / procs;
    part.count = who.first + all * (i + 1) / procs - part.first;
    processes_.push_back(std::make_unique<child>([part](int socket) { return run_load(socket, part); }, cpu));
  }
}

void load::begin(order const& o) {
  for (auto const& p : processes_)
    if (!write_all(p->socket(), &o, sizeof o)) throw std::runtime_error("a process of the load is gone");
}

outcome_of_all load::finish() {
  outcome_of_all all;
  all.begun = UINT64_MAX;
  for (auto const& p : processes_) {
    outcome one;
    if (!read_all(p->socket(), &one, sizeof one) || !take_samples(p->socket(), all.took) || !take_samples(p->socket(), all.connected))
      throw std::runtime_error("a process of the load is gone");
    all.begun = std::min(all.begun, one.begun);
    all.ended = std::max(all.ended, one.ended);
    all.done += one.done;
    all.failed += one.failed;
    all.allocations += one.allocations;
    all.cpu_ns += one.cpu_ns;
    all.bytes_sent += one.bytes_sent;
    all.bytes_received += one.bytes_received;
    if (all.error[0] == 0) std::memcpy(all.error, one.error, sizeof one.error);
  }
  return all;
}

void* map_shared(std::size_t n) {
  void* const p = ::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::runtime_error("no shared memory");
  return p;
}
void unmap_shared(void* p, std::size_t n) noexcept { ::munmap(p, n); }

}  // namespace bench
