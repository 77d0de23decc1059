#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../client/request.hpp"
#include "../../core/error.hpp"
#include "../../core/intrusive.hpp"
#include "../../engine/store.hpp"
#include "file_map.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

class file_request;

/// An operation, as its client sees it.
class file_op {
 public:
  /// The request comes back, done.
  virtual void answered(std::unique_ptr<file_request> r) noexcept = 0;
  /// The store is over; the request is the client's.
  virtual void store_ends(errc code, std::string_view text, effect e) noexcept = 0;

 protected:
  ~file_op() = default;
};

/// What an operation on a file_store wants, and what came of it. Belongs to the operation, then to the client, while a job runs to the
/// job: a coroutine may go at any time, a thread of the pool may not be stopped.
class file_request : public list_hook<> {
 public:
  enum class place : unsigned char { none, due, job, waiting };

  explicit file_request(op_kind k) noexcept : kind(k) {}

  [[nodiscard]] std::string_view name() const noexcept { return kind == op_kind::ping ? "open" : traits_of(kind).name; }
  /// Needs the exclusive lock.
  [[nodiscard]] bool changes() const noexcept {
    switch (kind) {
      case op_kind::set:
      case op_kind::add:
      case op_kind::delete_key:
      case op_kind::compare_set:
      case op_kind::append:
      case op_kind::multi_set:
      case op_kind::queue_push:
      case op_kind::queue_pop:
      case op_kind::queue_pop_now: return true;
      default: return false;
    }
  }
  [[nodiscard]] bool pops() const noexcept { return kind == op_kind::queue_pop || kind == op_kind::queue_pop_now; }
  /// The job carries it out now; false where it was given up before.
  [[nodiscard]] bool begin() noexcept { return claim_.exchange(claim::begun) != claim::given_up; }
  /// Its operation gives it up; the effect that it has then. An item that a pop took is put back.
  [[nodiscard]] effect give_up() noexcept {
    return claim_.exchange(claim::given_up) == claim::begun && changes() && !pops() ? effect::unknown : effect::none;
  }
  /// It goes into another job.
  void renew() noexcept { claim_.store(claim::none); }

  void fail(errc c, std::string text, effect e = effect::none) {
    done = failed = true;
    code = c;
    detail = std::move(text);
    what_happened = e;
  }

  op_kind kind;
  std::vector<std::string> keys;    // as their user wrote them
  std::vector<std::string> values;  // set, append, queue_push: one; compare_set: expected and desired; multi_set: as many as keys
  std::int64_t number = 0;          // of add what is added; then the answer

  bool done = false;
  bool failed = false;
  errc code = errc::io;
  effect what_happened = effect::none;
  std::string detail;
  std::string bytes;              // the answer
  std::vector<std::string> list;  // the answer

  // Of wait and multi_get: which keys have been there, for those that name several.
  std::vector<bool> seen;
  std::size_t unseen = 0;

  // The loop's thread only.
  file_op* owner = nullptr;
  place where = place::none;

 private:
  enum class claim : unsigned char { none, begun, given_up };
  std::atomic<claim> claim_{claim::none};
};

/// Carries out requests on a map that is up to date; what they change is added to `out` as records.
class file_step {
 public:
  file_step(file_map& m, std::string& out) noexcept : map_(m), out_(out) {}

  void run(file_request& r) {
    using namespace file_format;
    switch (r.kind) {
      case op_kind::set: put(user, r.keys[0], r.values[0]); return finish(r);
      case op_kind::multi_set:
        for (std::size_t i = 0; i < r.keys.size(); ++i) put(user, r.keys[i], r.values[i]);
        return finish(r);
      case op_kind::append: return append(r);
      case op_kind::add: return add(r);
      case op_kind::compare_set: return compare_set(r);
      case op_kind::delete_key:
        r.number = map_.find(r.keys[0]) != nullptr;
        if (r.number != 0) put(removal, r.keys[0], {});
        return finish(r);
      case op_kind::queue_push: put(push, r.keys[0], r.values[0]); return finish(r);
      case op_kind::queue_pop:
      case op_kind::queue_pop_now: return take(r);
      case op_kind::queue_len: r.number = static_cast<std::int64_t>(map_.queued(r.keys[0])); return finish(r);
      case op_kind::num_keys: r.number = static_cast<std::int64_t>(map_.size()); return finish(r);
      case op_kind::list_keys:
        r.list.reserve(map_.size());
        map_.for_each_key([&r](std::string const& k) { r.list.push_back(k); });
        return finish(r);
      case op_kind::check:
        r.number = 1;
        for (std::string const& k : r.keys)
          if (!map_.exists(k)) r.number = 0;
        return finish(r);
      case op_kind::find:
        if (std::string const* found = map_.find(r.keys[0])) {
          r.bytes = *found;
          r.number = 1;
        }
        return finish(r);
      case op_kind::get:
      case op_kind::multi_get:
      case op_kind::wait: return look(map_, r);
      default: return finish(r);
    }
  }

  /// For those that wait: done when what they wait for is there.
  static void look(file_map const& map, file_request& r) {
    if (r.kind == op_kind::wait) {
      if (r.seen.empty()) r.seen.resize(r.keys.size());
      r.unseen = 0;
      for (std::size_t i = 0; i < r.keys.size(); ++i) {
        if (!r.seen[i]) r.seen[i] = map.exists(r.keys[i]);
        r.unseen += !r.seen[i];
      }
      r.done = r.unseen == 0;
      return;
    }
    r.seen.assign(r.keys.size(), false);
    r.unseen = 0;
    for (std::size_t i = 0; i < r.keys.size(); ++i) {
      r.seen[i] = map.find(r.keys[i]) != nullptr;
      r.unseen += !r.seen[i];
    }
    if (r.unseen != 0) return;
    if (r.kind == op_kind::get) {
      r.bytes = *map.find(r.keys[0]);
    } else {
      r.list.reserve(r.keys.size());
      for (std::string const& k : r.keys) r.list.push_back(*map.find(k));
    }
    r.done = true;
  }
  /// The key came to exist; "existed at some moment" is enough for wait.
  static void saw(file_request& r, std::size_t i) noexcept {
    if (r.kind != op_kind::wait || r.seen[i]) return;
    r.seen[i] = true;
    if (--r.unseen == 0) r.done = true;
  }

  void put(std::string_view family, std::string_view key, std::string_view value) {
    put_record(out_, family, key, value);
    key_.assign(family).append(key);
    map_.apply(key_, value);
  }

 private:
  static void finish(file_request& r) noexcept { r.done = true; }

  void append(file_request& r) {
    std::string const* old = map_.find(r.keys[0]);
    if (old && old->size() + r.values[0].size() > file_format::max_value)
      return r.fail(errc::limit, std::string(engine::to_string(engine::apply_status::value_too_long)));
    std::string whole = old ? *old : std::string();
    whole += r.values[0];
    put(file_format::user, r.keys[0], whole);
    finish(r);
  }
  void add(file_request& r) {
    using engine::apply_status;
    std::int64_t sum = 0;
    apply_status s = apply_status::ok;
    if (std::string const* old = map_.find(r.keys[0])) s = engine::detail::parse_number(*old, sum);
    if (s == apply_status::ok && __builtin_add_overflow(sum, r.number, &sum)) s = apply_status::number_overflow;
    if (s != apply_status::ok)
      return r.fail(s == apply_status::not_a_number ? errc::invalid : errc::limit, std::string(engine::to_string(s)));
    const engine::detail::number_text text(sum);
    put(file_format::user, r.keys[0], text.view());
    r.number = sum;
    finish(r);
  }
  void compare_set(file_request& r) {
    std::string const* old = map_.find(r.keys[0]);
    std::string const& expected = r.values[0];
    if (old ? *old == expected : expected.empty()) {
      put(file_format::user, r.keys[0], r.values[1]);
      r.bytes = r.values[1];
    } else {
      r.bytes = old ? *old : expected;
    }
    finish(r);
  }
  void take(file_request& r) {
    r.number = map_.queued(r.keys[0]) != 0;
    if (r.number != 0) {
      r.bytes = map_.head(r.keys[0]);
      put(file_format::pop, r.keys[0], {});
    }
    r.done = r.number != 0 || r.kind == op_kind::queue_pop_now;
  }

  file_map& map_;
  std::string& out_;
  std::string key_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
