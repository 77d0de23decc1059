#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/locate.hpp"
#include "rendezvous/options.hpp"
#include "rendezvous/plan.hpp"
#include "rendezvous/port_board.hpp"
#include "rendezvous/schemes.hpp"
#include "rendezvous/seat.hpp"
#include "rendezvous/session.hpp"
#include "stores/create.hpp"
#include "stores/file.hpp"
#include "stores/prefix.hpp"
#include "stores/store.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// The steps of rendezvous().
class rendezvous_opening {
 public:
  static task<rendezvous_session> run(loop* l, std::string url, rendezvous_options o) {
    const time_point begun = l->now();
    rendezvous_plan plan = decide(*l, url, o);
    const duration limit = plan.timeout.value_or(default_limit);
    const time_point until = deadline(limit).from(begun);
    if (plan.scheme == "tcp") co_return co_await open_tcp(l, std::move(plan), std::move(o), limit, until);
    if (plan.scheme == "file") co_return co_await open_file(l, std::move(plan), std::move(o), limit, until);
    task<any_store> opening = (*o.schemes().find(plan.scheme))(*l, plan, until);
    any_store store = co_await with_deadline(std::move(opening), until);
    co_return session_of(*l, std::move(plan), std::move(store), std::nullopt, o);
  }

  static task<any_store> look(loop* l, std::string url, rendezvous_options o) {
    const store_location at = try_locate_store(url, o.environment()).value();
    const duration limit = o.arguments().timeout().value_or(at.timeout.value_or(default_limit));
    const time_point until = deadline(limit).from(l->now());
    if (at.scheme == "file") {
      file_options how = o.file();
      how.timeout(o.client(limit).timeout()).create(false).member(false);
      if (at.run_id) how.run_id(*at.run_id);
      file_store file = co_await file_store::open(*l, at.path, until, how);
      co_return in_generation(any_store(file), at.generation);
    }
    const bool local = detail::is_unix_host(*at.host);
    int port = static_cast<int>(at.port.value_or(0));
    if (port == 0 && !local) {
      std::optional<std::string> run;
      if (at.run_id) run = *at.run_id;
      const seat_query asked(*at.host, std::move(run), port_board::file(*at.port_file));
      port = co_await find_port(l, asked, o.client(limit), o.resolver(), until);
    }
    tcp_store store = co_await tcp_store::connect(*l, *at.host, port, until, o.client(limit), o.resolver());
    if (at.run_id) co_await creation::check_run(store, *at.run_id, until);
    co_return in_generation(any_store(store), at.generation);
  }

 private:
  static constexpr std::chrono::seconds default_limit{300};

  /// A port that the board of a run tells.
  class seat_query {
   public:
    seat_query(std::string h, std::optional<std::string> r, port_board b) : host(std::move(h)), run(std::move(r)), board(std::move(b)) {}
    std::string host;
    std::optional<std::string> run;  // none: any
    port_board board;
  };

  static rendezvous_plan decide(loop& l, std::string const& url, rendezvous_options const& o) {
    rendezvous_plan plan = plan_rendezvous(url, o.arguments(), o.environment());
    // Once a node is enough.
    if (plan.local_rank.value_or(0) == 0)
      for (std::string const& w : plan.warnings) l.core().log(log_level::warning, "rendezvous: " + w);
    if (!plan.role.empty())
      l.core().log(log_level::info, "rendezvous: rank " + show(*plan.rank) + " of " + show(*plan.world_size) + " at " +
                                        host_port(*plan.host, plan.port.value_or(0)) + ": " + plan.role);
    return plan;
  }

  static any_store in_generation(any_store s, sourced<std::string> const& generation) {
    if (generation) return any_store(prefix_store(std::move(s), *generation));
    return s;
  }

  static task<rendezvous_session> open_file(loop* l, rendezvous_plan plan, rendezvous_options o, duration limit, time_point until) {
    file_options how = o.file();
    how.timeout(o.client(limit).timeout()).world_size(static_cast<int>(*plan.world_size));
    how.rank(static_cast<int>(*plan.rank)).attempt(static_cast<int>(plan.attempt.value_or(0)));
    if (plan.run_id) how.run_id(*plan.run_id);
    file_store file = co_await file_store::open(*l, plan.path, until, how);
    rendezvous_session s = session_of(*l, std::move(plan), any_store(file), std::nullopt, o);
    s.state_->file = file;
    s.state_->url = "file://" + percent_encoded(file.path(), path_characters);
    co_return s;
  }

  static rendezvous_session session_of(loop& l, rendezvous_plan plan, any_store store, std::optional<tcp_store> tcp,
                                       rendezvous_options const& o) {
    store = in_generation(std::move(store), plan.generation);
    auto state = std::make_shared<session_state>(l, std::move(plan), std::move(store));
    state->tcp = std::move(tcp);
    state->stop_when_lost = o.stop_when_lost();
    if (!state->tcp) {
      state->url = state->plan.url.to_string();
    } else if (const std::string_view path = unix_path_in(*state->plan.host); !path.empty()) {
      state->url = "unix://" + percent_encoded(path, path_characters);
    } else {
      state->url = "tcp://" + host_port(*state->plan.host, state->tcp->port());
    }
    return rendezvous_session(std::move(state));
  }

  static task<rendezvous_session> open_tcp(loop* l, rendezvous_plan plan, rendezvous_options o, duration limit, time_point until) {
    port_board board = o.board();
    if (!board && plan.port_file) board = port_board::file(*plan.port_file);
    create_options how;
    how.world_size(*plan.world_size).rank(*plan.rank).attempt(plan.attempt.value_or(0)).is_master(plan.serves).timeout(until);
    // A launcher's store is not waited for: whoever else uses it counts its own workers.
    how.wait_for_workers(o.wait_for_workers() && !plan.launcher_serves).use_libuv(plan.use_libuv.value_or(true));
    how.client(o.client(limit)).serve(o.serve()).resolver(o.resolver());
    how.run_id(plan.run_id.value()).claims_rank(!plan.launcher_serves);
    std::string host = *plan.host;
    int port = static_cast<int>(plan.port.value_or(0));
    listener at;
    std::string notice;  // what this process tells of its port
    std::string listens_at;
    if (plan.serves) {
      at = co_await rank_0_seat::take(l, plan, o.resolver(), until);
      if (port == 0 && board) notice = port_notice(at.port(), plan.run_id.value_or("")).text();
      listens_at = rank_0_seat::shown(at);
      host = rank_0_seat::own_host(at);
      port = at.port();
      if (!notice.empty()) co_await board.write(notice, until);
    } else if (port == 0 && !plan.is_unix()) {
      const seat_query asked(host, plan.run_id.value_or(""), board);
      port = co_await find_port(l, asked, o.client(limit), o.resolver(), until);
    }
    const result<tcp_store> made = co_await as_result(creation::run(&l->core(), host, port, how, std::move(at), limit));
    if (!made) {
      if (!notice.empty()) {
        task<> taking = board.take_down(notice);
        const result<void> taken = co_await as_result(std::move(taking));
        if (!taken) board.erase(notice);  // stopped
      }
      failure f = explained(made.error(), plan);
      if (f.limit() >= duration::zero()) f.with_times(limit - (until - l->now()), limit);  // of the whole, not of the last step
      throw error(std::move(f));
    }
    rendezvous_session s = session_of(*l, std::move(plan), any_store(*made), *made, o);
    s.state_->board = std::move(board);
    s.state_->notice = std::move(notice);
    s.state_->listens_at = std::move(listens_at);
    s.state_->looks_at_claims = made->owns_server() && !how.wait_for_workers();
    co_return s;
  }

  /// What rank 0 has told of its port; asks again where nobody answers there, for that may be from an earlier run.
  static task<int> find_port(loop* l, seat_query asked, client_options client, resolve_fn resolver, time_point until) {
    std::string why;
    for (;;) {
      const result<std::string> text = co_await as_result(asked.board.read(until));
      if (!text) {
        failure f = text.error();
        throw error(f.with_detail(f.detail() + (why.empty() ? "" : "; " + why)));
      }
      if (const std::optional<port_notice> told = port_notice::read(*text); !told) {
        why = "what is there is no port that rank 0 has written: " + in_quotes(*text);
      } else if (asked.run && told->run != *asked.run) {
        why = "what is there is of run " + in_quotes(told->run) + ", and this is run " + in_quotes(*asked.run);
      } else {
        const time_point slice = std::min(until, l->now() + std::chrono::seconds(2));
        const result<tcp_store> there = co_await as_result(tcp_store::connect(*l, asked.host, told->port, slice, client, resolver));
        if (there) {
          there->close();
          co_return told->port;
        }
        if (there.error().code() == errc::cancelled) throw error(there.shared());
        why = there.error().message();
      }
      if (l->now() >= until) {
        failure f(errc::timed_out, "rendezvous", "rank 0 has told no port at which it answers: " + why);
        throw error(f.with_peer(host_port(asked.host, 0)));
      }
      const time_point next = std::min(until, l->now() + std::chrono::milliseconds(50));
      co_await sleep_until(next);
    }
  }

  static failure explained(failure f, rendezvous_plan const& plan) {
    if (plan.serves || (f.code() != errc::refused && f.code() != errc::resolve && f.code() != errc::timed_out)) return f;
    std::string text = f.detail() + "; it is where " + (plan.launcher_serves ? "the launcher" : "rank 0") + " is to serve: host from " +
                       plan.host.origin() + (plan.is_unix() ? "" : ", port from " + plan.port.origin());
    for (std::string const& w : plan.warnings) text += "; " + w;
    return f.with_detail(std::move(text)), f;
  }
};

}  // namespace detail

/// Meets the other ranks of a job: finds out which rank this is and where the others are (the caller's options beat the URL, the URL beats
/// the environment), serves where this is rank 0, connects, registers, and waits until all are there.
///
/// url       tcp://HOST:PORT?rank=&world_size=..., unix:///PATH?..., file:///PATH?..., env://, auto://, or a scheme of options.schemes().
/// completes for rank 0 when all have registered, for others when they are.
/// limit     rendezvous_options::timeout, else ?timeout=, else 300 s: one for all steps, exact to some milliseconds.
/// errors    invalid, before anything is opened: all that is wrong or missing, in one text. invalid: rank 0's address leads to no interface
///           of this host, or only to loopback although ranks are on other nodes (?bind=). failed: another process is there with this
///           rank in this attempt, or rank 0 is of another run. What tcp_store::create() throws.
/// cancel    as if never called, except that a registration that was sent stays counted.
/// lifetime  the session, and all copies of its store, must end before the loop does.
[[nodiscard]] inline task<rendezvous_session> rendezvous(loop& l, std::string_view url, rendezvous_options options = {}) {
  return detail::rendezvous_opening::run(&l, std::string(url), std::move(options));
}

/// Opens the store that a rendezvous URL means, without being one of its ranks: to look at it, or to put something into it.
///
/// url       as for rendezvous(); ranks and sizes are not needed. Not for schemes of the caller's.
/// limit     rendezvous_options::timeout, else ?timeout=, else 300 s.
/// errors    invalid, before anything is opened: all that is wrong or missing. What tcp_store::connect() throws.
/// cancel    as if never called.
[[nodiscard]] inline task<any_store> open_store(loop& l, std::string_view url, rendezvous_options options = {}) {
  return detail::rendezvous_opening::look(&l, std::string(url), std::move(options));
}

}  // namespace v0
}  // namespace rollcall
