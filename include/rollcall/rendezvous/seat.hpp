#pragma once
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../client/connect.hpp"
#include "../net/resolve.hpp"
#include "../posix/listener.hpp"
#include "../rt/combine.hpp"
#include "../rt/timer.hpp"
#include "plan.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Where rank 0 serves: exactly at the address that the others are told, unless ?bind= says otherwise (docs/design/rendezvous.md).
class rank_0_seat {
 public:
  static task<listener> take(loop* l, rendezvous_plan plan, resolve_fn resolver, time_point until) {
    if (plan.listen_fd) co_return adopted(plan);
    if (const std::string_view path = unix_path_in(*plan.host); !path.empty()) co_return at_path(std::string(path), plan);
    sourced<std::string> const& where = plan.bind ? plan.bind : plan.host;
    const std::string name = *where;
    const auto port = static_cast<std::uint16_t>(plan.port.value_or(0));
    if (name == "*" || is_localhost(name) || socket_address::looks_like_ip(name)) co_return at_literal(name, port, plan);
    const std::vector<socket_address> places = co_await resolve_until(l, name, port, std::move(resolver), until);
    co_return at_name(*l, places, plan);
  }

  /// The addresses of a name; asks again until there is one: pods get their names late.
  ///
  /// errors    resolve at the limit, naming the host and the resolver's last words.
  static task<std::vector<socket_address>> resolve_until(loop* l, std::string name, std::uint16_t port, resolve_fn resolver,
                                                         time_point until) {
    const time_point begun = l->now();
    back_off pauses;
    connect_failure why;
    why.text = in_quotes(name, 255) + " is still being resolved";
    const connect_reporter reporter(l->core(), host_port(name, port), until, why);
    for (;;) {
      task<std::vector<socket_address>> look = resolver(name, port);
      const result<std::vector<socket_address>> found = co_await as_result(with_deadline(std::move(look), until));
      if (found && !found->empty()) co_return *found;
      if (found) why.text = in_quotes(name, 255) + " has no address";
      if (!found && found.error().code() == errc::cancelled) throw error(found.shared());
      if (!found && found.error().code() != errc::timed_out) why.text = found.error().message();
      const time_point now = l->now();
      if (now >= until || (!found && found.error().code() == errc::invalid)) {
        failure f(errc::resolve, "rendezvous", "rank 0 cannot listen at its own address: " + why.text);
        f.with_peer(host_port(name, port));
        throw error(f.with_times(now - begun, until - begun));
      }
      const time_point next = std::min(until, now + pauses.next());
      co_await sleep_until(next);
    }
  }

  /// What rank 0 itself connects to; a name may lead elsewhere, or nowhere yet.
  [[nodiscard]] static std::string own_host(listener const& at) {
    if (!at.address().is_inet()) return "unix:" + at.host();
    return at.address().is_wildcard() ? "127.0.0.1" : at.host();
  }
  /// Where it listens: "127.0.0.1:29500", "[::1]:29500", "*:29500 (all interfaces)", "unix:/run/job/store".
  [[nodiscard]] static std::string shown(listener const& at) {
    if (!at.address().is_inet()) return "unix:" + at.host();
    return at.address().is_wildcard() ? "*:" + std::to_string(at.port()) + " (all interfaces)" : at.address().to_string();
  }

 private:
  static failure refused(errc code, std::string why, rendezvous_plan const& plan) {
    failure f(code, "rendezvous", std::move(why));
    return f.with_peer(host_port(*plan.host, plan.port.value_or(0))), f;
  }
  static std::string asked_as(sourced<std::string> const& where) { return in_quotes(*where, 255) + " (" + where.origin() + ")"; }
  static std::string use_bind() { return ": say where to listen with ?bind=ADDRESS, or ?bind=* for all interfaces"; }

  static listener adopted(rendezvous_plan const& plan) {
    const auto fd = static_cast<int>(*plan.listen_fd);
    const bool local = is_unix_host(*plan.host);
    result<listener> r = listener::try_adopt(fd, plan.port.value_or(0));
    if (!r) throw error(refused(r.error().code(), r.error().message() + " (" + plan.listen_fd.origin() + ")", plan));
    if (r->address().is_inet() ? !local : own_host(*r) == *plan.host) return std::move(*r);
    const std::string found = r->url();
    static_cast<void>(r->release());
    throw error(refused(
        errc::invalid,
        "descriptor " + std::to_string(fd) + " (" + plan.listen_fd.origin() + ") is " + found + ", which nobody reaches at " +
            asked_as(plan.host),
        plan));
  }
  static listener at_path(std::string const& path, rendezvous_plan const& plan) {
    result<listener> r = try_listen(listen_options().unix_path(path));
    if (r) return std::move(*r);
    failure f = r.error();
    throw error(f.with_detail(f.detail() + "; it is rank 0's address: " + asked_as(plan.host)));
  }
  static listener at_literal(std::string const& name, std::uint16_t port, rendezvous_plan const& plan) {
    result<listener> r = try_listen(listen_options().host(name).port(port));
    if (r) return std::move(*r);
    sourced<std::string> const& where = plan.bind ? plan.bind : plan.host;
    std::string text = r.error().detail() + "; it is rank 0's address: " + asked_as(where);
    if (is_elsewhere(r.error()) && !plan.bind) text += use_bind();
    failure f = r.error();
    throw error(f.with_detail(std::move(text)));
  }
  static bool is_elsewhere(failure const& f) { return f.system_error() == EADDRNOTAVAIL; }
  static bool has_no_family(failure const& f) { return f.system_error() == EAFNOSUPPORT; }

  static listener at_name(loop& l, std::vector<socket_address> const& found, rendezvous_plan const& plan) {
    sourced<std::string> const& where = plan.bind ? plan.bind : plan.host;
    const auto loopback = [](socket_address const& a) { return a.is_loopback(); };
    const std::optional<bool> spans = plan.spans_nodes();
    std::vector<socket_address> places;
    for (const bool last : {false, true})
      std::copy_if(found.begin(), found.end(), std::back_inserter(places),
                   [&](socket_address const& a) { return a.is_loopback() == last; });
    if (!plan.bind && std::all_of(places.begin(), places.end(), loopback)) {
      const std::string what = asked_as(where) + " is " + places.front().host() + " on this host, which ranks on other nodes cannot reach";
      if (spans == true)
        throw error(refused(
            errc::invalid, what + " (a line of /etc/hosts, as Debian writes it?): give rank 0's address instead, or" + use_bind().substr(1),
            plan));
      if (!spans && *plan.world_size > 1) l.core().log(log_level::warning, "rendezvous: " + what);
    }
    std::string tried;
    for (socket_address const& at : places) {
      result<listener> r = try_listen(listen_options().host(at.host()).port(*plan.port));
      if (r) return std::move(*r);
      if (!is_elsewhere(r.error()) && !has_no_family(r.error())) {
        failure f = r.error();
        throw error(f.with_detail(f.detail() + "; it is rank 0's address: " + asked_as(where)));
      }
      tried += (tried.empty() ? "" : ", ") + at.host();
    }
    throw error(refused(errc::invalid,
                        asked_as(where) + " is " + tried + ", which is no address of this host (a Service, or NAT?)" + use_bind(), plan));
  }
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
