#pragma once
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/bytes.hpp"
#include "../core/use_libuv.hpp"
#include "../engine/options.hpp"
#include "../posix/listener.hpp"
#include "../rt/combine.hpp"
#include "detail/hosting.hpp"
#include "detail/roll.hpp"
#include "tcp.hpp"

namespace rollcall {
inline namespace v0 {

/// How tcp_store::create() behaves. Chain the setters: `create_options{}.world_size(64).rank(3)`.
class create_options {
 public:
  create_options() = default;

  /// How many members the job has, 1..2147483647; none, the default: nobody registers and nobody is waited for.
  create_options& world_size(std::optional<std::int64_t> n) noexcept { return world_size_ = n, *this; }
  /// Which of them this is, 0..world_size-1. With it the owner can say who is missing, and of two processes with one rank the second is
  /// refused, on rollcall's servers; without it this member is counted only, like PyTorch's.
  create_options& rank(std::optional<std::int64_t> r) noexcept { return rank_ = r, *this; }
  /// How often the job was restarted, ≥ 0, where its store outlives it: registrations of lower attempts do not count as a second time.
  create_options& attempt(std::int64_t n) noexcept { return attempt_ = n, *this; }
  /// What tells this job from others that may come to the same address. A master that has one refuses who has another one, before it
  /// counts or does anything; who has none is let in. Only rollcall's servers and clients look at it. None, the default: see rank().
  create_options& run_id(std::optional<std::string> id) { return run_id_ = std::move(id), *this; }
  /// Whether this process claims its rank also where it does not register: a second process with the same rank, in the same attempt, is
  /// refused. Members that register do it anyway, unless they are multi_tenant(). Default false.
  create_options& claims_rank(bool on) noexcept { return claims_rank_ = on, *this; }
  /// Whether this process serves the store. Default false.
  create_options& is_master(bool on) noexcept { return is_master_ = on, *this; }
  /// Whether to register, and for the master to return only when all have. Default true. As in the reference, false means that this
  /// process does not register at all (protocol 11; seen with PyTorch 2.13).
  create_options& wait_for_workers(bool on) noexcept { return wait_for_workers_ = on, *this; }
  /// Serve on this descriptor, bound or listening already, instead of binding one. Until the server stands it is the caller's (also where
  /// a tenant's server is shared instead); then it is closed with the server, also when create() fails later.
  create_options& listen_fd(std::optional<int> fd) noexcept { return listen_fd_ = fd, *this; }
  /// Which back end a master serves with: libuv, on this loop, or the blocking one, on a thread of its own, with the same answers. Unless
  /// given, USE_LIBUV in the environment decides, else libuv. serve_options::stats() belongs to the blocking server's thread.
  create_options& use_libuv(std::optional<bool> on) noexcept { return use_libuv_ = on, *this; }
  /// Masters with this flag on one loop share the server of one port (not 0); it ends with the last of them. Default false.
  create_options& multi_tenant(bool on) noexcept { return multi_tenant_ = on, *this; }
  /// Over all steps. A duration is also the limit of the store's operations, unless client() says otherwise. Default 300 s.
  create_options& timeout(deadline d) noexcept { return timeout_ = d, *this; }
  /// What the master listens on, as listen_options::host() takes it; "*" for all interfaces. Default: exactly the announced host.
  create_options& bind(std::string host) { return bind_ = std::move(host), *this; }
  create_options& client(client_options o) noexcept { return client_ = o, *this; }
  create_options& serve(serve_options o) noexcept { return serve_ = o, *this; }
  /// Resolves names, also the one to listen on.
  create_options& resolver(resolve_fn f) { return resolver_ = std::move(f), *this; }

  [[nodiscard]] std::optional<std::int64_t> world_size() const noexcept { return world_size_; }
  [[nodiscard]] std::optional<std::int64_t> rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t attempt() const noexcept { return attempt_; }
  [[nodiscard]] std::optional<std::string> const& run_id() const noexcept { return run_id_; }
  [[nodiscard]] bool claims_rank() const noexcept { return claims_rank_; }
  [[nodiscard]] bool is_master() const noexcept { return is_master_; }
  [[nodiscard]] bool wait_for_workers() const noexcept { return wait_for_workers_; }
  [[nodiscard]] std::optional<int> listen_fd() const noexcept { return listen_fd_; }
  [[nodiscard]] std::optional<bool> use_libuv() const noexcept { return use_libuv_; }
  [[nodiscard]] bool multi_tenant() const noexcept { return multi_tenant_; }
  [[nodiscard]] deadline timeout() const noexcept { return timeout_; }
  [[nodiscard]] std::optional<std::string> const& bind() const noexcept { return bind_; }
  [[nodiscard]] client_options client() const noexcept {
    if (client_) return *client_;
    return timeout_.is_point() ? client_options() : client_options().timeout(timeout_);
  }
  [[nodiscard]] serve_options const& serve() const noexcept { return serve_; }
  [[nodiscard]] resolve_fn const& resolver() const noexcept { return resolver_; }

 private:
  std::optional<std::int64_t> world_size_;
  std::optional<std::int64_t> rank_;
  std::int64_t attempt_ = 0;
  std::optional<std::string> run_id_;
  bool claims_rank_ = false;
  bool is_master_ = false;
  bool wait_for_workers_ = true;
  std::optional<bool> use_libuv_;
  bool multi_tenant_ = false;
  std::optional<int> listen_fd_;
  deadline timeout_ = std::chrono::seconds(300);
  std::optional<std::string> bind_;
  std::optional<client_options> client_;
  serve_options serve_;
  resolve_fn resolver_ = resolve_by_system;
};
static_assert(await_safe<create_options>);

namespace detail {

/// The steps of tcp_store::create().
class creation {
 public:
  /// `seat`: where a master serves, if it listens already. `limit`: what errors call the limit, of which a part may be over.
  static task<tcp_store> run(loop_core* core, std::string host, int port, create_options o, listener seat = {},
                             std::optional<duration> limit = {}) {
    const time_point begun = core->now();
    const time_point until = o.timeout().from(begun);
    const duration shown = limit.value_or(o.timeout().length(begun));
    check(host, port, o);
    if (o.is_master()) o.use_libuv(choose_use_libuv(o.use_libuv()).value());
    std::shared_ptr<server_share> share;
    if (o.is_master()) {
      share = co_await own_server(core, host, port, o, until, std::move(seat));
      port = share->hosted().port();
    }
    client_ptr client = co_await connect_client(core, host, port, until, o.client(), o.resolver());
    tcp_store store(std::move(client), share);
    if (o.run_id() && (!share || o.multi_tenant())) co_await check_run(store, *o.run_id(), until);
    if (!o.world_size() || (!o.wait_for_workers() && (!o.claims_rank() || o.multi_tenant()))) co_return store;
    co_await introduce(store, o, until);
    if (share && o.wait_for_workers()) co_await wait_for_all(core, share, store, o, until, shown);
    co_return store;
  }

  /// That the server is not another run's. One that has no name is anybody's.
  static task<> check_run(tcp_store store, std::string run, time_point until) {
    if (!store.server_is_rollcall()) co_return;
    const std::string text = co_await store.fetch_raw(job_key, until);
    const std::optional<job_notice> job = job_notice::parse(text);
    if (!job || job->run.empty() || job->run == run) co_return;
    std::string why = "the store there is of run '";
    append_printable(why, job->run, 255);
    why += "', and this is run '";
    append_printable(why, run, 255);
    failure f = failed(errc::failed, why + "': two jobs on one address; give each job one of its own");
    throw error(f.with_peer(store.client_->endpoint()));
  }

  /// For a master that does not wait for the others: completes, with why, when those who claim ranks at its server are no job, as long as
  /// not all ranks are there. Else never, and not after `store` has given up its server.
  static task<failure> conflict(tcp_store store, std::int64_t world) {
    loop_core& core = store.home().core();
    event never(&core);
    if (!store.owns_server()) co_await never.wait();
    const auto share = std::static_pointer_cast<server_share>(store.owner_);
    registration_watch members(share->hosted(), world, false);
    co_await members.decided();
    const std::string problem = members.problem();
    if (problem.empty()) co_await never.wait();
    failure f = failed(errc::failed, problem + what_to_do);
    co_return f.with_peer(store.client_->endpoint());
  }

 private:
  static constexpr std::int64_t max_world = 2147483647;
  static constexpr std::chrono::seconds report_every{10};

  static constexpr char const* what_to_do =
      " (two jobs need an address each, or a run_id each; a restarted process gives a higher attempt, create_options::attempt or "
      "ROLLCALL_ATTEMPT; one that registers anew multi_tenant)";

  [[nodiscard]] static failure failed(errc code, std::string detail) { return failure(code, "create", std::move(detail)); }

  /// Everything that can be told before a socket is opened (field log F33).
  static void check(std::string const& host, int port, create_options const& o) {
    const auto refuse = [](std::string why) { throw error(failed(errc::invalid, std::move(why))); };
    const auto text = [](std::int64_t n) { return std::to_string(n); };
    if (host.empty()) refuse("the host is empty");
    if (unix_path_in(host).empty() && (port < (o.is_master() ? 0 : 1) || port > 65535))
      refuse("port " + text(port) + " is not in " + (o.is_master() ? "0..65535" : "1..65535"));
    const std::int64_t world = o.world_size().value_or(max_world);
    if (world < 1 || world > max_world) refuse("world size " + text(world) + " is not in 1.." + text(max_world));
    if (o.rank() && (*o.rank() < 0 || *o.rank() >= world))
      refuse("rank " + text(*o.rank()) + " is not in 0.." + text(world - 1) + (o.world_size() ? " (world size " + text(world) + ")" : ""));
    if (o.run_id() && (o.run_id()->empty() || o.run_id()->size() > 255)) refuse("the run_id has not 1..255 bytes");
    if (o.run_id() && o.is_master() && !o.world_size()) refuse("a master's run_id needs a world_size");
    if (o.attempt() < 0) refuse("attempt " + text(o.attempt()) + " is negative");
    if (o.listen_fd() && !o.is_master()) refuse("a descriptor to listen on (" + text(*o.listen_fd()) + ") is given, but is_master is not");
  }

  static task<std::shared_ptr<server_share>> own_server(loop_core* core, std::string host, int port, create_options o, time_point until,
                                                        listener seat) {
    hosting& here = core->attached<hosting>();
    const auto shared = [&] { return o.multi_tenant() && port != 0 ? here.find(port) : nullptr; };
    hosted_server* server = shared();
    if (!server) {
      listener at = std::move(seat);
      try {
        if (!at) at = co_await listen_on(host, port, o, until);
      } catch (error const&) {
        server = shared();  // another tenant may have been quicker while a name was resolved
        if (!server) throw;
      }
      if (const std::string w = o.world_size() ? backlog_warning(static_cast<std::size_t>(*o.world_size())) : ""; !w.empty())
        core->log(log_level::warning, w);
      std::string job;
      if (o.world_size()) job = job_notice(*o.world_size(), o.run_id().value_or("")).text();
      if (!server) server = &here.serve(*core, std::move(at), o.serve(), o.multi_tenant(), *o.use_libuv(), job);
    }
    co_return std::make_shared<server_share>(*server);
  }

  static task<listener> listen_on(std::string host, int port, create_options o, time_point until) {
    const std::string_view path = unix_path_in(host);
    if (o.listen_fd()) {
      listener at = listener::adopt(*o.listen_fd(), path.empty() ? port : 0);
      if (at.address().is_inet() == path.empty()) co_return at;
      const std::string found = at.url();
      static_cast<void>(at.release());
      throw error(failed(errc::invalid, "descriptor " + std::to_string(*o.listen_fd()) + " is " + found + ", which nobody can reach as " + host));
    }
    if (!path.empty()) co_return listen(listen_options().unix_path(std::string(path)));
    const std::string name = o.bind().value_or(host);
    if (name.empty() || name == "*" || is_localhost(name) || socket_address::looks_like_ip(name))
      co_return listen(listen_options().host(name).port(port));
    // A name: resolved in the thread pool, where listen() would block the loop.
    const std::vector<socket_address> places = co_await with_deadline(o.resolver()(name, static_cast<std::uint16_t>(port)), until);
    failure_ptr first;
    for (socket_address const& at : places) {
      result<listener> r = try_listen(listen_options().host(at.host()).port(port));
      if (r) co_return std::move(*r);
      if (!first) first = r.shared();
      // An address of another host; any other error counts: clients would try this address first.
      if (r.error().system_error() != EADDRNOTAVAIL && r.error().system_error() != EAFNOSUPPORT) break;
      first = r.shared();
    }
    if (!first) throw error(failed(errc::resolve, "'" + name + "' has no address"));
    failure f = *first;
    throw error(f.with_detail(f.detail() + "; it was asked for as '" + name + "', create_options::bind listens elsewhere"));
  }

  /// In one write: the record of who this is, the claim of its rank, the reference's count.
  static task<> introduce(tcp_store store, create_options o, time_point until) {
    const bool counts = o.wait_for_workers();
    const bool tells = o.rank() && store.server_is_rollcall();
    if (!tells && !counts) co_return;
    if (!tells) {
      const std::int64_t number = co_await store.add_raw(worker_count_key, 1, until);
      co_await check_number(store, o, number, until);
      co_return;
    }
    const std::string where = worker_record::this_process();
    worker_record me;
    me.rank = *o.rank();
    me.world = *o.world_size();
    me.attempt = o.attempt();
    // Who only claims its rank may do so again: another rendezvous of the same process.
    me.identity = o.multi_tenant() || !counts ? store.home().core().attached<hosting>().identity() : store.identity();
    me.where = where;
    const std::string mine = me.text();
    const std::string claim_key = worker_claim_key(me.rank);
    operation<void> record = store.append_raw(worker_records_key, mine, until);
    operation<std::string> claim = store.compare_set_raw(claim_key, "", mine, until);
    operation<std::string> look = store.fetch_raw(job_key, until);
    operation<std::int64_t> count = store.add_raw(worker_count_key, 1, until);
    if (o.multi_tenant()) {
      const auto answers = co_await when_all(std::move(record), std::move(count));
      co_await check_number(store, o, std::get<1>(answers), until);
      co_return;
    }
    std::string holder, job;
    std::int64_t number = 0;
    if (counts) {
      auto answers = co_await when_all(std::move(record), std::move(claim), std::move(look), std::move(count));
      holder = std::get<1>(answers);
      job = std::get<2>(answers);
      number = std::get<3>(answers);
    } else {
      auto answers = co_await when_all(std::move(record), std::move(claim), std::move(look));
      holder = std::get<1>(answers);
      job = std::get<2>(answers);
    }
    const auto refuse = [&](std::string const& why) {
      failure f = failed(errc::failed, why + what_to_do);
      return error(f.with_peer(store.client_->endpoint()).with_effect(effect::applied));
    };
    if (const auto known = job_notice::parse(job); known && known->world != me.world) throw refuse(worker_roll::world_text(me, known->world));
    while (holder != mine) {
      const std::optional<worker_record> other = worker_record::parse(holder);
      if (!other || other->identity == me.identity) break;
      const std::string_view its_place = other->where.substr(0, other->where.find(','));
      if (other->attempt == me.attempt) throw refuse(worker_roll::twice_text(me.rank, its_place, where));
      if (other->attempt > me.attempt)
        throw refuse("rank " + std::to_string(me.rank) + " of attempt " + std::to_string(me.attempt) + " is superseded: attempt " +
                     std::to_string(other->attempt) + " is there, " + worker_roll::printable(its_place));
      const std::string before = std::move(holder);
      holder = co_await store.compare_set_raw(claim_key, before, mine, until);
    }
    if (counts) co_await check_number(store, o, number, until);
  }

  /// The owner judges itself. Others know that they are too many when the count says so, unless several rounds share the server.
  static task<> check_number(tcp_store store, create_options o, std::int64_t number, time_point until) {
    if (store.owner_ || number <= *o.world_size() || o.multi_tenant() || o.attempt() > 0) co_return;
    std::string why;
    if (store.server_is_rollcall()) {
      worker_roll members(*o.world_size());
      members.read(co_await store.fetch_raw(worker_records_key, until));
      why = members.problem();
    }
    if (why.empty())
      why = "number " + std::to_string(number) + " to register in a world of " + std::to_string(*o.world_size()) +
            ": two jobs on one port, or a process registered twice";
    failure f = failed(errc::failed, why + what_to_do);
    throw error(f.with_peer(store.client_->endpoint()).with_effect(effect::applied));
  }

  static task<> wait_for_all(loop_core* core, std::shared_ptr<server_share> share, tcp_store store, create_options o, time_point until,
                             duration limit) {
    registration_watch members(share->hosted(), *o.world_size(), o.multi_tenant());
    const auto give_up = [&](errc code, std::string why) {
      failure f = failed(code, std::move(why));
      return error(f.with_peer(store.client_->endpoint()));
    };
    for (;;) {
      const time_point now = core->now();
      const time_point next = until - now > report_every ? now + report_every : until;
      const result<void> decided = co_await as_result(with_deadline(members.decided(), next));
      if (decided) break;
      if (decided.error().code() != errc::timed_out) throw error(decided.shared());
      if (core->now() >= until) throw give_up(errc::timed_out, members.missing_text(duration_text(limit)));
      core->log(log_level::info, members.missing_text({}));
    }
    if (std::string problem = members.problem(); !problem.empty()) throw give_up(errc::failed, std::move(problem));
  }
};

}  // namespace detail

/// The twin of the reference's constructor (protocol 11, 12): a master serves on `host` and `port`; everybody connects to them; where a
/// world size is given, everybody registers on `init/`, and the master returns when all have, PyTorch's workers included.
///
/// host      what the others are told, 1 byte or more; the master listens on exactly this address (create_options::bind). "unix:PATH" is
///           a unix socket, where the port is not looked at.
/// port      0..65535 for the master (0: the system chooses, tcp_store::port() tells), 1..65535 for the others.
/// completes for the master when the last member registers: it sees that in its own server, it does not poll. For others when they are
///           registered.
/// limit     create_options::timeout, one for all steps, exact to some milliseconds.
/// errors    timed_out: "37 of 64 joined after 30 s: missing 3, 17-42". failed: a rank registered twice, two world sizes, more members
///           than the world has, a server of another run (run_id), a rank that a higher attempt has; it names them. invalid, before any
///           socket: world size, rank or port out of range, a master's run_id without a world size. address_in_use, also for another
///           loop of this process. What connect() throws. After an error nothing is served.
/// cancel    as if never called, except that a registration that was sent stays counted.
/// lifetime  a master's server ends with the last copy of its store (see drain()); all of them must end before the loop does.
inline task<tcp_store> tcp_store::create(loop& l, std::string_view host, int port, create_options const& options) {
  return detail::creation::run(&l.core(), std::string(host), port, options);
}

}  // namespace v0
}  // namespace rollcall
