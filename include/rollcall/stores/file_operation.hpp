#pragma once
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../client/typed_operation.hpp"
#include "../core/result.hpp"
#include "../rt/combine.hpp"
#include "../rt/detail/waiter.hpp"
#include "detail/file_client.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// An operation on a file_store: a request that is handed to the client when it is awaited, and comes back done; or is given up.
class file_op_base : private waiter, private timer_node, private file_op {
 public:
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return suspend(h, env_of(h));
  }
  bool suspend(std::coroutine_handle<> h, environment const& e) noexcept {
    file_state& s = client_->state();
    begun_ = s.core().now();
    if (!begin(h, e, &s.core())) return false;
    if (!failure_ && s.ended()) fail(s.ended_by(), s.why_ended(), effect::none);
    if (failure_) return finish_at_once();
    active_ = true;
    const time_point at = limit_.from(begun_);
    if (at != time_point::max()) core()->add_timer(*this, at);
    core()->expect_posts(true);
    s.submit(std::move(request_), *this);
    return true;
  }
  [[nodiscard]] loop_core* own_loop() const noexcept { return &client_->state().core(); }

 protected:
  file_op_base(file_client_ptr c, op_kind k, deadline d)
      : timer_node([](timer_node& t) noexcept { static_cast<file_op_base&>(t).expire(); }),
        request_(std::make_unique<file_request>(k)),
        client_(std::move(c)),
        limit_(d),
        held_(request_.get()) {
    client_->state().core().check_thread();
  }
  file_op_base(file_op_base&& o) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<file_op_base&>(t).expire(); }),
        request_(std::move(o.request_)),
        failure_(std::move(o.failure_)),
        client_(std::move(o.client_)),
        limit_(o.limit_),
        held_(o.held_) {
    ROLLCALL_ASSERT(o.how() == state::idle && "an operation does not move once it is awaited");
  }
  ~file_op_base() {
    retire();
    // Destroyed with an item that its coroutine was not resumed to take.
    if (request_ && !told_ && request_->pops() && request_->done && !request_->failed && request_->number != 0)
      client_->state().give_back(request_->keys[0], std::move(request_->bytes));
  }

  [[nodiscard]] failure_ptr outcome() {
    told_ = true;
    if (was_stopped() && !failure_) return std::make_shared<failure const>(describe(errc::cancelled, {}));
    return failure_;
  }
  [[nodiscard]] std::string& bytes() noexcept { return request_->bytes; }
  [[nodiscard]] std::int64_t number() const noexcept { return request_->number; }
  [[nodiscard]] std::vector<std::string> list() noexcept { return std::move(request_->list); }
  void refuse(failure f) { failure_ = std::make_shared<failure const>(std::move(f.with_peer(client_->state().path()))); }

  std::unique_ptr<file_request> request_;  // while it is here
  failure_ptr failure_;

 private:
  // Those that end it: an answer, the end of the store, its limit, a stop.
  void answered(std::unique_ptr<file_request> r) noexcept override {
    request_ = std::move(r);
    if (request_->failed) fail(request_->code, request_->detail, request_->what_happened);
    end();
  }
  void store_ends(errc code, std::string_view text, effect e) noexcept override {
    fail(code, text, e);
    held_ = nullptr;
    end();
  }
  void expire() noexcept {
    // What is in the way, for those whose turn has not come.
    file_state const& s = client_->state();
    const bool waits = held_->where == file_request::place::waiting;
    const effect e = held_->give_up();
    if (waits || e != effect::none || s.trouble().empty()) {
      fail(errc::timed_out, {}, e);
    } else {
      fail(s.trouble_code(), s.trouble(), e);
    }
    end();
  }
  void leave() noexcept override {
    fail(errc::cancelled, {}, held_->give_up());
    retire();
  }

  void fail(errc code, std::string_view text, effect e) noexcept {
    try {
      failure f = describe(code, std::string(text));
      failure_ = std::make_shared<failure const>(std::move(f.with_effect(e)));
    } catch (std::exception const& x) {
      failure_ = std::make_shared<failure const>(errc::io, held_->name(), x.what());  // without memory even for that, the program ends
    }
  }
  void end() noexcept {
    retire();
    complete();
  }
  void retire() noexcept {
    if (!std::exchange(active_, false)) return;
    core()->remove_timer(*this);
    core()->expect_posts(false);
    if (held_ && !request_) client_->state().abandon(*std::exchange(held_, nullptr));
  }
  [[nodiscard]] failure describe(errc code, std::string detail) const {
    failure f(code, held_ ? held_->name() : std::string_view("operation"), std::move(detail));
    f.with_peer(client_->state().path());
    if (!held_) return f;
    // What it has seen belongs to the job while there is one.
    const bool names_missing = code == errc::timed_out && held_->where == file_request::place::waiting && held_->keys.size() > 1;
    for (std::size_t i = 0; i < held_->keys.size(); ++i)
      if (!names_missing || !held_->seen[i]) f.with_key(held_->keys[i]);
    return f.with_times(client_->state().core().now() - begun_, limit_.length(begun_));
  }

  file_client_ptr client_;
  deadline limit_;
  time_point begun_{};
  file_request* held_;   // the same, wherever it is
  bool active_ = false;  // awaited, and not over
  bool told_ = false;    // its coroutine has the outcome
};

}  // namespace detail

/// An operation on a file_store: carried out in the thread pool when it is awaited, spawned or started. Await it once; it may be moved
/// until then. Keeps the store alive.
template <class T>
class [[nodiscard]] file_operation final : public detail::typed_operation<T, detail::file_op_base> {
 public:
  file_operation(file_operation&&) noexcept = default;

 private:
  friend class file_store;
  using detail::typed_operation<T, detail::file_op_base>::typed_operation;
};

}  // namespace v0
}  // namespace rollcall
