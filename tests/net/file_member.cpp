// file_member: one member of a file_store, for tests that need processes. `file_member PATH WORLD COMMAND...` carries out the commands in
// order and prints a line for each; with `lock` for WORLD it only takes the file's lock and keeps it.
//
// FILE_MEMBER_LIMIT_MS, FILE_MEMBER_RANK, FILE_MEMBER_ATTEMPT and FILE_MEMBER_RUN_ID say how it opens the file.
//
//   set KEY VALUE | get KEY | find KEY | add KEY DELTA TIMES | push QUEUE VALUE | pop QUEUE
//   barrier GROUP RANK | roll NAME RANK | keys | stay        (stay: until standard input ends)
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <rollcall/rollcall.hpp>
#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;
namespace rc = rollcall;

namespace {

void say(std::string const& line) {
  std::fwrite(line.data(), 1, line.size(), stdout);  // values may hold zeros
  std::putchar('\n');
  std::fflush(stdout);
}
void until_input_ends() {
  char c;
  while (::read(0, &c, 1) > 0) {}
}

int number(char const* variable, int otherwise) {
  char const* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

rc::task<> work(rc::loop& loop, std::vector<std::string> args) {
  const int world = std::atoi(args[1].c_str());
  const std::chrono::milliseconds opens(number("FILE_MEMBER_LIMIT_MS", 60'000));
  rc::file_options how;
  how.world_size(world).timeout(60s).rank(number("FILE_MEMBER_RANK", -1)).attempt(number("FILE_MEMBER_ATTEMPT", 0));
  if (char const* id = std::getenv("FILE_MEMBER_RUN_ID")) how.run_id(id);
  rc::file_store s = co_await rc::file_store::open(loop, args[0], opens, how);
  for (std::size_t i = 2; i < args.size();) {
    const std::string what = args[i++];
    const auto next = [&]() -> std::string { return i < args.size() ? args[i++] : std::string(); };
    const std::string key = what == "keys" || what == "stay" ? std::string() : next();
    if (what == "set") {
      const std::string value = next();
      co_await s.set(key, value);
      say("set");
    } else if (what == "get") {
      const std::string value = co_await s.get(key);
      say("got " + value);
    } else if (what == "find") {
      const std::optional<std::string> value = co_await s.find(key);
      say(value ? "found " + *value : std::string("none"));
    } else if (what == "add") {
      const long delta = std::atol(next().c_str());
      std::int64_t sum = 0;
      for (int times = std::atoi(next().c_str()); times > 0; --times) sum = co_await s.add(key, delta);
      say("sum " + std::to_string(sum));
    } else if (what == "push") {
      const std::string value = next();
      co_await s.queue_push(key, value);
      say("pushed");
    } else if (what == "pop") {
      const std::string value = co_await s.queue_pop(key);
      say("popped " + value);
    } else if (what == "barrier") {
      const int rank = std::atoi(next().c_str());
      co_await rc::store_based_barrier(s, key, rank, world, 60s);
      say("passed");
    } else if (what == "roll") {
      const int rank = std::atoi(next().c_str());
      rc::barrier everyone(s, key, rank, world);
      co_await everyone.arrive_and_wait(60s);
      say("passed");
    } else if (what == "keys") {
      const std::int64_t n = co_await s.num_keys();
      say("keys " + std::to_string(n));
    } else if (what == "stay") {
      say("here");
      co_await rc::run_blocking(until_input_ends);
    } else {
      say("unknown command " + what);
      std::exit(2);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() < 2) return 2;
  if (args[1] == "lock") {
    const int fd = ::open(args[0].c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || ::flock(fd, LOCK_EX) != 0) return 1;
    say("locked");
    until_input_ends();
    return 0;
  }
  try {
    rc::loop loop;
    rc::sync_wait(loop, work(loop, args));
  } catch (std::exception const& e) {
    say(std::string("failed ") + e.what());
    return 1;
  }
  return 0;
}
