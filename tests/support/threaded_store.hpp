#pragma once
#include <atomic>
#include <memory>
#include <thread>
#include <type_traits>

#include "net.hpp"

namespace net_test {

/// blocking_store as a store of a loop, each call in a thread of its own, so that what is asked of stores can be asked of it. A stop
/// interrupts the store until the call has ended: it ends all calls of the store, since interrupt() knows no single one.
class threaded_store {
 public:
  using limit = std::optional<rc::deadline>;
  threaded_store(rc::loop& l, rc::blocking_store s) : loop_(&l), s_(std::move(s)) {}

  rc::task<> set(string_view k, string_view v, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), v = string(v), d](rc::blocking_store const& s) { s.set(k, v, d); });
  }
  rc::task<string> get(string_view k, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), d](rc::blocking_store const& s) { return s.get(k, d); });
  }
  rc::task<std::optional<string>> find(string_view k, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), d](rc::blocking_store const& s) { return s.find(k, d); });
  }
  rc::task<std::int64_t> add(string_view k, std::int64_t n, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), n, d](rc::blocking_store const& s) { return s.add(k, n, d); });
  }
  rc::task<bool> check(rc::keys k, limit d = {}) const {
    return run(*loop_, s_, [k = copy_of(k), d](rc::blocking_store const& s) { return s.check(k, d); });
  }
  rc::task<> wait(rc::keys k, limit d = {}) const {
    return run(*loop_, s_, [k = copy_of(k), d](rc::blocking_store const& s) { s.wait(k, d); });
  }
  rc::task<bool> delete_key(string_view k, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), d](rc::blocking_store const& s) { return s.delete_key(k, d); });
  }
  rc::task<std::int64_t> num_keys(limit d = {}) const {
    return run(*loop_, s_, [d](rc::blocking_store const& s) { return s.num_keys(d); });
  }
  rc::task<std::vector<string>> list_keys(limit d = {}) const {
    return run(*loop_, s_, [d](rc::blocking_store const& s) { return s.list_keys(d); });
  }
  rc::task<string> compare_set(string_view k, string_view e, string_view v, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), e = string(e), v = string(v), d](rc::blocking_store const& s) { return s.compare_set(k, e, v, d); });
  }
  rc::task<> append(string_view k, string_view v, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), v = string(v), d](rc::blocking_store const& s) { s.append(k, v, d); });
  }
  rc::task<std::vector<string>> multi_get(rc::keys k, limit d = {}) const {
    return run(*loop_, s_, [k = copy_of(k), d](rc::blocking_store const& s) { return s.multi_get(k, d); });
  }
  rc::task<> multi_set(rc::pairs p, limit d = {}) const {
    std::vector<std::pair<string, string>> copies;
    for (rc::kv const& one : p) copies.emplace_back(one.key, one.value);
    return run(*loop_, s_, [copies = std::move(copies), d](rc::blocking_store const& s) {
      std::vector<rc::kv> views;
      for (auto const& [k, v] : copies) views.emplace_back(k, v);
      s.multi_set(views, d);
    });
  }
  rc::task<> queue_push(string_view k, string_view v, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), v = string(v), d](rc::blocking_store const& s) { s.queue_push(k, v, d); });
  }
  rc::task<string> queue_pop(string_view k, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), d](rc::blocking_store const& s) { return s.queue_pop(k, d); });
  }
  rc::task<std::optional<string>> queue_pop_now(string_view k, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), d](rc::blocking_store const& s) { return s.queue_pop_now(k, d); });
  }
  rc::task<std::int64_t> queue_len(string_view k, limit d = {}) const {
    return run(*loop_, s_, [k = string(k), d](rc::blocking_store const& s) { return s.queue_len(k, d); });
  }
  rc::task<threaded_store> clone(rc::deadline d) const { return cloned(loop_, s_, d); }
  [[nodiscard]] rc::loop_ref home() const { return *loop_; }
  [[nodiscard]] std::uint64_t identity() const { return s_.identity(); }
  [[nodiscard]] bool is_open() const { return s_.is_open(); }
  [[nodiscard]] bool server_is_rollcall() const { return s_.server_is_rollcall(); }
  void close() const { s_.close(); }

 private:
  static std::vector<string> copy_of(rc::keys const& k) {
    std::vector<string> all;
    for (std::size_t i = 0; i < k.size(); ++i) all.emplace_back(k[i]);
    return all;
  }
  static rc::task<threaded_store> cloned(rc::loop* l, rc::blocking_store s, rc::deadline d) {
    const auto clone = [d](rc::blocking_store const& one) { return one.clone(d); };
    rc::blocking_store other = co_await run(*l, std::move(s), clone);
    co_return threaded_store(*l, std::move(other));
  }

  template <class T>
  struct call {
    explicit call(rc::loop& l) : over(l) {}
    rc::event over;
    std::atomic<bool> done{false};
    std::optional<rc::result<T>> got;
  };
  /// The thread of one call; ends with it, whatever ends it.
  template <class T, class F>
  class runner {
   public:
    runner(rc::loop& l, std::shared_ptr<call<T>> c, rc::blocking_store const& s, F f)
        : call_(std::move(c)), s_(s), thread_([door = l.post_handle(), own = call_, s, f = std::move(f)]() mutable {
            try {
              if constexpr (std::is_void_v<T>) {
                f(s);
                own->got.emplace();
              } else {
                own->got.emplace(f(s));
              }
            } catch (rc::error const& e) {
              own->got.emplace(e.shared());
            }
            own->done = true;
            door.post([own] { own->over.set(); });
          }) {}
    runner(runner const&) = delete;
    runner& operator=(runner const&) = delete;
    ~runner() { join(); }
    void join() {
      if (!thread_.joinable()) return;
      for (; !call_->done; std::this_thread::yield()) s_.interrupt();
      thread_.join();
    }

   private:
    std::shared_ptr<call<T>> call_;
    rc::blocking_store s_;
    std::thread thread_;
  };
  template <class F, class T = std::invoke_result_t<F&, rc::blocking_store const&>>
  static rc::task<T> run(rc::loop& l, rc::blocking_store s, F f) {
    const auto mine = std::make_shared<call<T>>(l);
    runner<T, F> thread(l, mine, s, std::move(f));
    try {
      co_await mine->over.wait();
    } catch (rc::error const&) {  // stopped
    }
    thread.join();
    if (!*mine->got) throw rc::error(mine->got->shared());
    if constexpr (!std::is_void_v<T>) co_return std::move(**mine->got);
  }

  rc::loop* loop_;
  rc::blocking_store s_;
};
static_assert(rc::store<threaded_store>);

}  // namespace net_test
