#pragma once
#include <netdb.h>
#include <sys/socket.h>
#include <uv.h>

#include <algorithm>
#include <charconv>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/result.hpp"
#include "../posix/address.hpp"
#include "../rt/detail/waiter.hpp"
#include "../rt/loop.hpp"
#include "../rt/task.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// One look-up. What is known without one (a literal, a port out of range) is the outcome from the start; else the request lives in a
/// block that libuv's callback frees, so that the awaiting coroutine may leave or die at any time.
class [[nodiscard]] resolving final : private waiter {
 public:
  using addresses = std::vector<socket_address>;

  resolving(loop_core* core, std::string_view host, std::int64_t port) : resolving(core, host) { numeric(port); }
  resolving(loop_core* core, std::string_view host, std::string_view service) : resolving(core, host) {
    std::int64_t port = 0;
    const auto [end, problem] = std::from_chars(service.data(), service.data() + service.size(), port);
    if (problem == std::errc() && end == service.data() + service.size()) {
      numeric(port);
    } else if (service.empty() || service.find('\0') != service.npos) {
      fail(errc::invalid, "the service is empty or has a zero byte in it");
    } else {
      service_ = service;
    }
  }
  /// Only before it is awaited.
  resolving(resolving&& o) noexcept
      : waiter(), own_core_(o.own_core_), host_(std::move(o.host_)), service_(std::move(o.service_)), outcome_(std::move(o.outcome_)) {}
  ~resolving() {
    if (how() == state::waiting) leave();
  }

  [[nodiscard]] bool await_ready() const noexcept { return outcome_.has_value(); }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) {
    if (!begin(h, own_core_)) return false;
    if (!core()) throw error(errc::invalid, operation(), "the awaiting coroutine has no loop: pass one, resolve(loop, host, port)");
    start();
    return true;
  }
  addresses await_resume() {
    if (was_stopped()) throw_cancelled(operation());
    if (exception_) std::rethrow_exception(exception_);
    return std::move(*outcome_).value();
  }

 private:
  struct request {
    uv_getaddrinfo_t uv;
    loop_core* core;
    resolving* owner;
  };

  resolving(loop_core* core, std::string_view host) : own_core_(core), host_(host) {
    if (host_.empty() || host_.find('\0') != host_.npos) fail(errc::invalid, "the host name is empty or has a zero byte in it");
  }
  void numeric(std::int64_t port) {
    if (outcome_) return;
    if (port < 0 || port > 65535) return fail(errc::invalid, "port " + std::to_string(port) + " is not in 0..65535");
    service_ = std::to_string(port);
    if (!socket_address::looks_like_ip(host_)) return;
    result<socket_address> literal = socket_address::ip(host_, port);
    if (!literal) return fail(literal.error().code(), literal.error().detail());
    outcome_.emplace(addresses{*literal});
  }
  [[nodiscard]] std::string operation() const {
    std::string s = "resolve '";
    append_printable(s, host_, 256);
    return s + "'";
  }
  void fail(errc code, std::string text) { outcome_.emplace(failure(code, operation(), std::move(text))); }
  void fail_with(int status) { fail(errc::resolve, std::string(uv_err_name(status)) + ": " + uv_strerror(status)); }

  void start() {
    std::string host = host_;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    if (socket_address::looks_like_ip(host)) {  // here because of a named service; still no look-up of the host
      hints.ai_flags = AI_NUMERICHOST;
      if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    }
    auto r = std::make_unique<request>(request{{}, core(), this});
    r->uv.data = r.get();
    if (const int status = uv_getaddrinfo(core()->native(), &r->uv, &resolving::on_done, host.c_str(), service_.c_str(), &hints);
        status != 0) {
      fail_with(status);
      complete();
      return;
    }
    core()->add_handle();
    request_ = r.release();
  }
  static void on_done(uv_getaddrinfo_t* uv, int status, addrinfo* found) noexcept {
    const std::unique_ptr<request> mine(static_cast<request*>(uv->data));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &uv_freeaddrinfo);
    loop_core& core = *mine->core;
    const loop_core::turn t(core);
    core.drop_handle();
    if (resolving* self = mine->owner) self->done(status, found);
  }
  void done(int status, addrinfo const* found) noexcept {
    request_ = nullptr;
    try {
      addresses all;
      for (addrinfo const* a = found; status == 0 && a; a = a->ai_next) {
        const socket_address address(a->ai_addr, a->ai_addrlen);
        if (address.is_inet() && std::find(all.begin(), all.end(), address) == all.end()) all.push_back(address);
      }
      if (status == 0 && all.empty()) status = UV_EAI_NONAME;
      if (status == 0) {
        outcome_.emplace(std::move(all));
      } else {
        fail_with(status);
      }
    } catch (...) {
      exception_ = std::current_exception();
    }
    complete();
  }
  void leave() noexcept override {
    if (!request_) return;
    uv_cancel(reinterpret_cast<uv_req_t*>(&request_->uv));
    std::exchange(request_, nullptr)->owner = nullptr;
  }

  loop_core* own_core_;
  std::string host_;
  std::string service_;
  std::optional<result<addresses>> outcome_;
  std::exception_ptr exception_;
  request* request_ = nullptr;
};

}  // namespace detail

/// The addresses of a host, in the order of preference of the system (RFC 6724), without duplicates; at least one.
///
/// host      a name, or an IPv4 or IPv6 literal, with or without brackets and zone. A literal is never looked up: it completes at once,
///           without a thread. Copied before this function returns.
/// port      0..65535 as a number or in digits, or the name of a TCP service.
/// completes when the system's resolver (`getaddrinfo` in libuv's thread pool, which has its own time-outs) has answered. Nothing is
///           cached or retried here; connect() does the retrying.
/// errors    resolve, with the resolver's text; invalid for a malformed literal or a port out of range, without a look-up; cancelled.
/// cancel    completes in this loop turn; a look-up that has begun goes on in its thread and keeps the loop alive until it ends.
/// lifetime  needs the loop of the awaiting coroutine, or one as the first argument.
[[nodiscard]] inline detail::resolving resolve(std::string_view host, std::int64_t port) { return {nullptr, host, port}; }
[[nodiscard]] inline detail::resolving resolve(std::string_view host, std::string_view service) { return {nullptr, host, service}; }
[[nodiscard]] inline detail::resolving resolve(loop& l, std::string_view host, std::int64_t port) { return {&l.core(), host, port}; }
[[nodiscard]] inline detail::resolving resolve(loop& l, std::string_view host, std::string_view service) {
  return {&l.core(), host, service};
}

/// A resolver that options may replace: for tests, or for a service discovery that is not DNS. Literals are not passed to it.
using resolve_fn = std::function<task<std::vector<socket_address>>(std::string host, std::uint16_t port)>;
/// The one that is used unless another is given.
[[nodiscard]] inline task<std::vector<socket_address>> resolve_by_system(std::string host, std::uint16_t port) {
  co_return co_await resolve(host, port);
}

}  // namespace v0
}  // namespace rollcall
