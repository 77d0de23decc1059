// What only a file_store has: a file, its locks, other processes, damage and leftovers. What it has in common with every store is asked in
// stores.cpp, the format in unit/file_records.cpp.
#include "../support/net.hpp"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace net_test;

namespace {

using strings = std::vector<string>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
#else
constexpr bool sanitized = false;
#endif

string file_member() {
  char const* build = std::getenv("ROLLCALL_BUILD");
  const string program = string(build ? build : ".") + "/tests/file_member";
  if (::access(program.c_str(), X_OK) != 0) FAIL("no " << program);
  return program;
}

string contents(string const& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}
void append_raw(string const& path, string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << bytes;
}
bool is_there(string const& path) { return ::access(path.c_str(), F_OK) == 0; }

strings sorted_keys(strings v) {
  std::sort(v.begin(), v.end());
  return v;
}

/// As PyTorch writes it.
string record(string_view key, string_view value) {
  return u32(static_cast<std::uint32_t>(key.size())) + string(key) + u32(static_cast<std::uint32_t>(value.size())) + string(value);
}

rc::task<rc::file_store> open(rc::loop& l, string path, rc::file_options o = {}) { return rc::file_store::open(l, path, 20s, o); }

/// Fails the case unless opening fails; why it did.
rc::task<rc::failure> not_opened(rc::loop& l, string path, rc::deadline limit = 20s, rc::file_options o = {}) {
  const rc::result<rc::file_store> r = co_await rc::as_result(rc::file_store::open(l, path, limit, o));
  co_return failure_of(r);
}

/// Turns until a file has gone that a good-bye in the thread pool removes.
rc::task<> until_gone(string path) {
  while (is_there(path)) co_await rc::sleep_for(1ms);
}

}  // namespace

TEST_CASE("a file_store writes PyTorch's records and reads PyTorch's file", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    const string before =
        record("refcount/", "1") + record("/there", "v") + record("/gone", "x") + record("-/gone", "") + record("/n", "5");
    append_raw(path, before);
    {
      rc::file_store s = co_await open(l, path);
      CHECK(s.path() == path);
      CHECK_AWAIT(co_await s.get("there"), "v");
      CHECK_AWAIT(co_await s.check("gone"), false);
      CHECK_AWAIT(co_await s.add("n", -7), -2);
      CHECK_AWAIT(co_await s.delete_key("there"), true);
      CHECK_AWAIT(co_await s.delete_key("there"), false);
      CHECK_AWAIT(co_await s.compare_set("c", "no", "x"), "no");
      CHECK_AWAIT(co_await s.compare_set("c", "", "x"), "x");
      CHECK_AWAIT(sorted_keys(co_await s.list_keys()), strings{"c", "n"});
    }
    const string joined = record("refcount/", "2") + record("rollcall/member/1", "-1/0/" + std::to_string(::getpid()));
    const string done = record("/n", "-2") + record("-/there", "") + record("/c", "x");
    const string left = record("cleanup/", "1") + record("refcount/", "1") + record("-rollcall/member/1", "");
    co_await eventually([&] { return contents(path).size() >= before.size() + joined.size() + done.size() + left.size(); });
    CHECK(contents(path) == before + joined + done + left);
    struct stat s{};
    ::stat(path.c_str(), &s);
    CHECK((s.st_mode & 0711) == 0600);
  });
}

TEST_CASE("thirty-two processes count to sixteen thousand in a file that none of them found", "[file]") {
  const watchdog dog(current_case(), 240s);
  const scratch here;
  const string path = here.path + "/store";
  const string member = file_member();
  std::vector<std::unique_ptr<child>> all;
  for (int i = 0; i < 32; ++i) all.push_back(std::make_unique<child>(strings{member, path, "33", "add", "n", "1", "500"}));
  int most = 0;
  for (auto const& one : all) {
    CHECK(one->finish(200s) == 0);
    INFO(one->output());
    CHECK(one->output().starts_with("sum "));
    most = std::max(most, std::atoi(one->output().c_str() + 4));
  }
  CHECK(most == 16000);
  child last({member, path, "33", "get", "n"});
  CHECK(last.finish() == 0);
  CHECK(last.output() == "got 16000\n");
  CHECK_FALSE(is_there(path));
}

TEST_CASE("a member is woken by what another process does", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    for (const bool watch : {true, false}) {
      const scratch here;
      const string path = here.path + "/store";
      rc::file_store s = co_await open(l, path, rc::file_options{}.watch(watch));
      child other({file_member(), path, "-1", "set", "a", "1", "get", "b", "push", "q", "item", "set", "c", "3"});
      CHECK_AWAIT(co_await s.get("a", 20s), "1");
      co_await s.set("b", "2");
      CHECK_AWAIT(co_await s.queue_pop("q", 20s), "item");
      co_await s.wait({"a", "b", "c"}, 20s);
      CHECK(other.finish() == 0);
      CHECK(other.output() == "set\ngot 2\npushed\nset\n");
    }
  });
}

TEST_CASE("who leaves last removes the file, and not before all have been there", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    const auto two = rc::file_options{}.world_size(2);
    {
      rc::file_store early = co_await open(l, path, two);
      co_await early.set("k", "v");
    }
    co_await eventually([&] { return contents(path).find("cleanup/") != string::npos; });
    {
      rc::file_store s = co_await open(l, path, two);
      CHECK_AWAIT(co_await s.get("k"), "v");  // of who was there before
      rc::file_store copy = s;
      s = co_await open(l, here.path + "/other", two);
      CHECK(is_there(path));
    }
    co_await until_gone(path);
    CHECK(is_there(here.path + "/other"));
    // Without a world size it stays, as PyTorch's does.
    const string stays = here.path + "/stays";
    {
      rc::file_store s = co_await open(l, stays);
      s.close();
      s.close();
      const rc::failure f = failure_of(co_await rc::as_result(s.check("k")));
      CHECK(f.code() == rc::errc::closed);
    }
    co_await eventually([&] { return contents(stays).find("cleanup/") != string::npos; });
    CHECK(is_there(stays));
  });
}

TEST_CASE("who only looks in is no member", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    const auto looks = rc::file_options{}.member(false).create(false);
    {
      rc::file_store s = co_await open(l, path, rc::file_options{}.world_size(1).compact_from(1000));
      co_await s.set("k", "v");
      const string before = contents(path);
      {
        rc::file_store look = co_await open(l, path, looks);
        CHECK_AWAIT(co_await look.get("k"), "v");
        CHECK(contents(path) == before);
        co_await look.queue_push("q", "item");
        for (int i = 0; i < 200; ++i) co_await s.set("k", "value " + std::to_string(i));
        CHECK(contents(path).size() > 200 * 15);  // it remembers a position
        CHECK_AWAIT(co_await look.get("k"), "value 199");
        CHECK_AWAIT(co_await look.num_keys(), 1);
      }
      while (contents(path).size() > 1000) co_await s.set("k", "short");
      CHECK_AWAIT(co_await s.queue_pop("q"), "item");
    }
    co_await until_gone(path);
    append_raw(path, record("rollcall/run", "17") + record("cleanup/", "9") + record("/k", "old"));
    const string old = contents(path);
    {
      rc::file_store look = co_await open(l, path, looks);
      CHECK_AWAIT(co_await look.get("k"), "old");
    }
    const rc::failure f = co_await not_opened(l, path, 20s, rc::file_options{}.member(false).run_id("18"));
    CHECK(f.code() == rc::errc::failed);
    CHECK(contents(path) == old);
  });
}

TEST_CASE("members that were killed do not keep the file", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    const auto three = rc::file_options{}.world_size(3);
    {
      rc::file_store s = co_await open(l, path, three);
      child killed({file_member(), path, "3", "set", "k", "v", "stay"}, true);
      child alive({file_member(), path, "3", "stay"}, true);
      CHECK(killed.says("here"));
      CHECK(alive.says("here"));
      killed.kill(SIGKILL);
      CHECK(killed.finish() == 128 + SIGKILL);
      CHECK_AWAIT(co_await s.get("k"), "v");
      s.close();
      co_await eventually([&] { return contents(path).find("cleanup/") != string::npos; });
      CHECK(is_there(path));
      alive.close_input();
      CHECK(alive.finish() == 0);
      CHECK_FALSE(is_there(path));
    }
  });
}

TEST_CASE("a missing directory, a directory, and what is no file are errors at once that name the path", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const rc::failure missing = co_await not_opened(l, here.path + "/no/such/store");
    CHECK(missing.code() == rc::errc::io);
    CHECK(missing.operation() == "open");
    CHECK(missing.elapsed() < 5s);
    CHECK(contains(missing.message(), "the directory " + here.path + "/no/such does not exist"));
    const rc::failure directory = co_await not_opened(l, here.path);
    CHECK(directory.code() == rc::errc::invalid);
    CHECK(contains(directory.message(), here.path + " is a directory; name a file in it, for example " + here.path + "/rollcall"));
    CHECK(::mkfifo((here.path + "/pipe").c_str(), 0600) == 0);
    const rc::failure pipe = co_await not_opened(l, here.path + "/pipe");
    CHECK(pipe.code() == rc::errc::invalid);
    CHECK(contains(pipe.message(), "is no regular file"));
    const rc::failure empty = co_await not_opened(l, "");
    CHECK(empty.code() == rc::errc::invalid);
    // A relative path is from where the process was when it opened the file.
    const string before = std::filesystem::current_path();
    std::filesystem::current_path(here.path);
    rc::file_store relative = co_await open(l, "relative");
    std::filesystem::current_path(before);
    CHECK(relative.path() == here.path + "/relative");
    co_await relative.set("k", "v");
    CHECK(is_there(here.path + "/relative"));
    // A name that is too long for one is cut, and has a hash.
    const string longest(255, ' ');
    rc::file_store cut = co_await open(l, here.path, rc::file_options{}.run_id(longest));
    CHECK(cut.path().size() == here.path.size() + 1 + 247);
    rc::file_store same = co_await open(l, here.path, rc::file_options{}.run_id(longest));
    CHECK(same.path() == cut.path());
    rc::file_store other = co_await open(l, here.path, rc::file_options{}.run_id(longest.substr(1) + "x"));
    CHECK(other.path() != cut.path());
    // With a run id a directory is as good as a file.
    rc::file_store s = co_await open(l, here.path, rc::file_options{}.run_id("job 17/a"));
    CHECK(s.path() == here.path + "/rollcall-job%2017%2Fa");
    CHECK(is_there(s.path()));
    // For who only looks as well.
    co_await s.set("k", "v");
    rc::file_store looks = co_await open(l, here.path, rc::file_options{}.run_id("job 17/a").create(false).member(false));
    CHECK_AWAIT(co_await looks.get("k"), "v");
  });
}

TEST_CASE("a file that others make is waited for within the limit", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    const auto waits = rc::file_options{}.create(false);
    const rc::failure f = co_await not_opened(l, path, 60ms, waits);
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.limit() == 60ms);
    CHECK(f.elapsed() >= 60ms);
    CHECK(contains(f.message(), path + " is not there yet"));
    CHECK_FALSE(is_there(path));
    rc::scope later(l);
    const auto makes = [&]() -> rc::task<> {
      co_await rc::sleep_for(30ms);
      rc::file_store s = co_await open(l, path);
      co_await s.set("k", "v");
    };
    later.spawn(makes);
    rc::file_store s = co_await open(l, path, waits);
    CHECK_AWAIT(co_await s.get("k"), "v");
    co_await later.join();
  });
}

TEST_CASE("a lock that a stopped process holds ends in the limit, which names it, and the loop goes on", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store s = co_await open(l, path);
    co_await s.set("k", "v");
    child holder({file_member(), path, "lock"}, true);
    CHECK(holder.line() == "locked");
    holder.kill(SIGSTOP);
    int turns = 0;
    rc::scope beside(l);
    const auto ticker = [&]() -> rc::task<> {
      for (; turns < 5; ++turns) co_await rc::sleep_for(10ms);
    };
    beside.spawn(ticker);
    const rc::failure f = failure_of(co_await rc::as_result(s.set("k", "w", 150ms)));
    CHECK(turns == 5);
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.effect() == rc::effect::none);
    CHECK(f.limit() == 150ms);
    CHECK(contains(f.message(), "the lock on " + path + " is held by pid " + std::to_string(holder.pid())));
    const rc::failure opens = co_await not_opened(l, path, 100ms);
    CHECK(opens.code() == rc::errc::timed_out);
    CHECK(contains(opens.message(), "is held by"));
    // Given up in that turn, whatever the job does.
    std::optional<rc::result<string>> stopped;
    rc::stop_source stop;
    rc::start(s.get("k", 20s), [&](rc::result<string> r) { stopped.emplace(std::move(r)); }, stop.token());
    co_await rc::sleep_for(20ms);
    stop.request_stop();
    co_await rc::sleep_for(0ms);
    co_await eventually([&] { return stopped.has_value(); });
    CHECK(failure_of(*stopped).code() == rc::errc::cancelled);
    holder.kill(SIGKILL);
    co_await s.set("k", "x");
    CHECK_AWAIT(co_await s.get("k"), "x");
    co_await beside.join();
  });
}

TEST_CASE("the end of a record is waited for within the limit, and nobody writes behind a half one", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    const string half = record("/slow", string(1000, 's'));
    rc::file_store s = co_await open(l, path);
    co_await s.set("k", "v");
    const std::size_t whole = contents(path).size();
    append_raw(path, half.substr(0, 500));
    CHECK_AWAIT(co_await s.get("k"), "v");  // what is whole can be read
    CHECK_AWAIT(co_await s.find("slow"), std::nullopt);
    const rc::failure f = failure_of(co_await rc::as_result(s.add("n", 1, 80ms)));
    CHECK(f.code() == rc::errc::protocol);
    CHECK(f.effect() == rc::effect::none);
    CHECK(f.elapsed() >= 80ms);
    CHECK(contains(f.message(), "at byte " + std::to_string(whole) + ", is incomplete: 500 of 1013 bytes are there"));
    const rc::failure opens = co_await not_opened(l, path, 80ms);
    CHECK(opens.code() == rc::errc::protocol);
    CHECK(contents(path).size() == whole + 500);
    std::optional<rc::result<std::int64_t>> added;
    rc::start(s.add("n", 1, 20s), [&](rc::result<std::int64_t> r) { added.emplace(std::move(r)); });
    co_await rc::sleep_for(5ms);
    append_raw(path, half.substr(500));
    co_await eventually([&] { return added.has_value(); });
    CHECK(added->value() == 1);
    CHECK_AWAIT((co_await s.get("slow")).size(), 1000U);
  });
}

TEST_CASE("a length that no record has is an error at once, and never allocated", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    append_raw(here.path + "/bad", record("/k", "v") + u32(0xffffffff) + "garbage");
    const rc::failure f = co_await not_opened(l, here.path + "/bad");
    CHECK(f.code() == rc::errc::protocol);
    CHECK(f.elapsed() < 5s);
    CHECK(contains(f.message(), "is damaged: at byte 11 a record announces"));
    rc::file_store s = co_await open(l, here.path + "/good");
    append_raw(here.path + "/good", u32(2) + "/k" + u32(0x7fffffff));
    const rc::failure later = failure_of(co_await rc::as_result(s.get("k", 20s)));
    CHECK(later.code() == rc::errc::protocol);
    CHECK_FALSE(s.is_open());
    const rc::failure ever = failure_of(co_await rc::as_result(s.check("k")));
    CHECK(ever.code() == rc::errc::protocol);
  });
}

TEST_CASE("zeros are damage at once, and PyTorch's long keys are none", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    append_raw(here.path + "/zeros", string(64, '\0'));
    const rc::failure f = co_await not_opened(l, here.path + "/zeros");
    CHECK(f.code() == rc::errc::protocol);
    CHECK(contains(f.message(), "/zeros is damaged: at byte 0 there is a record without a key"));
    rc::file_store s = co_await open(l, here.path + "/tail");
    co_await s.set("k", "v");
    const std::size_t whole = contents(here.path + "/tail").size();
    append_raw(here.path + "/tail", string(8, '\0'));
    const rc::failure tail = failure_of(co_await rc::as_result(s.get("k", 20s)));
    CHECK(tail.code() == rc::errc::protocol);
    CHECK(contains(tail.message(), "at byte " + std::to_string(whole) + " there is a record without a key"));
    // Its FileStore takes keys of any length; ours only reads past them.
    append_raw(here.path + "/long", record("/" + string(100'000, 'x'), "v") + record("/k", "w"));
    rc::file_store reads = co_await open(l, here.path + "/long");
    CHECK_AWAIT(co_await reads.get("k"), "w");
    CHECK_AWAIT(co_await reads.num_keys(), 2);
    const rc::failure limit = failure_of(co_await rc::as_result(reads.get(string(100'000, 'x'))));
    CHECK(limit.code() == rc::errc::limit);
    append_raw(here.path + "/long", u32(3'000'000));
    const rc::failure longer = failure_of(co_await rc::as_result(reads.get("k", 20s)));
    CHECK(contains(longer.message(), "a record announces a key of 3000000 bytes, and the limit is 1048576"));
  });
}

TEST_CASE("a file of another run is told by its run id, or by all of its members having left", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    const auto first = rc::file_options{}.run_id("first");
    {
      rc::file_store s = co_await open(l, path, first);
      co_await s.set("k", "old");
      rc::file_store same = co_await open(l, path, first);
      CHECK_AWAIT(co_await same.get("k"), "old");
      CHECK_AWAIT(co_await same.num_keys(), 1);
    }
    co_await eventually([&] { return contains(contents(path), record("refcount/", "0")); });
    const rc::failure other = co_await not_opened(l, path, 20s, rc::file_options{}.run_id("second"));
    CHECK(other.code() == rc::errc::failed);
    CHECK(contains(other.message(), path + " belongs to run 'first', this is run 'second'; remove it"));
    const rc::failure none = co_await not_opened(l, path);
    CHECK(contains(none.message(), "belongs to run 'first', this is a run without an id"));
    const string plain = here.path + "/plain";
    append_raw(plain, record("refcount/", "1") + record("/k", "v"));
    const rc::failure unnamed = co_await not_opened(l, plain, 20s, first);
    CHECK(contains(unnamed.message(), "belongs to a run without an id, this is run 'first'"));
    {
      rc::file_store s = co_await open(l, plain, rc::file_options{}.run_id("first").adopt());
      CHECK_AWAIT(co_await s.get("k"), "v");
    }
    const string over = here.path + "/over";
    const string left = record("refcount/", "0") + record("cleanup/", "2") + record("/k", "v");
    append_raw(over, left);
    const rc::failure ended = co_await not_opened(l, over, 20s, rc::file_options{}.world_size(2));
    CHECK(ended.code() == rc::errc::failed);
    CHECK(contains(ended.message(), "is of an earlier run: all of its 2 members have left"));
    CHECK(contents(over) == left);
  });
}

TEST_CASE("members that are killed while they count hold up nobody and lose nothing", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store s = co_await open(l, path);
    std::vector<std::unique_ptr<child>> all;
    for (int i = 0; i < 4; ++i)
      all.push_back(std::make_unique<child>(strings{file_member(), path, "-1", "add", "n", "1", i < 2 ? "1000000" : "500"}));
    std::int64_t seen = 0;
    while (seen < 200) seen = co_await s.add("n", 0);
    for (int i = 0; i < 2; ++i) {
      all[static_cast<std::size_t>(i)]->kill(SIGKILL);
      CHECK(all[static_cast<std::size_t>(i)]->finish() == 128 + SIGKILL);
    }
    for (int i = 2; i < 4; ++i) CHECK(all[static_cast<std::size_t>(i)]->finish(60s) == 0);
    const std::int64_t sum = co_await s.add("n", 0);
    CHECK(sum >= 1000);
    rc::file_store late = co_await open(l, path);
    CHECK_AWAIT(co_await late.add("n", 1), sum + 1);
  });
}

TEST_CASE("a file whose members were all killed is no run's to go on with, unless it is named", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    {
      child early({file_member(), path, "3", "set", "early", "v"});
      CHECK(early.finish() == 0);
      child killed({file_member(), path, "3", "set", "k", "v", "stay"}, true);
      CHECK(killed.says("here"));
      rc::file_store alive = co_await open(l, path, rc::file_options{}.world_size(3));
      killed.kill(SIGKILL);
      CHECK(killed.finish() == 128 + SIGKILL);
      // One that lives is enough.
      rc::file_store s = co_await open(l, path, rc::file_options{}.world_size(3));
      CHECK_AWAIT(co_await s.get("early"), "v");
      ::unlink(path.c_str());
    }
    child killed({file_member(), path, "3", "set", "k", "v", "stay"}, true);
    CHECK(killed.says("here"));
    killed.kill(SIGKILL);
    CHECK(killed.finish() == 128 + SIGKILL);
    const rc::failure f = co_await not_opened(l, path, 20s, rc::file_options{}.world_size(3));
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.message(), path + " is of a run that crashed: none of its 1 members is alive"));
    rc::file_store adopts = co_await open(l, path, rc::file_options{}.run_id("again").adopt());
    CHECK_AWAIT(co_await adopts.get("k"), "v");
  });
}

namespace {

/// A rank of a run of three, in a process of its own, that has set `key` and stays.
std::unique_ptr<child> rank_process(string const& path, int rank, string const& key, int attempt = 0, string const& run = "job") {
  strings environment{"FILE_MEMBER_RANK=" + std::to_string(rank), "FILE_MEMBER_ATTEMPT=" + std::to_string(attempt)};
  if (!run.empty()) environment.push_back("FILE_MEMBER_RUN_ID=" + run);
  auto c = std::make_unique<child>(strings{file_member(), path, "3", "set", key, "v", "stay"}, true, environment);
  if (!c->says("here")) FAIL("rank " << rank << ": " << c->output() << c->errors());
  return c;
}
void kill_all(std::vector<std::unique_ptr<child>>& ranks) {
  for (auto const& c : ranks) c->kill(SIGKILL);
  for (auto const& c : ranks) CHECK(c->finish() == 128 + SIGKILL);
}
rc::file_options rank_of_three(int rank, int attempt = 0, string const& run = "job") {
  rc::file_options o;
  o.world_size(3).rank(rank).attempt(attempt);
  if (!run.empty()) o.run_id(run);
  return o;
}

}  // namespace

TEST_CASE("a rank begins anew what killed ranks have left, whatever its run is called", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    for (char const* next_run : {"job", "another", ""}) {
      const scratch here;
      const string path = here.path + "/store";
      std::vector<std::unique_ptr<child>> killed;
      for (int rank : {0, 1}) killed.push_back(rank_process(path, rank, "old/" + std::to_string(rank)));
      kill_all(killed);
      const string before = contents(path);
      if (next_run == string_view("job")) {  // who has no rank is told, and drops nothing
        const rc::failure f = co_await not_opened(l, path, 20s, rc::file_options{}.world_size(3).run_id("job"));
        CHECK(f.code() == rc::errc::failed);
        CHECK(contains(f.message(), path + " is of a run that crashed: none of its 2 members is alive"));
        CHECK(contents(path) == before);
      }
      rc::file_store s = co_await open(l, path, rank_of_three(2, 0, next_run));
      CHECK_AWAIT(co_await s.num_keys(), 0);
      rc::file_store again = co_await open(l, path, rank_of_three(0, 0, next_run));
      co_await again.set("k", "v");
      CHECK_AWAIT(co_await s.get("k"), "v");
      rc::file_store last = co_await open(l, path, rank_of_three(1, 0, next_run));
      last.close();
      again.close();
      s.close();
      co_await until_gone(path);
    }
  });
}

TEST_CASE("who looks into a file that is begun anew sees that it is another one", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    std::vector<std::unique_ptr<child>> killed;
    killed.push_back(rank_process(path, 0, "old"));
    rc::file_store looks = co_await open(l, path, rc::file_options{}.member(false).create(false));
    CHECK_AWAIT(co_await looks.get("old"), "v");
    kill_all(killed);
    // Who looks keeps nobody alive.
    rc::file_store s = co_await open(l, path, rank_of_three(1));
    CHECK_AWAIT(co_await s.check("old"), false);
    for (int i = 0; i < 50; ++i) co_await s.set("filler", "past where the other one was");
    const rc::failure f = failure_of(co_await rc::as_result(looks.get("filler", 20s)));
    CHECK(f.code() == rc::errc::disconnected);
    CHECK(contains(f.message(), path + " was replaced"));
  });
}

TEST_CASE("a looker does not keep a crash from being seen", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store s = co_await open(l, path, rc::file_options{}.world_size(2));
    child killed({file_member(), path, "2", "set", "k", "v", "stay"}, true);
    CHECK(killed.says("here"));
    rc::file_store looks = co_await open(l, path, rc::file_options{}.member(false).create(false));
    CHECK_AWAIT(co_await looks.get("k"), "v");
    killed.kill(SIGKILL);
    CHECK(killed.finish() == 128 + SIGKILL);
    s.close();
    co_await until_gone(path);  // the last that is alive removes it

    child crashed({file_member(), path, "2", "set", "k", "v", "stay"}, true);
    CHECK(crashed.says("here"));
    rc::file_store other = co_await open(l, path, rc::file_options{}.member(false).create(false));
    CHECK_AWAIT(co_await other.get("k"), "v");
    crashed.kill(SIGKILL);
    CHECK(crashed.finish() == 128 + SIGKILL);
    const rc::failure f = co_await not_opened(l, path, 20s, rc::file_options{}.world_size(2));
    CHECK(contains(f.message(), "is of a run that crashed"));
  });
}

TEST_CASE("a rank that would take a dead one's place is refused, by name, while others are there", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    std::vector<std::unique_ptr<child>> killed;
    killed.push_back(rank_process(path, 0, "old"));
    const std::unique_ptr<child> stopped = rank_process(path, 1, "there");
    stopped->kill(SIGSTOP);  // it would end itself
    const string dead = "rank 0 (process " + std::to_string(killed[0]->pid()) + ")";
    const string there = "rank 1 (process " + std::to_string(stopped->pid()) + ")";
    kill_all(killed);
    for (int rank : {0, 2}) {
      const rc::failure f = co_await not_opened(l, path, 20s, rank_of_three(rank));
      CHECK(f.code() == rc::errc::failed);
      CHECK(f.elapsed() >= 1s);
      CHECK(f.elapsed() < 10s);  // the bound is 1 s
      CHECK(contains(f.message(), dead + " has died, while others are there: " + there));
    }
    const rc::failure twice = co_await not_opened(l, path, 100ms, rank_of_three(1));
    CHECK(twice.code() == rc::errc::failed);
    CHECK(contains(twice.message(), path + " has rank 1 already: process " + std::to_string(stopped->pid())));
    // Who waits until they have gone begins anew.
    std::vector<rc::result<rc::file_store>> came;  // the second of them finds a file that is another's than it was
    const auto comes = [&](rc::result<rc::file_store> r) { came.push_back(std::move(r)); };
    rc::start(l, rc::file_store::open(l, path, 20s, rank_of_three(0)), comes);
    rc::start(l, rc::file_store::open(l, path, 20s, rank_of_three(2)), comes);
    co_await rc::sleep_for(50ms);
    CHECK(came.empty());
    stopped->kill(SIGKILL);
    CHECK(stopped->finish() == 128 + SIGKILL);
    co_await eventually([&] { return came.size() == 2; });
    for (auto const& r : came) CHECK_AWAIT(co_await r.value().check("old"), false);
  });
}

TEST_CASE("a higher attempt begins anew beside the one that it supersedes, which hears of it and stays out", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store old = co_await open(l, path, rank_of_three(0));
    co_await old.set("old", "v");
    rc::file_operation<void> waits = old.wait("never", 20s);
    std::optional<rc::errc> ended;
    rc::start(l, std::move(waits), [&](rc::result<void> r) { ended = r.error().code(); });
    rc::file_store zero = co_await open(l, path, rank_of_three(0, 1));
    CHECK_AWAIT(co_await zero.check("old"), false);
    co_await zero.set("new", "v");
    const rc::file_store two = co_await open(l, path, rank_of_three(2, 1));
    CHECK_AWAIT(co_await two.get("new"), "v");
    co_await eventually([&] { return ended.has_value(); });
    CHECK(*ended == rc::errc::disconnected);
    const rc::failure late = co_await not_opened(l, path, 20s, rank_of_three(1));
    CHECK(late.code() == rc::errc::failed);
    CHECK(contains(late.message(), path + " is of an attempt that supersedes this one: this is attempt 0"));
    CHECK_AWAIT(co_await two.get("new"), "v");
  });
}

TEST_CASE("an open() that is given up leaves nothing of its rank behind", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store zero = co_await open(l, path, rank_of_three(0));
    for (int i = 0; i < 20; ++i) {
      // Stopped before its job has begun, while it runs, or (of the later ones) when it is done.
      rc::task<rc::file_store> opening = open(l, path, rank_of_three(1));
      const auto opened = co_await rc::as_result(rc::with_deadline(std::move(opening), std::chrono::microseconds(100 * i)));
      if (opened) co_return;  // who was there leaves as such
      CHECK(opened.error().code() == rc::errc::timed_out);
    }
    const rc::file_store one = co_await open(l, path, rank_of_three(1));
    CHECK_AWAIT(co_await one.check("k"), false);
  });
}

TEST_CASE("a rank that dies ends the stores of the others, which name it", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    std::vector<std::unique_ptr<child>> killed;
    killed.push_back(rank_process(path, 0, "there"));
    const string dead = "rank 0 (process " + std::to_string(killed[0]->pid()) + ") is dead";
    rc::file_store waits = co_await open(l, path, rank_of_three(1));
    rc::file_store idle = co_await open(l, path, rank_of_three(2));
    rc::file_store plain = co_await open(l, path, rc::file_options{}.run_id("job"));
    rc::file_store keeps = co_await open(l, path, rank_of_three(4).ends_with_members(false));
    std::optional<rc::result<string>> got;
    std::optional<rc::failure> ended;
    const auto ends = [&]() -> rc::task<> {
      rc::failure why = co_await idle.closed();
      ended.emplace(std::move(why));
    };
    rc::scope beside(l);
    beside.spawn(ends);
    rc::start(waits.get("never", 60s), [&](rc::result<string> r) { got.emplace(std::move(r)); });
    co_await rc::sleep_for(300ms);  // longer than between two looks
    CHECK_FALSE(got.has_value());
    CHECK_FALSE(ended.has_value());
    const rc::time_point begun = l.now();
    kill_all(killed);
    co_await eventually([&] { return got.has_value() && ended.has_value(); });
    CHECK(l.now() - begun < 10s);  // the bound is 1 s
    const rc::failure f = failure_of(*got);
    CHECK(f.code() == rc::errc::disconnected);
    CHECK(contains(f.message(), dead));
    CHECK(contains(ended->message(), dead));
    CHECK_FALSE(idle.is_open());
    co_await beside.join();
    // Who has no rank, or wants it so, goes on.
    CHECK_AWAIT(co_await plain.get("there"), "v");
    CHECK_AWAIT(co_await keeps.get("there"), "v");
  });
}

TEST_CASE("a rank that leaves is not dead, and closed() tells a close", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store stays = co_await open(l, path, rank_of_three(0));
    for (int i = 0; i < 20; ++i) {
      rc::file_store leaves = co_await open(l, path, rank_of_three(1 + i));
      co_await leaves.set("k", std::to_string(i));
      const string before = contents(path);
      leaves.close();
      co_await eventually([&] { return contents(path).size() > before.size(); });
    }
    co_await rc::sleep_for(300ms);  // longer than between two looks
    CHECK(stays.is_open());
    CHECK_AWAIT(co_await stays.get("k"), "19");
    stays.close();
    const rc::failure why = co_await stays.closed();
    CHECK(why.code() == rc::errc::closed);
  });
}

TEST_CASE("a run that failed in good order is not gone on with", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    {
      rc::file_store early = co_await open(l, path, rank_of_three(0));
      rc::file_store fails = co_await open(l, path, rank_of_three(1));
      co_await fails.set("old", "v");
      fails.close_failed("out of paper");
      co_await eventually([&] { return contents(path).find("rollcall/failed") != string::npos; });
      // While others are there, it is their run.
      const rc::failure f = co_await not_opened(l, path, 100ms, rank_of_three(2));
      CHECK(f.code() == rc::errc::failed);
      CHECK(contains(f.message(), "is of a run that has failed (out of paper), and others are there: rank 0 (process "));
    }
    co_await until_gone(path);
    // Left by an exception; who came without a world size keeps the file.
    const auto leaves = [&]() -> rc::task<> {
      rc::file_store s = co_await open(l, path, rank_of_three(0).world_size(-1));
      co_await s.set("old", "v");
      throw std::runtime_error("no space");
    };
    bool threw = false;
    try {
      co_await leaves();
    } catch (std::runtime_error const&) {
      threw = true;
    }
    CHECK(threw);
    co_await eventually([&] { return contents(path).find("rollcall/failed") != string::npos; });
    rc::file_store s = co_await open(l, path, rank_of_three(2));
    CHECK_AWAIT(co_await s.check("old"), false);
    CHECK(contents(path).find("rollcall/failed") == string::npos);
  });
}

TEST_CASE("what does not fit on the disk changes nothing", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store s = co_await open(l, path);
    co_await s.set("k", "v");
    const string before = contents(path);
    rlimit most{};
    getrlimit(RLIMIT_FSIZE, &most);
    rlimit small = most;
    small.rlim_cur = before.size() + 40;
    setrlimit(RLIMIT_FSIZE, &small);
    const rc::result<void> full = co_await rc::as_result(s.set("k", string(100'000, 'x')));
    const rc::result<void> pushed = co_await rc::as_result(s.queue_push("q", string(1000, 'x')));
    co_await s.set("k", "w");
    setrlimit(RLIMIT_FSIZE, &most);
    const rc::failure f = failure_of(full);
    CHECK(f.code() == rc::errc::io);
    CHECK(f.effect() == rc::effect::none);
    CHECK(f.keys() == strings{"k"});
    CHECK(contains(f.message(), "cannot write to " + path));
    CHECK(contains(f.message(), "EFBIG"));
    CHECK(failure_of(pushed).code() == rc::errc::io);
    CHECK(contents(path) == before + record("/k", "w"));
    CHECK_AWAIT(co_await s.queue_len("q"), 0);
    rc::file_store other = co_await open(l, path);
    CHECK_AWAIT(co_await other.get("k"), "w");
  });
}

TEST_CASE("a full disk is an error, and the file stays readable", "[file]") {
  const scratch here;
  if (::mount("none", here.path.c_str(), "tmpfs", 0, "size=64k") != 0) {
    WARN("skipped: a small file system cannot be mounted here: " << std::strerror(errno));
    return;
  }
  on_loop([&](rc::loop& l) -> rc::task<> {
    const string path = here.path + "/store";
    rc::file_store s = co_await open(l, path);
    rc::result<void> r;
    int stored = 0;
    for (; stored < 100; ++stored) {
      r = co_await rc::as_result(s.set("k" + std::to_string(stored), string(3000, 'x')));
      if (!r) break;
    }
    CHECK(stored > 5);
    const rc::failure f = failure_of(r);
    CHECK(f.code() == rc::errc::io);
    CHECK(f.effect() == rc::effect::none);
    CHECK(contains(f.message(), "ENOSPC"));
    CHECK_AWAIT(co_await s.num_keys(), stored);
    CHECK_AWAIT((co_await s.get("k0")).size(), 3000U);
  });
  ::umount2(here.path.c_str(), MNT_DETACH);
}

TEST_CASE("a log that has outgrown what lives in it is written anew, while nobody else has it open", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    rc::file_store s = co_await open(l, path, rc::file_options{}.compact_from(4096));
    co_await s.set("stays", "here");
    co_await s.queue_push("q", "1");
    co_await s.queue_push("q", "2");
    {
      rc::file_store other = co_await open(l, path);
      for (int i = 0; i < 400; ++i) co_await s.set("k", "value " + std::to_string(i));
      CHECK(contents(path).size() > 400 * 18);  // the other one remembers a position
      CHECK_AWAIT(co_await other.get("k"), "value 399");
    }
    co_await eventually([&] { return contents(path).find("cleanup/") != string::npos; });
    co_await s.set("k", "last");
    CHECK(contents(path).size() < 400);
    CHECK_FALSE(is_there(path + ".compact"));
    CHECK_AWAIT(co_await s.get("k"), "last");
    rc::file_store late = co_await open(l, path);
    CHECK_AWAIT(sorted_keys(co_await late.list_keys()), strings{"k", "stays"});
    CHECK_AWAIT(co_await late.get("stays"), "here");
    CHECK_AWAIT(co_await late.queue_pop("q"), "1");
    CHECK_AWAIT(co_await late.queue_pop("q"), "2");
    CHECK_AWAIT(co_await late.add("n", 1), 1);
    CHECK_AWAIT(co_await s.get("n"), "1");
  });
}

TEST_CASE("a file that is removed or replaced while in use ends the store, at once and by name", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    const string path = here.path + "/store";
    for (const bool replaced : {false, true}) {
      ::unlink(path.c_str());
      rc::file_store s = co_await open(l, path);
      std::optional<rc::result<string>> waits;
      rc::start(s.get("never", 20s), [&](rc::result<string> r) { waits.emplace(std::move(r)); });
      co_await rc::sleep_for(5ms);
      if (replaced) append_raw(path + ".new", record("refcount/", "1"));
      if (replaced) {
        ::rename((path + ".new").c_str(), path.c_str());
      } else {
        ::unlink(path.c_str());
      }
      const rc::failure f = failure_of(co_await rc::as_result(s.check("k")));
      CHECK(f.code() == rc::errc::disconnected);
      CHECK(contains(f.message(), path + (replaced ? " was replaced" : " was removed")));
      CHECK_FALSE(s.is_open());
      co_await eventually([&] { return waits.has_value(); });
      CHECK(failure_of(*waits).code() == rc::errc::disconnected);
      const rc::failure later = failure_of(co_await rc::as_result(s.set("k", "v")));
      CHECK(later.code() == rc::errc::disconnected);
    }
    // Who only waits learns it too; and a directory that has gone delays nobody's end.
    rc::file_store s = co_await open(l, here.path + "/another");
    std::optional<rc::result<void>> waits;
    rc::start(s.wait("never", 20s), [&](rc::result<void> r) { waits.emplace(std::move(r)); });
    co_await rc::sleep_for(5ms);
    std::filesystem::remove_all(here.path);
    co_await eventually([&] { return waits.has_value(); });
    CHECK(failure_of(*waits).code() == rc::errc::disconnected);
  });
}

TEST_CASE("an item that comes for a pop that was given up goes back to the head", "[file]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const scratch here;
    rc::file_store s = co_await open(l, here.path + "/store");
    rc::file_store other = co_await open(l, here.path + "/store");
    int given_up = 0;
    for (int i = 0; i < 30; ++i) {
      co_await s.queue_push("q", "1");
      co_await s.queue_push("q", "2");
      rc::stop_source stop;
      std::optional<rc::result<string>> popped;
      rc::start(s.queue_pop("q", 20s), [&](rc::result<string> r) { popped.emplace(std::move(r)); }, stop.token());
      co_await rc::sleep_for(std::chrono::microseconds(10 * i));  // before, while and after a job has it
      stop.request_stop();
      co_await eventually([&] { return popped.has_value(); });
      given_up += !*popped;
      if (!*popped) {
        const rc::failure f = failure_of(*popped);
        CHECK(f.code() == rc::errc::cancelled);
        CHECK(f.effect() == rc::effect::none);
        // Behind whatever its client has still to put back, so that it sees both in their order.
        CHECK_AWAIT(co_await s.queue_len("q"), 2);
        CHECK_AWAIT(co_await s.queue_pop("q"), "1");
      } else {
        CHECK(popped->value() == "1");
      }
      CHECK_AWAIT(co_await other.queue_pop("q", 20s), "2");
      CHECK_AWAIT(co_await other.queue_len("q"), 0);
    }
    CHECK(given_up > 0);
    // Destroyed with its coroutine before the item could be taken.
    const auto pop = [](rc::file_operation<string> op) -> rc::detail::driver { static_cast<void>(co_await std::move(op)); };
    rc::detail::operation_group pops;
    pops.start(pop(other.queue_pop("kept", 20s)));
    co_await s.queue_push("kept", "item");
    pops.clear();
    CHECK_AWAIT(co_await s.queue_pop("kept", 20s), "item");
  });
}

TEST_CASE("after a fork the child is no member", "[file]") {
  const watchdog dog(current_case());
  const scratch here;
  const string path = here.path + "/store";
  rc::loop l;
  {
    std::optional<rc::file_store> s;
    s.emplace(rc::sync_wait(l, open(l, path, rc::file_options{}.world_size(1))));
    const string before = contents(path);
    const pid_t pid = ::fork();
    if (pid == 0) {
      int ended = 0;
      rc::start(s->set("k", "v", 10s), [&](rc::result<void> r) { ended = !r && contains(r.error().message(), "forked") ? 1 : 2; });
      while (ended == 0) uv_run(l.native(), UV_RUN_ONCE);
      s.reset();
      uv_run(l.native(), UV_RUN_NOWAIT);
      std::this_thread::sleep_for(100ms);
      ::_exit(ended == 1 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    CHECK(status == 0);
    CHECK(contents(path) == before);
    CHECK(rc::sync_wait(l, s->add("n", 1)) == 1);
  }
  expect_nothing_left(l);
  CHECK_FALSE(is_there(path));
}

TEST_CASE("file systems on which locks do not work are told, and a stale handle is opened anew", "[file]") {
  if (sanitized) {
    WARN("skipped: a sanitizer wants to be loaded first");
    return;
  }
  const watchdog dog(current_case());
  char const* build = std::getenv("ROLLCALL_BUILD");
  const string shim = string(build ? build : ".") + "/tests/libflock_shim.so";
  if (!is_there(shim)) FAIL("no " << shim);
  const scratch here;
  const string path = here.path + "/store";
  const auto with = [&](string what) {
    child c({file_member(), path, "-1", "set", "k", "v"}, false, {"LD_PRELOAD=" + shim, "FLOCK_SHIM=" + what, "FILE_MEMBER_LIMIT_MS=300"});
    const int status = c.finish();
    return std::to_string(status) + " " + c.output();
  };
  const string held = with("held");
  if (contains(held, "0 set")) {
    WARN("skipped: LD_PRELOAD has no effect here");
    return;
  }
  CHECK(contains(held, "1 failed open"));
  CHECK(contains(held, "timed out"));
  CHECK(contains(held, "the lock on " + path + " is held by somebody else"));
  const string none = with("enolck");
  CHECK(contains(none, "1 failed open"));
  CHECK(contains(none, "ENOLCK"));
  CHECK(contains(none, "locking does not work on this file system"));
  const string open_to_all = with("granted");
  CHECK(contains(open_to_all, "keeps nobody out: locking does not work on this file system"));
  CHECK(with("estale once") == "0 set\n");
}
