#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "servers.hpp"

// It knows what the loads here send: VALIDATE SET GET ADD CHECK WAIT (one key) PING DELETE_KEY. Replies to all requests of one read leave
// in one write. It trusts its peer; a request that it does not know closes the connection.

namespace bench {

namespace {

template <class T>
T load(char const* p) noexcept {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

struct waiter {
  int fd;
  std::uint32_t generation;
};
struct entry {
  entry* chain;
  std::uint64_t hash;
  std::string key;
  std::string value;
  bool is_set = false;
  std::vector<waiter> waiters;
};
struct connection {
  std::string rest;    // a request that is not whole
  std::string unsent;  // what the socket did not take
  std::uint32_t generation = 0;
  bool open = false;
};

class table {
 public:
  entry* find(std::string_view key, bool make) {
    const std::uint64_t h = hash(key);
    for (entry* e = buckets_[h & (buckets_.size() - 1)]; e; e = e->chain)
      if (e->hash == h && e->key == key) return e;
    if (!make) return nullptr;
    if (++size_ > buckets_.size()) grow();
    entry*& bucket = buckets_[h & (buckets_.size() - 1)];
    bucket = new entry{bucket, h, std::string(key), {}, false, {}};
    return bucket;
  }
  bool erase(std::string_view key) {
    const std::uint64_t h = hash(key);
    for (entry** at = &buckets_[h & (buckets_.size() - 1)]; *at; at = &(*at)->chain) {
      if ((*at)->hash != h || (*at)->key != key || !(*at)->is_set) continue;
      delete std::exchange(*at, (*at)->chain);
      --size_;
      return true;
    }
    return false;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  static std::uint64_t hash(std::string_view key) noexcept {
    std::uint64_t h = 1469598103934665603U;
    for (const char c : key) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211U;
    return h ^ (h >> 29);
  }
  void grow() {
    std::vector<entry*> bigger(buckets_.size() * 2);
    for (entry* e : buckets_)
      while (e) {
        entry*& bucket = bigger[e->hash & (bigger.size() - 1)];
        entry* const next = std::exchange(e->chain, bucket);
        bucket = e;
        e = next;
      }
    buckets_.swap(bigger);
  }
  std::vector<entry*> buckets_ = std::vector<entry*>(1 << 16);
  std::size_t size_ = 0;
};

class floor_server {
 public:
  explicit floor_server(int control) : control_(control), connections_(1 << 16), in_(1 << 20) {}

  int run() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    socklen_t size = sizeof a;
    if (::bind(listener, reinterpret_cast<sockaddr*>(&a), size) != 0 || ::listen(listener, INT_MAX) != 0 ||
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&a), &size) != 0)
      return 1;
    const int port = ntohs(a.sin_port);
    if (!write_all(control_, &port, sizeof port)) return 1;
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    watch(EPOLL_CTL_ADD, listener, EPOLLIN);
    watch(EPOLL_CTL_ADD, control_, EPOLLIN);
    epoll_event events[256];
    for (;;) {
      const int n = epoll_wait(epoll_, events, 256, -1);
      for (int i = 0; i < n; ++i) {
        const int fd = events[i].data.fd;
        if (fd == listener) {
          accept(listener);
        } else if (fd == control_) {
          if (!answer()) return 0;
        } else if (!handle(fd, events[i].events)) {
          drop(fd);
        }
      }
    }
  }

 private:
  void watch(int how, int fd, std::uint32_t what) noexcept {
    epoll_event e{};
    e.events = what;
    e.data.fd = fd;
    epoll_ctl(epoll_, how, fd, &e);
  }
  bool answer() {
    char asked = 0;
    if (!read_all(control_, &asked, 1)) return false;
    report_.memory = allocations();
    report_.keys = report_.entries = table_.size();
    return write_all(control_, &report_, sizeof report_);
  }
  void accept(int listener) {
    for (int fd = 0; (fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
      if (static_cast<std::size_t>(fd) >= connections_.size()) {
        ::close(fd);
        continue;
      }
      watch(EPOLL_CTL_ADD, fd, EPOLLIN);
      at(fd).open = true;
      ++report_.accepted;
      ++report_.connections;
    }
  }
  connection& at(int fd) noexcept { return connections_[static_cast<std::size_t>(fd)]; }
  void drop(int fd) noexcept {
    connection& c = at(fd);
    if (!std::exchange(c.open, false)) return;
    std::string().swap(c.rest);
    std::string().swap(c.unsent);
    ++c.generation;  // its waiters are stale now
    ::close(fd);
    --report_.connections;
  }
  bool handle(int fd, std::uint32_t events) {
    connection& c = at(fd);
    if ((events & EPOLLOUT) != 0 && !flush(fd)) return false;
    if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) == 0) return true;
    std::size_t have = c.rest.size();
    if (in_.size() < have + (1 << 16)) in_.resize(2 * have + (1 << 16));
    std::memcpy(in_.data(), c.rest.data(), have);
    const ssize_t k = ::recv(fd, in_.data() + have, in_.size() - have, 0);
    if (k <= 0) return k < 0 && errno == EAGAIN;
    ++report_.reads;
    have += static_cast<std::size_t>(k);
    out_.clear();
    char const* const end = in_.data() + have;
    char const* const stop = serve(fd, in_.data(), end);
    if (!stop || !emit(fd, out_)) return false;
    if (stop != end || !c.rest.empty()) c.rest.assign(stop, end);
    return true;
  }
  bool emit(int fd, std::string_view bytes) {
    if (bytes.empty()) return true;
    connection& c = at(fd);
    if (c.unsent.empty()) {
      ++report_.writes;
      const ssize_t k = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (k == static_cast<ssize_t>(bytes.size())) return true;
      if (k < 0 && errno != EAGAIN) return false;
      if (k > 0) bytes.remove_prefix(static_cast<std::size_t>(k));
      watch(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT);
    }
    c.unsent.append(bytes);
    return true;
  }
  bool flush(int fd) {
    connection& c = at(fd);
    if (c.unsent.empty()) return true;
    const ssize_t k = ::send(fd, c.unsent.data(), c.unsent.size(), MSG_NOSIGNAL);
    if (k < 0) return errno == EAGAIN;
    c.unsent.erase(0, static_cast<std::size_t>(k));
    if (c.unsent.empty()) {
      std::string().swap(c.unsent);
      watch(EPOLL_CTL_MOD, fd, EPOLLIN);
    }
    return true;
  }
  void store(entry& e, std::string_view value) {
    e.value.assign(value);
    e.is_set = true;
    const std::vector<waiter> gone = std::move(e.waiters);
    e.waiters.clear();
    for (waiter const& w : gone)
      if (at(w.fd).open && at(w.fd).generation == w.generation) emit(w.fd, std::string_view("\0", 1));
  }
  template <class T>
  void put(T v) {
    out_.append(reinterpret_cast<char const*>(&v), sizeof v);
  }

  /// Serves whole requests; returns where the first one begins that is not whole, or nullptr.
  char const* serve(int fd, char const* p, char const* end) {
    for (char const* q = p; q != end; p = q) {
      const auto has = [&](std::size_t n) { return static_cast<std::size_t>(end - q) >= n; };
      const auto text = [&](std::string_view& s) {
        if (!has(8)) return false;
        const auto n = static_cast<std::size_t>(load<std::uint64_t>(q));
        if (!has(8 + n)) return false;
        s = std::string_view(q + 8, n);
        q += 8 + n;
        return true;
      };
      std::string_view key;
      std::string_view value;
      switch (const int op = *q++) {
        case 0:
        case 13:
          if (!has(4)) return p;
          if (op == 13) put(load<std::uint32_t>(q));
          q += 4;
          break;
        case 1:
          if (!text(key) || !text(value)) return p;
          store(*table_.find(key, true), value);
          break;
        case 3: {
          if (!text(key)) return p;
          entry const* const e = table_.find(key, false);
          put(std::uint64_t{e ? e->value.size() : 0});
          if (e) out_.append(e->value);
          break;
        }
        case 4: {
          if (!text(key) || !has(8)) return p;
          entry& e = *table_.find(key, true);
          std::int64_t sum = 0;
          std::from_chars(e.value.data(), e.value.data() + e.value.size(), sum);
          sum += load<std::int64_t>(q);
          q += 8;
          char digits[24];
          store(e, std::string_view(digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, sum).ptr - digits)));
          put(sum);
          break;
        }
        case 5: {
          if (!has(8)) return p;
          bool all = true;
          std::uint64_t n = load<std::uint64_t>(q);
          for (q += 8; n > 0; --n) {
            if (!text(key)) return p;
            entry const* const e = table_.find(key, false);
            all = all && e && e->is_set;
          }
          put(static_cast<char>(all ? 0 : 1));
          break;
        }
        case 6: {
          if (!has(8)) return p;
          if (load<std::uint64_t>(q) != 1) return nullptr;
          q += 8;
          if (!text(key)) return p;
          entry& e = *table_.find(key, true);
          if (e.is_set) {
            put(char{0});
          } else {
            e.waiters.push_back(waiter{fd, at(fd).generation});
          }
          break;
        }
        case 8:
          if (!text(key)) return p;
          put(std::int64_t{table_.erase(key)});
          break;
        default: return nullptr;
      }
      ++report_.requests;
    }
    return end;
  }

  int control_;
  int epoll_ = -1;
  table table_;
  std::vector<connection> connections_;
  std::vector<char> in_;
  std::string out_;
  server_report report_;
};

}  // namespace

int serve_floor(int socket) {
  floor_server server(socket);
  return server.run();
}

}  // namespace bench
