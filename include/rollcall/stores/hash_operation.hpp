#pragma once
#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../client/request.hpp"
#include "../client/typed_operation.hpp"
#include "../core/result.hpp"
#include "../rt/combine.hpp"
#include "../rt/detail/waiter.hpp"
#include "detail/hash_client.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// An operation on a hash_store: an encoded request that is applied when it is awaited, then perhaps a wait under a limit.
///
/// made -> awaited -> done; or awaited -> waits -> (woken -> waits, a while later -> waits)* -> done. What is done completes through the
/// ready queue, also where it was done at once, so that who asks in a loop gives way to timers and to others.
class hash_op : private waiter, private timer_node, private hash_pending, private hash_sleeper {
 public:
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return suspend(h, env_of(h));
  }
  bool suspend(std::coroutine_handle<> h, environment const& e) noexcept {
    begun_ = client_->core().now();
    if (!begin(h, e, &client_->core())) return false;
    if (!failure_ && client_->closed()) refuse_closed();
    if (failure_) return finish_at_once();
    active_ = true;
    guarded([this] { start(); });
    return true;
  }
  [[nodiscard]] loop_core* own_loop() const noexcept { return &client_->core(); }

 protected:
  hash_op(hash_client_ptr c, op_kind k, deadline d) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<hash_op&>(t).fire(); }), client_(std::move(c)), limit_(d), kind_(k) {
    client_->core().check_thread();
  }
  hash_op(hash_op&& o) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<hash_op&>(t).fire(); }),
        request_(std::move(o.request_)),
        failure_(std::move(o.failure_)),
        client_(std::move(o.client_)),
        limit_(o.limit_),
        kind_(o.kind_) {
    ROLLCALL_ASSERT(o.how() == state::idle && "an operation does not move once it is awaited");
  }
  ~hash_op() {
    retire();
    if (is_pop() && number_ != 0 && !told_) give_back();
  }

  [[nodiscard]] failure_ptr outcome() {
    told_ = true;
    if (was_stopped() && !failure_) return std::make_shared<failure const>(describe(errc::cancelled, {}));
    return failure_;
  }
  [[nodiscard]] std::string& bytes() noexcept { return bytes_; }
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }
  [[nodiscard]] std::vector<std::string> list() noexcept { return std::move(list_); }
  [[nodiscard]] std::string_view name() const noexcept { return traits().name; }
  void refuse(failure f) { failure_ = std::make_shared<failure const>(std::move(f)); }

  request_bytes request_;
  std::string bytes_;
  std::vector<std::string> list_;
  std::int64_t number_ = 0;

 private:
  static constexpr std::chrono::milliseconds first_pause{1};
  static constexpr unsigned longest_pause = 6;  // first_pause, doubled so often

  [[nodiscard]] op_traits traits() const noexcept { return traits_of(kind_); }
  [[nodiscard]] bool is_pop() const noexcept { return kind_ == op_kind::queue_pop || kind_ == op_kind::queue_pop_now; }
  [[nodiscard]] std::uint64_t key_count() const noexcept {
    return traits().counts_keys ? wire::load<std::uint64_t>(request_.view().data() + 1) : traits().has_key ? 1U : 0U;
  }
  /// Calls `f(key)`, in wire form, for every key of the request.
  template <class F>
  void for_each_key(F f) const {
    if (request_.view().empty()) return;  // refused before it was encoded
    wire::field_cursor fields(request_.view().substr(traits().counts_keys ? 9 : 1));
    for (std::uint64_t i = 0, n = key_count(); i < n; ++i) {
      f(fields.next());
      if (kind_ == op_kind::multi_set) static_cast<void>(fields.next());
    }
  }
  [[nodiscard]] std::string_view key() const noexcept {
    return wire::field_cursor(request_.view().substr(traits().counts_keys ? 9 : 1)).next();
  }
  /// The request as the engine takes it. Those that look or wait are kept as the WAIT they may become.
  [[nodiscard]] wire::request request() const noexcept {
    const std::string_view all = request_.view();
    wire::request r;
    r.op = static_cast<wire::opcode>(all.front());
    if (traits().counts_keys) {
      r.count = key_count();
      r.body = all.substr(9);
      if (r.count == 1) r.key = key();
    } else if (traits().has_key) {
      wire::field_cursor fields(all.substr(1));
      r.key = fields.next();
      if (r.op == wire::opcode::add) {
        r.number = static_cast<std::int64_t>(wire::load<std::uint64_t>(all.data() + all.size() - 8));
      } else {
        if (!fields.done()) r.value = fields.next();
        if (!fields.done()) r.value2 = fields.next();
      }
    }
    return r;
  }
  [[nodiscard]] wire::request request_of(wire::opcode op) const noexcept {
    wire::request r;
    r.op = op;
    r.key = key();
    return r;
  }

  // From the await on.
  void start() {
    switch (kind_) {
      case op_kind::set:
      case op_kind::append:
      case op_kind::multi_set:
      case op_kind::queue_push:
        if (apply()) end();
        return;
      case op_kind::add:
      case op_kind::delete_key:
      case op_kind::num_keys:
      case op_kind::queue_len:
        if (!apply()) return;
        number_ = answer_;
        return end();
      case op_kind::check:
        if (!apply()) return;
        number_ = answer_ == wire::check_ready;
        return end();
      case op_kind::compare_set:
      case op_kind::list_keys:
        if (apply()) end();
        return;
      case op_kind::find:
      case op_kind::fetch:
      case op_kind::queue_pop_now: static_cast<void>(attempt()); return end();
      case op_kind::multi_fetch:
        for_each_key([this](std::string_view k) { list_.emplace_back(client_->data().store().peek(k).value_or(std::string_view())); });
        return end();
      case op_kind::get:
      case op_kind::multi_get:
      case op_kind::queue_pop: return attempt() ? end() : wait();
      case op_kind::wait: return all_there() ? end() : wait();
      default: return fail(errc::unsupported, "a hash_store does not have it");
    }
  }

  /// Applies a request that is answered at once and takes its answer; false where that has ended the operation.
  bool apply() {
    hash_data& d = client_->data();
    const engine::apply_status s = d.apply(request());
    if (s != engine::apply_status::ok) {
      fail(s == engine::apply_status::not_a_number ? errc::invalid : errc::limit, std::string(engine::to_string(s)));
      return false;
    }
    switch (kind_) {
      case op_kind::check: answer_ = d.byte(); break;
      case op_kind::add:
      case op_kind::delete_key:
      case op_kind::num_keys:
      case op_kind::queue_len: answer_ = d.number(); break;
      case op_kind::compare_set: d.take(8, bytes_); break;
      case op_kind::list_keys: take_keys(d); break;
      default: break;
    }
    d.wake();
    return true;
  }
  /// The keys of users, as they wrote them.
  void take_keys(hash_data& d) {
    list_.reserve(static_cast<std::size_t>(d.number()));
    d.take(8, bytes_);
    for (wire::field_cursor all(bytes_); !all.done();) list_.emplace_back(all.next().substr(1));
  }

  /// Takes what the operation is for, if it is there now. For a pop that was woken with the right to an item, by that right.
  bool attempt() {
    hash_data& d = client_->data();
    if (is_pop()) {
      const wire::request r = request_of(wire::opcode::queue_pop);
      const engine::apply_status s = waits_ ? d.apply(*waits_, r) : d.apply(r);
      ROLLCALL_ASSERT(s == engine::apply_status::ok && "a pop changes nothing but its queue");
      static_cast<void>(s);
      if (d.number() <= 0) return d.wake(), false;
      d.take(16, bytes_);
      number_ = 1;
      d.wake();
      return true;
    }
    if (kind_ == op_kind::multi_get) {
      bool whole = true;
      for_each_key([&](std::string_view k) { whole = whole && d.store().peek(k); });
      if (!whole) return false;
      list_.reserve(static_cast<std::size_t>(key_count()));
      for_each_key([&](std::string_view k) { list_.emplace_back(*d.store().peek(k)); });
      return true;
    }
    const std::optional<std::string_view> value = d.store().peek(key());
    if (!value) return false;
    bytes_.assign(*value);
    number_ = 1;
    return true;
  }

  [[nodiscard]] bool all_there() {
    wire::request r = request();
    r.op = wire::opcode::check;
    return client_->data().apply(r) == engine::apply_status::ok && client_->data().byte() == wire::check_ready;
  }
  void wait() {
    if (!waits_) {
      waits_.emplace(client_->data().store(), static_cast<hash_sleeper&>(*this));
      client_->begins(*this);
      const time_point at = limit_.from(begun_);
      if (at != time_point::max()) core()->add_timer(*this, at);
    }
    wire::request r = request();
    r.op = wire::opcode::wait;
    const engine::apply_status s = client_->data().apply(*waits_, r);
    if (s != engine::apply_status::ok) return fail(errc::limit, std::string(engine::to_string(s)));
    if (!client_->data().answered()) return client_->data().wake();  // a right to an item that it had may be another one's now
    kind_ == op_kind::wait ? end() : pause();
  }
  void woken() noexcept override {
    guarded([this] {
      if (kind_ == op_kind::wait || attempt()) return end();
      wait();
    });
  }
  /// There is something of that name, but not what is waited for: a value where a queue is popped, a queue where a value is read.
  void pause() {
    const unsigned shift = rounds_ < longest_pause ? rounds_ : longest_pause;
    if (rounds_ < longest_pause) ++rounds_;
    paused_ = true;
    core()->remove_timer(*this);
    core()->add_timer(*this, std::min(core()->now() + first_pause * (1U << shift), limit_.from(begun_)));
  }
  void fire() noexcept {
    guarded([this] {
      if (core()->now() >= limit_.from(begun_)) return fail(errc::timed_out, {});
      if (!std::exchange(paused_, false)) return core()->add_timer(*this, limit_.from(begun_));
      const time_point at = limit_.from(begun_);
      if (at != time_point::max()) core()->add_timer(*this, at);
      attempt() ? end() : wait();
    });
  }

  void store_ends() noexcept override {
    refuse_closed();
    end();
  }
  void leave() noexcept override { retire(); }

  void refuse_closed() noexcept {
    guarded([this] { refuse(describe(errc::closed, "the store was closed")); });
  }
  void fail(errc code, std::string detail) {
    refuse(describe(code, std::move(detail)));
    end();
  }
  void end() noexcept {
    retire();
    complete();
  }
  /// Leaves the engine and the timers.
  void retire() noexcept {
    if (!std::exchange(active_, false)) return;
    if (!waits_) return;
    core()->remove_timer(*this);
    client_->ends(*this);
    waits_.reset();
    client_->data().wake();
  }
  /// Destroyed with an item that its coroutine was not resumed to take: it goes to the tail, as from a connection that ends.
  void give_back() noexcept {
    try {
      wire::request r = request_of(wire::opcode::queue_push);
      r.value = bytes_;
      static_cast<void>(client_->data().apply(r));
      client_->data().wake();
    } catch (std::exception const&) {
      client_->core().log(log_level::warning, "an item of a queue in process is lost: no memory to put it back");
    }
  }

  [[nodiscard]] failure describe(errc code, std::string detail) const {
    failure f(code, traits().name, std::move(detail));
    const bool names_missing = code == errc::timed_out && (kind_ == op_kind::wait || kind_ == op_kind::multi_get) && key_count() > 1;
    for_each_key([&](std::string_view k) {
      if (names_missing && ready(k)) return;
      f.with_key(k.substr(1));
    });
    return f.with_times(client_->core().now() - begun_, limit_.length(begun_));
  }
  [[nodiscard]] bool ready(std::string_view k) const {
    wire::request r;
    r.op = kind_ == op_kind::wait ? wire::opcode::check : wire::opcode::get;
    if (kind_ != op_kind::wait) return client_->data().store().peek(k).has_value();
    r.key = k;
    r.count = 1;
    return client_->data().apply(r) == engine::apply_status::ok && client_->data().byte() == wire::check_ready;
  }

  template <class F>
  void guarded(F f) noexcept {
    try {
      f();
    } catch (std::exception const& e) {
      broken(e);
    }
  }
  void broken(std::exception const& e) noexcept {
    refuse(failure(errc::io, traits().name, e.what()));  // without memory even for that, the program ends
    if (active_) end();
  }

 protected:
  failure_ptr failure_;

 private:
  hash_client_ptr client_;
  deadline limit_;
  time_point begun_{};
  std::int64_t answer_ = 0;
  std::optional<hash_waiter> waits_;
  op_kind kind_;
  std::uint8_t rounds_ = 0;
  bool active_ = false;  // awaited, and not over
  bool paused_ = false;
  bool told_ = false;  // its coroutine has the outcome
};

}  // namespace detail

/// An operation on a hash_store: encoded when it was made, applied when it is awaited, spawned or started. Await it once; it may be moved
/// until then. Keeps the data alive.
template <class T>
class [[nodiscard]] hash_operation final : public detail::typed_operation<T, detail::hash_op> {
 public:
  hash_operation(hash_operation&&) noexcept = default;

 private:
  friend class hash_store;
  using detail::typed_operation<T, detail::hash_op>::typed_operation;
};

}  // namespace v0
}  // namespace rollcall
