#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <rollcall/net/process.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/timer.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace {

/// Runs `f(loop)` on a fresh loop within a limit, then all that is left on it; nothing may remain.
template <class F>
void on_fresh_loop(F f) {
  rc::loop l;
  rc::sync_wait(l, rc::with_deadline(f(l), 20s));
  l.run();
  CHECK(l.live_handles() == 0);
  CHECK(l.live_frames() == 0);
}

rc::process_options shell(std::string_view script) {
  rc::process_options o("/bin/sh");
  o.arg("-c").arg(script);
  return o;
}

rc::task<std::vector<std::string>> all_lines(rc::line_reader& from) {
  std::vector<std::string> lines;
  for (;;) {
    std::optional<std::string> line = co_await from.next_line();
    if (!line) break;
    lines.push_back(std::move(*line));
  }
  co_return lines;
}

/// The output of a shell script.
rc::task<std::vector<std::string>> output_of(rc::loop& l, rc::process_options o) {
  o.out(rc::stdio::pipe);
  rc::process p = rc::process::spawn(l, o);
  std::vector<std::string> lines = co_await all_lines(p.out());
  const rc::exit_status how = co_await p.exited();
  CHECK(how.success());
  co_return lines;
}

rc::task<> exit_codes(rc::loop& l) {
  rc::process p = rc::process::spawn(l, shell("exit 7"));
  CHECK(p.pid() > 0);
  const rc::exit_status how = co_await p.exited();
  CHECK(how.exit_code == 7);
  CHECK(how.term_signal == 0);
  CHECK_FALSE(how.success());
  CHECK(how.shell_code() == 7);
  CHECK(rc::to_string(how) == "exited with status 7");
  const rc::exit_status again = co_await p.exited();
  CHECK(again.exit_code == 7);
  CHECK_FALSE(p.kill(SIGTERM));
}

rc::task<> killed(rc::loop& l) {
  rc::process p = rc::process::spawn(l, shell("exec sleep 1000"));
  CHECK_FALSE(p.has_exited());
  CHECK(p.kill(SIGTERM));
  const auto [a, b] = co_await rc::when_all(p.exited(), p.exited());
  CHECK(a.term_signal == SIGTERM);
  CHECK(b.term_signal == SIGTERM);
  CHECK(a.shell_code() == 128 + SIGTERM);
  CHECK(rc::to_string(a) == "was killed by SIGTERM");
  CHECK(::kill(p.pid(), 0) == -1);  // reaped
  CHECK(errno == ESRCH);
}

rc::task<> not_started(rc::loop& l) {
  const auto fails = [&l](rc::process_options const& o, rc::errc code, std::string const& text) {
    try {
      static_cast<void>(rc::process::spawn(l, o));
      FAIL("started");
    } catch (rc::error const& e) {
      CHECK(e.code() == code);
      CHECK(std::string(e.what()).find(text) != std::string::npos);
    }
  };
  rc::process_options missing("no-such-program");
  missing.out(rc::stdio::pipe).err(rc::stdio::pipe);
  fails(missing, rc::errc::io, "'no-such-program'");
  fails(missing, rc::errc::io, "ENOENT");
  fails(rc::process_options("/etc/passwd"), rc::errc::io, "EACCES");
  rc::process_options elsewhere("true");
  elsewhere.working_dir("/no/such/folder");
  fails(elsewhere, rc::errc::io, "/no/such/folder");
  fails(rc::process_options(), rc::errc::invalid, "no program");
  rc::process_options low("true");
  low.inherit_fd(0, 2);
  fails(low, rc::errc::invalid, "3..255");
  co_return;
}

rc::task<> lines(rc::loop& l) {
  rc::process_options o = shell(R"(printf 'one\n\nthree\nlast'; printf 'to err\n' >&2; echo again > /dev/stderr)");
  rc::process p = rc::process::spawn(l, o.out(rc::stdio::pipe).err(rc::stdio::pipe));
  const std::vector<std::string> out = co_await all_lines(p.out());
  CHECK(out == std::vector<std::string>{"one", "", "three", "last"});
  const std::vector<std::string> err = co_await all_lines(p.err());
  CHECK(err == std::vector<std::string>{"to err", "again"});
  const std::optional<std::string> past_the_end = co_await p.out().next_line();
  CHECK_FALSE(past_the_end);
  const rc::exit_status how = co_await p.exited();
  CHECK(how.success());
}

rc::task<> long_lines(rc::loop& l) {
  const auto script = shell(
      "x() { head -c $1 /dev/zero | tr '\\0' x; }\n"
      "x 65536; echo; x 65537; echo; x 200000; printf '\\nend\\n'; x 65536");
  const std::vector<std::string> got = co_await output_of(l, script);
  std::vector<std::size_t> sizes;
  for (std::string const& s : got) sizes.push_back(s.size());
  CHECK(sizes == std::vector<std::size_t>{65536, 65536, 1, 65536, 65536, 65536, 200000 - 3 * 65536, 3, 65536});
  CHECK(got[7] == "end");
}

rc::task<> back_pressure(rc::loop& l) {
  rc::process_options o("yes");
  rc::process p = rc::process::spawn(l, o.arg("0123456").out(rc::stdio::pipe));
  const std::optional<std::string> first = co_await p.out().next_line();
  CHECK(first == "0123456");
  co_await rc::as_result(rc::with_deadline(p.exited(), 100ms));  // it could write much in this time, were it read
  p.kill(SIGKILL);
  const std::vector<std::string> rest = co_await all_lines(p.out());
  CHECK(rest.size() * 8 <= 64 * 1024 + 80 * 1024);  // what a pipe and the reader hold
  const rc::exit_status how = co_await p.exited();
  CHECK(how.term_signal == SIGKILL);
}

rc::task<> environment(rc::loop& l) {
  ::setenv("ROLLCALL_TEST_KEPT", "kept", 1);
  ::setenv("ROLLCALL_TEST_REPLACED", "old", 1);
  ::setenv("ROLLCALL_TEST_REMOVED", "old", 1);
  rc::process_options o = shell("echo $ROLLCALL_TEST_KEPT $ROLLCALL_TEST_REPLACED ${ROLLCALL_TEST_REMOVED-gone} $ROLLCALL_TEST_NEW; pwd");
  o.env("ROLLCALL_TEST_REPLACED", "first").env("ROLLCALL_TEST_REPLACED", "new value").unset_env("ROLLCALL_TEST_REMOVED");
  o.env("ROLLCALL_TEST_NEW", "a=b").working_dir("/");
  const std::vector<std::string> got = co_await output_of(l, o);
  CHECK(got == std::vector<std::string>{"kept new value gone a=b", "/"});
  for (char const* name : {"ROLLCALL_TEST_KEPT", "ROLLCALL_TEST_REPLACED", "ROLLCALL_TEST_REMOVED"}) ::unsetenv(name);
}

std::set<int> open_descriptors() {
  std::set<int> fds;
  for (int fd = 3; fd < 256; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) fds.insert(fd);
  return fds;
}

rc::task<> descriptors(rc::loop& l) {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  const rc::unique_fd in(fds[0]);
  rc::unique_fd out(fds[1]);
  REQUIRE(::write(out.get(), "handed over\n", 12) == 12);
  out.reset();
  rc::process_options o = shell("cat <&9");
  o.inherit_fd(in.get(), 9);
  const std::vector<std::string> got = co_await output_of(l, o);
  CHECK(got == std::vector<std::string>{"handed over"});
}

rc::task<> stops(rc::loop& l) {
  rc::process_options o = shell("read x < /dev/stdin; exec sleep 1000");
  rc::process p = rc::process::spawn(l, o.out(rc::stdio::pipe));
  rc::scope s(l);
  const auto later_turn = std::make_shared<bool>(false);
  s.spawn(p.exited());
  s.spawn(p.out().next_line());
  s.spawn([&]() -> rc::task<> {
    l.post([later_turn] { *later_turn = true; });
    s.request_stop();
    co_return;
  });
  co_await s.join();
  CHECK_FALSE(*later_turn);
  const rc::result<rc::exit_status> r = co_await rc::as_result(rc::with_deadline(p.exited(), 5ms));
  CHECK(r.code() == rc::errc::timed_out);
  p.kill(SIGKILL);
  const rc::exit_status how = co_await p.exited();
  CHECK(how.term_signal == SIGKILL);
  const std::optional<std::string> end = co_await p.out().next_line();
  CHECK_FALSE(end);
}

/// Waits until no process has this pid, dead or alive.
rc::task<> gone(int pid) {
  while (::kill(pid, 0) == 0) co_await rc::sleep_for(1ms);
  CHECK(errno == ESRCH);
}

rc::task<> destroyed_alive(rc::loop& l) {
  int pid = 0;
  {
    rc::process_options o("sleep");
    rc::process p = rc::process::spawn(l, o.arg("1000").out(rc::stdio::pipe));
    pid = p.pid();
    rc::process moved = std::move(p);
    CHECK(moved.pid() == pid);
    CHECK(::kill(pid, 0) == 0);
  }
  co_await gone(pid);
}

rc::task<> destroyed_dead(rc::loop& l) {
  int pid = 0;
  {
    rc::process p = rc::process::spawn(l, rc::process_options("true"));
    pid = p.pid();
    siginfo_t info;
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);  // a zombie that the loop does not know of yet
  }
  co_await gone(pid);
}

rc::task<> waits_and_fails(rc::loop& l, rc::process& p) {
  rc::scope s(l);
  s.spawn(p.exited());
  s.spawn(p.out().next_line());
  co_await rc::sleep_for(1ms);
  throw rc::error(rc::errc::failed, "the test");
}

rc::task<> waiters_destroyed(rc::loop& l) {
  rc::process_options o("cat");
  rc::process p = rc::process::spawn(l, o.arg("/dev/zero").out(rc::stdio::pipe));
  const rc::result<void> r = co_await rc::as_result(waits_and_fails(l, p));
  CHECK(r.code() == rc::errc::failed);
  const std::optional<std::string> piece = co_await p.out().next_line();
  CHECK(piece == std::string(rc::line_reader::longest_line, '\0'));
}

rc::task<> no_pipe(rc::loop& l) {
  rc::process p = rc::process::spawn(l, rc::process_options("true"));
  CHECK_THROWS_AS(static_cast<void>(p.out()), rc::error);
  co_await p.exited();
}

rc::task<> signals_at_default(rc::loop& l) {
  struct sigaction ignore{}, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGUSR1, &ignore, &before);
  rc::process p = rc::process::spawn(l, shell("kill -USR1 $$; exit 0"));
  ::sigaction(SIGUSR1, &before, nullptr);
  const rc::exit_status how = co_await p.exited();
  CHECK(how.term_signal == SIGUSR1);
}

}  // namespace

TEST_CASE("a child's exit code is delivered, also to who asks later") { on_fresh_loop(exit_codes); }
TEST_CASE("a child that is killed says by which signal, to everybody who waits") { on_fresh_loop(killed); }
TEST_CASE("a program that cannot be started is named with the reason") { on_fresh_loop(not_started); }
TEST_CASE("lines come whole, empty ones and the unfinished last one too") { on_fresh_loop(lines); }
TEST_CASE("lines longer than 64 KiB come in pieces") { on_fresh_loop(long_lines); }
TEST_CASE("a child whose lines nobody takes is held up") { on_fresh_loop(back_pressure); }
TEST_CASE("environment and working directory") { on_fresh_loop(environment); }
TEST_CASE("a child gets the descriptors that were named") { on_fresh_loop(descriptors); }
TEST_CASE("a stop ends the waits for a child in their turn and leaves the child alone") { on_fresh_loop(stops); }
TEST_CASE("a child whose object is destroyed is killed and reaped") { on_fresh_loop(destroyed_alive); }
TEST_CASE("a child that has ended unnoticed is reaped when its object is destroyed") { on_fresh_loop(destroyed_dead); }
TEST_CASE("frames that wait for a child may be destroyed") { on_fresh_loop(waiters_destroyed); }
TEST_CASE("a stream that is no pipe cannot be read") { on_fresh_loop(no_pipe); }
TEST_CASE("a child has its signals at their defaults") { on_fresh_loop(signals_at_default); }

TEST_CASE("none of our descriptors reaches a child by itself") {
  const std::set<int> before = open_descriptors();
  rc::loop l;
  {
    const rc::signal_watcher w(l, SIGUSR1);
    rc::process_options o("cat");
    const rc::process p = rc::process::spawn(l, o.arg("/dev/zero").out(rc::stdio::pipe).err(rc::stdio::pipe));
    std::set<int> ours = open_descriptors();
    for (const int fd : before) ours.erase(fd);
    CHECK(ours.size() >= 2);
    for (const int fd : ours) CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  l.run();
  CHECK(l.live_handles() == 0);
}

TEST_CASE("failed starts leave no descriptor behind") {
  rc::loop l;
  rc::process_options o("no-such-program");
  o.out(rc::stdio::pipe).err(rc::stdio::pipe);
  CHECK_THROWS_AS(static_cast<void>(rc::process::spawn(l, o)), rc::error);
  l.run();
  const std::set<int> before = open_descriptors();
  for (int i = 0; i < 10; ++i) CHECK_THROWS_AS(static_cast<void>(rc::process::spawn(l, o)), rc::error);
  l.run();
  CHECK(open_descriptors() == before);
  CHECK(l.live_handles() == 0);
}
