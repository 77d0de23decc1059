#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iterator>
#include <optional>
#include <rollcall/rt/call_on.hpp>
#include <rollcall/rt/channel.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/timer.hpp>
#include <rollcall/server/server_core.hpp>
#include <rollcall/stores/tcp.hpp>
#include <rollcall/test/memory_stream.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

/// Calls from a thread that does not run the loop end a debug build. Runs itself once for each: what must end so, and what must not.

extern char** environ;

namespace {

namespace rc = rollcall;
using namespace std::chrono_literals;

/// A loop with a store on it that another thread runs, and that sleeps in its poll when this is made.
struct elsewhere {
  elsewhere() {
    std::promise<void> asleep;
    std::thread([&asleep, this] { run(asleep); }).detach();  // the program ends before it does
    asleep.get_future().wait();
  }
  void run(std::promise<void>& asleep) {
    rc::loop l;
    rc::detail::server_core server(l.core(), rc::serve_options());
    rc::test::memory_pair link(l);
    server.attach(std::move(link.second));
    store.emplace(rc::sync_wait(l, rc::tcp_store::over(l, std::move(link.first), 10s)));
    rc::event e(l);
    rc::channel<int> c(l, 1);
    rc::scope s(l);
    rc::stop_source source;
    loop = &l;
    event = &e;
    channel = &c;
    scope = &s;
    stop = &source;
    door.emplace(l.post_handle());
    s.spawn(e.wait());
    auto receives = [&c]() -> rc::task<> { static_cast<void>(co_await c.receive()); };
    s.spawn(receives);
    l.post([&asleep] { asleep.set_value(); });
    rc::sync_wait(l, rc::sleep_for(1h), source.token());
  }
  rc::loop* loop = nullptr;
  rc::event* event = nullptr;
  rc::channel<int>* channel = nullptr;
  rc::scope* scope = nullptr;
  rc::stop_source* stop = nullptr;
  std::optional<rc::tcp_store> store;
  std::optional<rc::poster> door;
};

rc::task<> nothing() { co_return; }
void drop(rc::loop& l) {
  rc::scope s(l);
  s.spawn(nothing());
  s.request_stop();
}

struct misuse {
  char const* name;
  bool fatal;
  void (*run)();
};
constexpr misuse all[] = {
    {"an operation of a store", true, [] { static_cast<void>(elsewhere().store->get("k")); }},
    {"close of a store", true, [] { elsewhere().store->close(); }},
    {"spawn", true, [] { elsewhere().scope->spawn(nothing()); }},
    {"set of an event that is waited for", true, [] { elsewhere().event->set(); }},
    {"send to a channel that is waited for", true, [] { static_cast<void>(elsewhere().channel->try_send(1)); }},
    {"a stop of what sleeps there", true, [] { elsewhere().stop->request_stop(); }},
    {"a call before it runs here, on a loop that has run elsewhere", true,
     [] {
       rc::loop l;
       std::thread([&l] { rc::sync_wait(l, nothing()); }).join();
       drop(l);
     }},
    {"the same, told so", false,
     [] {
       rc::loop l;
       std::thread([&l] { rc::sync_wait(l, nothing()); }).join();
       l.bind_to_this_thread();
       drop(l);
       std::thread([&l] { rc::sync_wait(l, nothing()); }).join();
       rc::sync_wait(l, nothing());
       drop(l);
     }},
    {"a loop that is made here and used there before it has run", false,
     [] {
       rc::loop l;
       std::thread([&l] {
         drop(l);
         rc::sync_wait(l, nothing());
         drop(l);
       }).join();
     }},
    {"posts and calls", false,
     [] {
       auto const& there = *new elsewhere();  // not to be destroyed in this thread
       rc::blocking_call(*there.door, [&] { return there.store->set("k", "v"); }).get();
       if (rc::blocking_call(*there.door, [&] { return there.store->get("k"); }).get() != "v") std::abort();
     }},
};

/// Runs misuse number n in a process of its own; whether it ended as it must.
bool right(char const* self, std::size_t n) {
  int said[2];
  if (pipe(said) != 0) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, said[1], 2);
  posix_spawn_file_actions_addclose(&actions, said[0]);
  std::string number = std::to_string(n);
  std::string program = self;
  char* const argv[] = {program.data(), number.data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawn(&child, self, &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(said[1]);
  std::string text;
  char bytes[4096];
  for (ssize_t got; (got = ::read(said[0], bytes, sizeof bytes)) > 0;) text.append(bytes, static_cast<std::size_t>(got));
  ::close(said[0]);
  int status = -1;
  if (failed != 0 || ::waitpid(child, &status, 0) != child) return false;
  const bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && text.find("a thread that does not run this loop") != text.npos;
  const bool fine = all[n].fatal ? aborted : WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::printf("%-64s %s\n", all[n].name, fine ? "ok" : "FAILED");
  if (!fine) std::printf("status %d; it said:\n%s\n", status, text.c_str());
  return fine;
}

}  // namespace

int main(int argc, char** argv) {
#ifdef NDEBUG
  std::puts("skipped: this build has no assertions");
  return argc < 0 || !argv ? 1 : 77;
#else
  if (argc == 2) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    all[std::strtoul(argv[1], nullptr, 10)].run();
    std::_Exit(0);
  }
  bool fine = true;
  for (std::size_t n = 0; n < std::size(all); ++n) fine = right(argv[0], n) && fine;
  return fine ? 0 : 1;
#endif
}
