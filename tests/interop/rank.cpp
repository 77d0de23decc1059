// interop_rank: one rank of a job that has PyTorch's ranks too. `interop_rank WHAT PORT RANK WORLD [SECONDS [ATTEMPT]]`; prints "ok" and
// what came of it, or "failed" and the error's text.
#include <cstdio>
#include <cstdlib>
#include <rollcall/barrier.hpp>
#include <rollcall/collectives.hpp>
#include <rollcall/rollcall.hpp>
#include <rollcall/stores/create.hpp>
#include <string>
#include <string_view>

using namespace std::chrono_literals;
namespace rc = rollcall;

namespace {

struct settings {
  std::string what;
  int port = 0;
  int rank = 0;
  int world = 0;
  std::chrono::duration<double> limit{30};
  int attempt = 0;
};

void say(std::string const& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}
rc::create_options member(settings const& s) {
  return rc::create_options{}.world_size(s.world).rank(s.rank).attempt(s.attempt).timeout(s.limit);
}

/// Serves, and stays until all others have gone.
rc::task<std::string> own(rc::loop& loop, settings s) {
  rc::listener at = rc::listen(rc::listen_options{}.port(s.port));
  say("port " + std::to_string(at.port()));
  const int port = at.port();
  rc::tcp_store store = co_await rc::tcp_store::create(loop, "127.0.0.1", port, member(s).is_master(true).listen_fd(at.release()));
  const std::int64_t keys = co_await store.num_keys();
  co_await store.set("all here", "1");
  co_await store.drain(s.limit);
  co_return std::to_string(keys) + " keys";
}

rc::task<std::string> work(rc::loop& loop, settings s) {
  if (s.what == "own") co_return co_await own(loop, s);
  if (s.what == "join") {
    rc::tcp_store store = co_await rc::tcp_store::create(loop, "127.0.0.1", s.port, member(s));
    co_return co_await store.get("all here");
  }
  rc::tcp_store store = co_await rc::tcp_store::connect(loop, "127.0.0.1", s.port, 30s, rc::client_options{}.timeout(s.limit));
  if (s.what == "store_based_barrier") {
    co_await rc::store_based_barrier(store, "mixed", s.rank, s.world, s.limit);
  } else if (s.what == "server_barrier") {
    co_await store.server_barrier("mixed", s.world, s.limit);
  } else if (s.what == "barrier") {
    rc::barrier everyone(store, "roll", s.rank, s.world, rc::barrier_options{}.attempt(s.attempt));
    co_await everyone.arrive_and_wait(s.limit);
  } else if (s.what == "all_gather") {
    const std::string mine = "ours " + std::to_string(s.rank);
    const std::vector<std::string> all = co_await rc::all_gather(store, "gathered", s.rank, s.world, mine, s.limit);
    std::string text;
    for (std::string const& one : all) text += (text.empty() ? "" : ", ") + one;
    co_return text;
  } else {
    throw rc::error(rc::errc::invalid, s.what, "nothing is called that");
  }
  co_return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s WHAT PORT RANK WORLD [SECONDS [ATTEMPT]]\n", argv[0]);
    return 2;
  }
  settings s;
  s.what = argv[1];
  s.port = std::atoi(argv[2]);
  s.rank = std::atoi(argv[3]);
  s.world = std::atoi(argv[4]);
  if (argc > 5) s.limit = std::chrono::duration<double>(std::atof(argv[5]));
  if (argc > 6) s.attempt = std::atoi(argv[6]);
  try {
    rc::loop loop;
    say("ok " + rc::sync_wait(loop, work(loop, s)));
  } catch (std::exception const& e) {
    say(std::string("failed ") + e.what());
    return 1;
  }
  return 0;
}
