#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "child.hpp"
#include "counting.hpp"

namespace bench {

/// What a server of ours, or the floor, tells of itself when it is asked. Plain bytes on a socket.
struct server_report {
  allocation_counts memory;
  std::uint64_t connections = 0;
  std::uint64_t accepted = 0;
  std::uint64_t requests = 0;
  std::uint64_t reads = 0;   // batches of bytes taken: a recv each
  std::uint64_t writes = 0;  // batches handed over: a send each
  std::uint64_t waits = 0;   // unanswered
  std::uint64_t keys = 0;
  std::uint64_t entries = 0;
};

/// What everything here needs to know of one kind of server. All that can be measured are in servers(); one more is one more line there.
struct server_kind {
  std::string_view name;
  std::string_view what;
  bool reports;  // answers with a server_report
  bool is_whole;  // knows all that our barrier asks for, and keys to be cancelled; the floor does not
  /// The child's body: listens on all of 127.0.0.0/8, writes its port (an int) to the socket, serves until the socket ends.
  int (*serve)(int socket);
  /// Why it cannot be had here; "" if it can.
  std::string (*missing)();
};

[[nodiscard]] std::vector<server_kind> const& servers();
/// The kinds that a list of names means ("rollcall,floor"; "all": all that can be had). Throws for unknown names and for missing servers.
[[nodiscard]] std::vector<server_kind> servers_named(std::string const& list);

/// A server in a process of its own.
class server_process {
 public:
  explicit server_process(server_kind const& kind, int cpu = -1);
  [[nodiscard]] server_kind const& kind() const noexcept { return kind_; }
  [[nodiscard]] int port() const noexcept { return port_; }
  [[nodiscard]] std::uint64_t cpu_ns() const { return process_->cpu_ns(); }
  [[nodiscard]] std::uint64_t rss() const { return process_->rss(); }
  /// All zeros from a server that does not report.
  [[nodiscard]] server_report ask() const;
  /// Asks until `done(report)`; gives up after 30 s. At once where the server does not report.
  template <class F>
  server_report ask_until(F done) const {
    server_report r = ask();
    for (const std::uint64_t begun = now_ns(); kind_.reports && !done(r) && now_ns() - begun < 30'000'000'000U; r = ask()) pause();
    return r;
  }

 private:
  static void pause() noexcept;
  server_kind kind_;
  std::unique_ptr<child> process_;
  int port_ = 0;
};

/// The least server that can take part: one thread, epoll, no library, hardly any checks. What the kernel alone costs.
int serve_floor(int socket);

}  // namespace bench
