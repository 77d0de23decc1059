#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "../client/options.hpp"
#include "../engine/options.hpp"
#include "../net/resolve.hpp"
#include "../stores/file_options.hpp"
#include "plan.hpp"
#include "port_board.hpp"
#include "schemes.hpp"

namespace rollcall {
inline namespace v0 {

/// How rendezvous() behaves. Chain the setters: `rendezvous_options().rank(3).world_size(8)`. What is given here beats the URL.
class rendezvous_options {
 public:
  rendezvous_options() = default;
  rendezvous_options(rendezvous_arguments a) : arguments_(std::move(a)) {}

  /// 0..world_size-1
  rendezvous_options& rank(std::optional<std::int64_t> r) noexcept { return arguments_.rank(r), *this; }
  /// 1..2147483647; barriers take up to 16777216.
  rendezvous_options& world_size(std::optional<std::int64_t> n) noexcept { return arguments_.world_size(n), *this; }
  /// One limit over all steps, above 0; also that of the store's operations unless client() says otherwise. Default 300 s.
  rendezvous_options& timeout(std::optional<duration> d) noexcept { return arguments_.timeout(d), *this; }
  /// How often the job was restarted, ≥ 0: the attempt of its barriers.
  rendezvous_options& attempt(std::optional<std::int64_t> n) noexcept { return arguments_.attempt(n), *this; }
  /// Which back end rank 0 serves with; others are not asked.
  rendezvous_options& use_libuv(std::optional<bool> on) noexcept { return arguments_.use_libuv(on), *this; }
  /// What rank 0 listens on, * for all interfaces.
  rendezvous_options& bind(std::optional<std::string> host) { return arguments_.bind(std::move(host)), *this; }
  /// A listening socket for rank 0, which owns it once it listens there; an error where this process does not serve.
  rendezvous_options& listen_fd(std::optional<std::int64_t> fd) noexcept { return arguments_.listen_fd(fd), *this; }
  /// A prefix of all keys, for those who want one: members of another generation do not see them.
  rendezvous_options& generation(std::optional<std::string> name) { return arguments_.generation(std::move(name)), *this; }
  /// What tells this run from others: file:// and port boards.
  rendezvous_options& run_id(std::optional<std::string> id) { return arguments_.run_id(std::move(id)), *this; }

  /// Where the port becomes known that the system chooses for port 0. Beats ?port_file.
  rendezvous_options& publish_port(port_board b) { return arguments_.publishes_port(static_cast<bool>(b)), board_ = std::move(b), *this; }
  /// Whether everybody registers and rank 0 returns only when all have. Default true.
  rendezvous_options& wait_for_workers(bool on) noexcept { return wait_for_workers_ = on, *this; }
  /// Whether session.run() stops what it runs when the server is lost, or with a file:// another rank is dead. Default true.
  rendezvous_options& stop_when_lost(bool on) noexcept { return stop_when_lost_ = on, *this; }
  /// The variables that count instead of this process's.
  rendezvous_options& environment(variables v) { return environment_ = std::move(v), *this; }
  /// Schemes beside our own.
  rendezvous_options& schemes(rendezvous_schemes s) {
    arguments_.schemes(s.names());
    return schemes_ = std::move(s), *this;
  }
  rendezvous_options& client(client_options o) noexcept { return client_ = o, *this; }
  rendezvous_options& serve(serve_options o) noexcept { return serve_ = o, *this; }
  /// How a file:// store behaves; rank, world size, attempt, run id and limit are those of the rendezvous.
  rendezvous_options& file(file_options o) { return file_ = std::move(o), *this; }
  /// Resolves names, also the one that rank 0 listens on.
  rendezvous_options& resolver(resolve_fn f) { return resolver_ = std::move(f), *this; }

  [[nodiscard]] rendezvous_arguments const& arguments() const noexcept { return arguments_; }
  [[nodiscard]] port_board const& board() const noexcept { return board_; }
  [[nodiscard]] bool wait_for_workers() const noexcept { return wait_for_workers_; }
  [[nodiscard]] bool stop_when_lost() const noexcept { return stop_when_lost_; }
  [[nodiscard]] variables environment() const { return environment_ ? *environment_ : variables::of_process(); }
  [[nodiscard]] rendezvous_schemes const& schemes() const noexcept { return schemes_; }
  [[nodiscard]] client_options client(duration limit) const noexcept { return client_ ? *client_ : client_options().timeout(limit); }
  [[nodiscard]] serve_options const& serve() const noexcept { return serve_; }
  [[nodiscard]] file_options const& file() const noexcept { return file_; }
  [[nodiscard]] resolve_fn const& resolver() const noexcept { return resolver_; }

 private:
  rendezvous_arguments arguments_;
  port_board board_;
  bool wait_for_workers_ = true;
  bool stop_when_lost_ = true;
  std::optional<variables> environment_;
  rendezvous_schemes schemes_;
  std::optional<client_options> client_;
  serve_options serve_;
  file_options file_;
  resolve_fn resolver_ = resolve_by_system;
};
static_assert(await_safe<rendezvous_options>);

}  // namespace v0
}  // namespace rollcall
