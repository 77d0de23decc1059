#pragma once
// What each command asks of the store. All of them under one limit, which began with the program.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <rollcall/barrier.hpp>
#include <rollcall/rollcall.hpp>
#include <string>
#include <utility>
#include <vector>

#include "answer.hpp"

namespace cli {

using namespace std::chrono_literals;

/// What the command line says about the command.
struct request {
  std::string command;
  std::vector<std::string> words;  // keys and values, in order
  std::int64_t delta = 1;
  bool wait = false;
  std::string name = "barrier";
  int rank = -1;
  int world = 0;
  int attempt = 0;
};

namespace detail {

inline answer absent(std::string const& key) {
  return answer(answer::none(), negative).with_remark("there is no key '" + printable(key, true) + "'");
}

inline rc::task<answer> read_one(rc::any_store s, request r) {
  std::string const& key = r.words[0];
  if (r.wait) {
    std::string there = co_await s.get(key);
    co_return answer(bytes(std::move(there)));
  }
  std::optional<std::string> there = co_await s.find(key);
  if (!there) co_return absent(key);
  co_return answer(bytes(std::move(*there)));
}

inline rc::task<answer> read_many(rc::any_store s, request r) {
  std::vector<bytes> all;
  const bool complete = r.wait || co_await s.check(r.words);
  if (complete) {
    std::vector<std::string> got = co_await s.multi_get(r.words);
    for (std::string& v : got) all.emplace_back(std::move(v));
    co_return answer(std::move(all)).with_name("values");
  }
  std::string missing;
  for (std::string const& key : r.words) {
    std::optional<std::string> there = co_await s.find(key);
    if (there) {
      all.emplace_back(std::move(*there));
    } else {
      all.emplace_back(std::string(), false);
      missing += (missing.empty() ? "'" : ", '") + printable(key, true) + "'";
    }
  }
  co_return answer(std::move(all), missing.empty() ? ok : negative)
      .with_name("values")
      .with_remark(missing.empty() ? "" : "there is no " + missing);
}

inline rc::task<answer> store_if(rc::any_store s, request r) {
  const std::string now = co_await s.compare_set(r.words[0], r.words[1], r.words[2]);
  if (now == r.words[2]) co_return answer(bytes(now));
  // A key that is missing is answered with what was expected (protocol 4.1).
  if (now == r.words[1]) co_return absent(r.words[0]);
  co_return answer(bytes(now), negative).with_remark("another value is there; nothing was stored");
}

inline rc::task<answer> store_many(rc::any_store s, request r) {
  std::vector<rc::kv> pairs;
  for (std::size_t i = 0; i + 1 < r.words.size(); i += 2) pairs.emplace_back(r.words[i], r.words[i + 1]);
  co_await s.multi_set(pairs);
  co_return answer();
}

inline rc::task<answer> remove(rc::any_store s, request r) {
  std::int64_t gone = 0;
  for (std::string const& key : r.words) gone += co_await s.delete_key(key) ? 1 : 0;
  co_return answer(gone, gone > 0 ? ok : negative).with_name("deleted");
}

inline rc::task<answer> pop(rc::any_store s, request r) {
  std::string const& key = r.words[0];
  if (r.wait) {
    std::string item = co_await s.queue_pop(key);
    co_return answer(bytes(std::move(item)));
  }
  std::optional<std::string> item = co_await s.queue_pop_now(key);
  if (!item) co_return answer(answer::none(), negative).with_remark("queue '" + printable(key, true) + "' is empty");
  co_return answer(bytes(std::move(*item)));
}

inline rc::task<answer> list(rc::any_store s) {
  std::vector<std::string> names = co_await s.list_keys();
  std::sort(names.begin(), names.end());
  std::vector<bytes> all;
  for (std::string& n : names) all.emplace_back(std::move(n));
  co_return answer(std::move(all)).with_name("keys");
}

/// A line on the terminal that is taken away again.
class progress_line {
 public:
  explicit progress_line(bool shown) noexcept : shown_(shown) {}
  progress_line(progress_line const&) = delete;
  progress_line& operator=(progress_line const&) = delete;
  ~progress_line() {
    if (shown_) put(stderr, "\r\033[K");
  }

 private:
  bool shown_;
};

/// Shows on a terminal how many have come.
inline rc::task<answer> meet(rc::any_store s, request r, rc::deadline limit) {
  const bool shown = ::isatty(STDERR_FILENO) != 0;
  rc::barrier_options how;
  how.attempt(r.attempt);
  if (shown)
    how.logging_interval(500ms).progress(
        [](std::int64_t here, int world) { put(stderr, fmt::format("\r{} of {} have arrived ", here, world)); });
  rc::barrier everyone(s, r.name, r.rank, r.world, how);
  const progress_line cleared(shown);
  co_await everyone.arrive_and_wait(limit);
  co_return answer(std::int64_t{r.world}).with_name("ranks");
}

inline rc::task<answer> ping(rc::any_store s) {
  rc::tcp_store const* client = s.get_if<rc::tcp_store>();
  if (!client) throw rc::error(rc::errc::unsupported, "ping", "there is no server to ask: the store is no tcp:// one");
  const rc::duration took = co_await client->ping();
  co_return answer(std::chrono::duration<double>(took).count()).with_name("seconds");
}

}  // namespace detail

/// Carries out `r`. Throws rollcall::error.
inline rc::task<answer> carry_out(rc::any_store s, request r, rc::deadline limit) {
  std::vector<std::string> const& w = r.words;
  if (r.command == "get") co_return co_await detail::read_one(s, r);
  if (r.command == "mget") co_return co_await detail::read_many(s, r);
  if (r.command == "cas") co_return co_await detail::store_if(s, r);
  if (r.command == "mset") co_return co_await detail::store_many(s, r);
  if (r.command == "delete") co_return co_await detail::remove(s, r);
  if (r.command == "pop") co_return co_await detail::pop(s, r);
  if (r.command == "keys") co_return co_await detail::list(s);
  if (r.command == "barrier") co_return co_await detail::meet(s, r, limit);
  if (r.command == "ping") co_return co_await detail::ping(s);
  answer a;
  if (r.command == "set") {
    co_await s.set(w[0], w[1]);
  } else if (r.command == "append") {
    co_await s.append(w[0], w[1]);
  } else if (r.command == "push") {
    co_await s.queue_push(w[0], w[1]);
  } else if (r.command == "wait") {
    co_await s.wait(w);
  } else if (r.command == "add") {
    const std::int64_t sum = co_await s.add(w[0], r.delta);
    a.value = sum;
  } else if (r.command == "check") {
    const bool there = co_await s.check(w);
    a = answer(there, there ? ok : negative).with_name("there");
  } else if (r.command == "len") {
    const std::int64_t n = co_await s.queue_len(w[0]);
    a = answer(n).with_name("length");
  } else if (r.command == "num-keys") {
    const std::int64_t n = co_await s.num_keys();
    a = answer(n).with_name("keys");
  }
  co_return a;
}

}  // namespace cli
