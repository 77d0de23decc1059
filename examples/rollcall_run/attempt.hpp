#pragma once
// One start of all ranks of this node, to the end of the last.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <optional>
#include <rollcall/core/ranges.hpp>
#include <rollcall/net/process.hpp>
#include <rollcall/posix/listener.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/timer.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "guard.hpp"
#include "output.hpp"
#include "settings.hpp"

namespace run {

namespace rc = rollcall;
using namespace std::chrono_literals;

constexpr int listen_fd = 3;  // what ROLLCALL_LISTEN_FD tells rank 0

class rank {
 public:
  rank(int number, rank_output out, rc::process p, guard& g)
      : number_(number), output_(std::move(out)), process_(std::move(p)), guard_(g) {}
  rank(rank const&) = delete;
  rank& operator=(rank const&) = delete;
  ~rank() { signal(SIGKILL); }

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] rank_output& output() { return output_; }
  [[nodiscard]] rc::process& process() { return process_; }
  [[nodiscard]] std::optional<rc::exit_status> const& ended() const { return ended_; }
  void has_ended(rc::exit_status how) { ended_ = how; }

  // To the rank and all it has started.
  void signal(int number) {
    if (process_.has_exited()) return;
    if (::kill(-process_.pid(), number) != 0) process_.kill(number);  // not yet the leader of its group
  }
  void kill_what_it_left_behind() {
    ::kill(-process_.pid(), SIGKILL);
    guard_.forget(process_.pid());
  }

 private:
  int number_;
  rank_output output_;
  rc::process process_;
  guard& guard_;
  std::optional<rc::exit_status> ended_;
};

/// "ranks 0-2, 4-7 were killed by SIGTERM"
inline std::string how_they_ended(std::vector<int> const& ranks, rc::exit_status how) {
  if (ranks.size() == 1) return fmt::format("rank {} {}", ranks.front(), rc::to_string(how));
  std::string text = rc::to_string(how);
  if (text.starts_with("was ")) text.replace(0, 3, "were");
  return fmt::format("ranks {} {}", rc::ranges_of(ranks), text);
}

class attempt {
 public:
  attempt(rc::loop& l, settings const& s, guard& g, terminals& t, log_folder& logs, int number)
      : loop_(l), settings_(s), guard_(g), terminals_(t), logs_(logs), number_(number), begun_(l.now()), failed_(l) {}

  /// `at`: where the store is; none on other nodes than node 0. An exception here leaves nothing running.
  void start(rc::listener const& at) {
    for (int local = 0; local < settings_.ranks; ++local) {
      const int number = settings_.first_rank() + local;
      rank_output out(terminals_, logs_, number_, number, settings_.quiet);
      const rc::process_options how = command(local, at);
      try {
        ranks_.emplace_back(number, std::move(out), rc::process::spawn(loop_, how), guard_);
      } catch (rc::error const& e) {
        throw std::runtime_error(fmt::format("rank {} cannot be started: {}; ulimit -n and -u say how many descriptors and processes there may be",
                                             number, e.what()));
      }
    }
  }

  /// Completes when the last rank has ended. After the first failure the others are ended.
  rc::task<> run() {
    rc::scope helpers(loop_);
    rc::scope followers(loop_);
    helpers.spawn(end_the_others());
    for (rank& r : ranks_) followers.spawn(follow(r));
    co_await followers.join();
    helpers.request_stop();
    co_await helpers.join();
    took_ = loop_.now() - begun_;
  }

  [[nodiscard]] bool failed() const { return first_failure_ != nullptr; }
  [[nodiscard]] int exit_status() const { return failed() ? first_failure_->ended()->shell_code() : EXIT_SUCCESS; }

  void pass_on(int signal) {
    for (rank& r : ranks_) r.signal(signal);
  }
  /// The same, with a line that says whom it concerned.
  rc::task<> end_with(int signal) {
    std::vector<int> running;
    for (rank& r : ranks_)
      if (!r.process().has_exited()) running.push_back(r.number());
    if (running.empty()) co_return;
    pass_on(signal);
    std::string text = fmt::format("still running: {}; sent {}", rc::ranges_of(running), rc::signal_name(signal));
    co_await terminals_.say(std::move(text));
  }

  /// How all of them ended, and the last words of the one that failed first.
  rc::task<> report() {
    std::string text;
    const auto say = [&text](std::string const& line) { text += fmt::format("rollcall-run: {}\n", line); };
    say(fmt::format("{} rank{} of {} ended after {:.1f} s", ranks_.size(), ranks_.size() == 1 ? "" : "s", settings_.world(),
                    std::chrono::duration<double>(took_).count()));
    std::vector<std::pair<rc::exit_status, std::vector<int>>> kinds;
    for (rank const& r : ranks_) {
      const rc::exit_status how = *r.ended();
      const auto known = std::find_if(kinds.begin(), kinds.end(), [how](auto const& kind) {
        return kind.first.exit_code == how.exit_code && kind.first.term_signal == how.term_signal;
      });
      if (known == kinds.end()) {
        kinds.push_back({how, {r.number()}});
      } else {
        known->second.push_back(r.number());
      }
    }
    for (auto const& [how, who] : kinds) say(fmt::format("  {}", how_they_ended(who, how)));
    if (!failed()) {
      co_await terminals_.write(STDERR_FILENO, std::move(text));
      co_return;
    }
    std::string words;
    for (std::string const& line : first_failure_->output().last_lines())
      words += fmt::format("  {}{}\n", first_failure_->output().prefix(), line);
    say(fmt::format("rank {} failed first; {}", first_failure_->number(), words.empty() ? "it said nothing" : "its last lines:"));
    text += words;
    co_await terminals_.write(STDERR_FILENO, std::move(text));
  }

 private:
  [[nodiscard]] rc::process_options command(int local, rc::listener const& at) const {
    settings const& s = settings_;
    const auto number = [](std::int64_t n) { return std::to_string(n); };
    rc::process_options o("/proc/self/exe");
    o.arg("--exec-child").arg(number(getpid())).arg("--").args(s.command);
    o.out(rc::stdio::pipe).err(rc::stdio::pipe);
    guard_.mark(o);

    const int rank = s.first_rank() + local;
    o.env("RANK", number(rank)).env("WORLD_SIZE", number(s.world()));
    o.env("LOCAL_RANK", number(local)).env("LOCAL_WORLD_SIZE", number(s.ranks));
    o.env("GROUP_RANK", number(s.node_rank)).env("GROUP_WORLD_SIZE", number(s.nodes));
    o.env("ROLE_RANK", number(rank)).env("ROLE_WORLD_SIZE", number(s.world())).env("ROLE_NAME", "default");
    const bool here = s.nodes == 1 && !at.address().is_wildcard();
    o.env("MASTER_ADDR", here ? at.host() : s.nodes == 1 ? "127.0.0.1" : s.master_addr);
    o.env("MASTER_PORT", number(s.owns_port() ? at.port() : s.master_port));
    o.env("TORCHELASTIC_RESTART_COUNT", number(number_)).env("TORCHELASTIC_MAX_RESTARTS", number(s.max_restarts));
    o.env("TORCHELASTIC_RUN_ID", s.run_id).env("TORCHELASTIC_USE_AGENT_STORE", s.host_store ? "True" : "False");
    o.env("ROLLCALL_ATTEMPT", number(number_));
    o.unset_env("ROLLCALL_LISTEN_FD");  // an outer launcher's promise does not hold here
    if (rank == 0 && !s.host_store) o.inherit_fd(at.fd(), listen_fd).env("ROLLCALL_LISTEN_FD", number(listen_fd));
    return o;
  }

  rc::task<> copy_lines(rc::line_reader& from, int terminal, rank& r) {
    for (;;) {
      std::optional<std::string> line = co_await from.next_line();
      if (!line) co_return;
      co_await r.output().line(terminal, std::move(*line));
    }
  }

  rc::task<> copy_output(rank& r, rc::event& all_said) {
    co_await rc::when_all(copy_lines(r.process().out(), STDOUT_FILENO, r), copy_lines(r.process().err(), STDERR_FILENO, r));
    all_said.set();
  }

  rc::task<> follow(rank& r) {
    rc::event all_said(loop_);
    rc::scope output(loop_);
    output.spawn(copy_output(r, all_said));
    const rc::exit_status how = co_await r.process().exited();
    r.has_ended(how);
    const bool failed_first = !how.success() && !failed();
    if (failed_first) {
      first_failure_ = &r;
      failed_.set();
    }
    // Its last words; what it has started may hold its output open for longer. While nobody reads ours, the time does not count.
    for (rc::duration left = std::max<rc::duration>(settings_.grace(), 1s); !all_said.is_set() && left > 0s;) {
      constexpr rc::duration step = 50ms;
      const bool held_up = terminals_.held_up();
      const rc::result<void> said = co_await rc::as_result(rc::with_deadline(all_said.wait(), step));
      if (!said && said.error().code() != rc::errc::timed_out) throw rc::error(said.shared());
      if (!held_up) left -= step;
    }
    r.kill_what_it_left_behind();
    output.request_stop();
    co_await output.join();
    if (failed_first) {
      std::string text = fmt::format("rank {} {}", r.number(), rc::to_string(how));
      co_await terminals_.say(std::move(text));
    }
  }

  // After the first failure the others get time to say why they, too, cannot go on.
  rc::task<> end_the_others() {
    co_await failed_.wait();
    co_await rc::sleep_for(settings_.grace());
    rc::scope told(loop_);  // told when somebody reads it; the ranks do not wait for that
    told.spawn(end_with(SIGTERM));
    co_await rc::sleep_for(std::max<rc::duration>(settings_.grace(), 1s));
    told.spawn(end_with(SIGKILL));
    co_await told.join();
  }

  rc::loop& loop_;
  settings const& settings_;
  guard& guard_;
  terminals& terminals_;
  log_folder& logs_;
  int number_;
  rc::time_point begun_;
  rc::duration took_{};
  rc::event failed_;
  rank* first_failure_ = nullptr;
  std::deque<rank> ranks_;
};

}  // namespace run
