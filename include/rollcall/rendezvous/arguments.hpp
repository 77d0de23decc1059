#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/bytes.hpp"
#include "../core/clock.hpp"

namespace rollcall {
inline namespace v0 {

/// What the caller of a rendezvous says beside the URL; it beats the URL. Chain the setters.
class rendezvous_arguments {
 public:
  rendezvous_arguments() = default;

  /// 0..world_size-1
  rendezvous_arguments& rank(std::optional<std::int64_t> r) noexcept { return rank_ = r, *this; }
  /// 1..2147483647
  rendezvous_arguments& world_size(std::optional<std::int64_t> n) noexcept { return world_size_ = n, *this; }
  /// Above 0.
  rendezvous_arguments& timeout(std::optional<duration> d) noexcept { return timeout_ = d, *this; }
  /// How often the job was restarted, ≥ 0.
  rendezvous_arguments& attempt(std::optional<std::int64_t> n) noexcept { return attempt_ = n, *this; }
  rendezvous_arguments& use_libuv(std::optional<bool> on) noexcept { return use_libuv_ = on, *this; }
  /// What rank 0 listens on, * for all interfaces.
  rendezvous_arguments& bind(std::optional<std::string> host) { return bind_ = std::move(host), *this; }
  /// A listening socket for rank 0; an error where this process does not serve.
  rendezvous_arguments& listen_fd(std::optional<std::int64_t> fd) noexcept { return listen_fd_ = fd, *this; }
  rendezvous_arguments& generation(std::optional<std::string> name) { return generation_ = std::move(name), *this; }
  /// What tells this run from others: rank 0's server, a file, and a port that gets published are of this run only.
  rendezvous_arguments& run_id(std::optional<std::string> id) { return run_id_ = std::move(id), *this; }
  /// That the port which the system chooses gets known to the other ranks: only then may several have port 0. Default false.
  rendezvous_arguments& publishes_port(bool on) noexcept { return publishes_port_ = on, *this; }
  /// Schemes beside tcp, unix, file, env and auto, in lower case.
  rendezvous_arguments& schemes(std::vector<std::string> names) { return schemes_ = std::move(names), *this; }

  [[nodiscard]] std::optional<std::int64_t> rank() const noexcept { return rank_; }
  [[nodiscard]] std::optional<std::int64_t> world_size() const noexcept { return world_size_; }
  [[nodiscard]] std::optional<duration> timeout() const noexcept { return timeout_; }
  [[nodiscard]] std::optional<std::int64_t> attempt() const noexcept { return attempt_; }
  [[nodiscard]] std::optional<bool> use_libuv() const noexcept { return use_libuv_; }
  [[nodiscard]] std::optional<std::string> const& bind() const noexcept { return bind_; }
  [[nodiscard]] std::optional<std::int64_t> listen_fd() const noexcept { return listen_fd_; }
  [[nodiscard]] std::optional<std::string> const& generation() const noexcept { return generation_; }
  [[nodiscard]] std::optional<std::string> const& run_id() const noexcept { return run_id_; }
  [[nodiscard]] bool publishes_port() const noexcept { return publishes_port_; }
  [[nodiscard]] std::vector<std::string> const& schemes() const noexcept { return schemes_; }

 private:
  std::optional<std::int64_t> rank_, world_size_, attempt_, listen_fd_;
  std::optional<duration> timeout_;
  std::optional<bool> use_libuv_;
  std::optional<std::string> bind_, generation_, run_id_;
  std::vector<std::string> schemes_;
  bool publishes_port_ = false;
};
static_assert(await_safe<rendezvous_arguments>);

}  // namespace v0
}  // namespace rollcall
