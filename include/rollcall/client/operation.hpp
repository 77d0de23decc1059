#pragma once
#include <coroutine>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/result.hpp"
#include "../rt/combine.hpp"
#include "../rt/detail/waiter.hpp"
#include "request.hpp"
#include "state.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What every store operation is: an encoded request, then an exchange with a session under a limit, then an outcome.
/// Moves until it is awaited; from then on it stays where it is. docs/design/session.md, "An operation", has its phases.
class store_op : private waiter, private engine::exchange, private timer_node {
 public:
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    begun_ = client_->core().now();
    return begin(h, &client_->core()) && go();
  }
  /// For start(): the loop this runs on.
  [[nodiscard]] loop_core* own_loop() const noexcept { return &client_->core(); }

 protected:
  store_op(client_ptr c, op_kind k, deadline d) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<store_op&>(t).expire(); }), client_(std::move(c)), limit_(d), kind_(k) {
    client_->core().check_thread();
  }
  store_op(store_op&& o) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<store_op&>(t).expire(); }),
        request_(std::move(o.request_)),
        failure_(std::move(o.failure_)),
        client_(o.client_),
        limit_(o.limit_),
        kind_(o.kind_) {
    ROLLCALL_ASSERT(o.how() == state::idle && "an operation does not move once it is awaited");
  }
  ~store_op() { retire(); }

  /// The failure, or nullptr for success; once the operation has ended.
  [[nodiscard]] failure_ptr outcome() const {
    if (was_stopped() && !failure_) return std::make_shared<failure const>(describe(errc::cancelled, {}));
    return failure_;
  }
  /// For what is found wrong before anything is sent.
  void refuse(failure f) { failure_ = std::make_shared<failure const>(std::move(f.with_peer(client_->endpoint()))); }

  request_bytes request_;
  std::string bytes_;
  std::int64_t number_ = 0;

 private:
  enum class phase : unsigned char { unsent, fenced, one_reply, probing, checking, fetching, confirming, waiting, autopsy };
  static constexpr std::size_t autopsy_keys = 64;
  static constexpr std::chrono::milliseconds autopsy_time{100};
  static constexpr std::size_t preemptible_bytes = 4096;

  [[nodiscard]] bool changes_something() const noexcept {
    return kind_ == op_kind::set || kind_ == op_kind::add || kind_ == op_kind::delete_key || kind_ == op_kind::compare_set ||
           kind_ == op_kind::append || kind_ == op_kind::multi_set;
  }
  /// The encoded request counts its keys (CHECK, WAIT and MULTI_SET do; reads are kept as the WAIT they may become).
  [[nodiscard]] bool counts_keys() const noexcept {
    return kind_ == op_kind::get || kind_ == op_kind::find || kind_ == op_kind::check || kind_ == op_kind::wait ||
           kind_ == op_kind::multi_get || kind_ == op_kind::multi_set || kind_ == op_kind::multi_fetch;
  }
  [[nodiscard]] bool fetches_many() const noexcept { return kind_ == op_kind::multi_get || kind_ == op_kind::multi_fetch; }
  [[nodiscard]] std::uint64_t key_count() const noexcept {
    return counts_keys() ? wire::load<std::uint64_t>(request_.view().data() + 1) : kind_ == op_kind::num_keys ? 0U : 1U;
  }
  /// Calls `f(index, wire form with its length)` for every key of the request.
  template <class F>
  void for_each_key(F f) const {
    std::string_view rest = request_.view().substr(counts_keys() ? 9 : 1);
    for (std::uint64_t i = 0, n = key_count(); i < n; ++i) {
      const auto size = static_cast<std::size_t>(8 + wire::load<std::uint64_t>(rest.data()));
      f(i, rest.substr(0, size));
      rest.remove_prefix(size);
      if (kind_ == op_kind::multi_set) rest.remove_prefix(8 + wire::load<std::uint64_t>(rest.data()));
    }
  }
  [[nodiscard]] static std::string_view as_user_wrote(std::string_view key_with_length) noexcept {
    std::string_view key = key_with_length.substr(8);
    if (!key.empty() && key.front() == '/') key.remove_prefix(1);
    return key;
  }

  /// Sends the first request; false when it is over already.
  bool go() noexcept {
    if (!failure_ && client_->closed()) failure_ = std::make_shared<failure const>(describe_loss(client_->why_closed().get()));
    if (failure_) return finish_at_once();
    client_->operation_begins();
    active_ = true;
    guarded([this] {
      switch (kind_) {
        case op_kind::set:
        case op_kind::append:
        case op_kind::multi_set:
          if (take(client_->command_lane(), phase::fenced)) lane_->session().post(*this, request_.view());
          break;
        case op_kind::add:
        case op_kind::delete_key:
        case op_kind::num_keys:
          if (take(client_->command_lane(), phase::one_reply)) send({}, request_.view(), wire::reply_form::i64);
          break;
        case op_kind::check:
          if (take(client_->command_lane(), phase::one_reply)) send({}, request_.view(), wire::reply_form::u8);
          break;
        case op_kind::compare_set:
        case op_kind::fetch:
          if (take(client_->command_lane(), phase::fetching)) send({}, request_.view(), wire::reply_form::bytes);
          break;
        case op_kind::multi_fetch:
          if (take(client_->command_lane(), phase::fetching)) fetch();
          break;
        case op_kind::multi_get:
          if (key_count() == 0) {  // its reply has no bytes, so nothing would show that it came: a CHECK of no keys instead
            if (take(client_->command_lane(), phase::one_reply)) send("\x05", request_.view().substr(1), wire::reply_form::u8);
            break;
          }
          [[fallthrough]];
        case op_kind::get:
        case op_kind::find: probe(); break;
        case op_kind::wait: wait(); break;
      }
    });
    if (!active_) return true;  // it has failed, and its coroutine is in the ready queue
    client_->request_flush();
    if (!limit_.is_never()) core()->add_timer(*this, limit_.from(begun_));
    return true;
  }
  template <class F>
  void guarded(F f) noexcept {
    try {
      f();
    } catch (error const& e) {
      fail(e.code(), e.info().detail());
    } catch (std::exception const& e) {
      fail(errc::io, e.what());
    }
  }
  bool take(lane* l, phase p) {
    lane_ = l;
    phase_ = p;
    if (!l) fail(errc::limit, "all " + std::to_string(client_->options().max_lanes()) +
                                  " connections of this store are in waits (client_options::max_lanes)");
    if (l && l->backlog() > client_->options().max_unsent()) {
      lane_ = nullptr;
      fail(errc::limit, "the server does not read: " + std::to_string(l->backlog()) + " bytes wait for it (client_options::max_unsent)");
    }
    return lane_ != nullptr;
  }
  void send(std::string_view head, std::string_view body, wire::reply_form form) { lane_->session().send(this, head, body, form); }

  /// One round trip where a GET of a missing key is known to be answered; else CHECK first (design.md 5).
  void probe() {
    const bool at_once = client_->info().is_rollcall;
    if (!take(client_->command_lane(), at_once ? phase::probing : phase::checking)) return;
    send("\x05", request_.view().substr(1), wire::reply_form::u8);
    if (at_once) fetch();
  }
  void fetch() {
    if (fetches_many()) {
      lane_->session().send(this, "\x0a", request_.view().substr(1), wire::reply_form::many, key_count());
    } else {
      send("\x03", request_.view().substr(9), wire::reply_form::bytes);
    }
  }
  void wait() {
    if (!take(client_->wait_lane(), phase::waiting)) return;
    lane_->session().wait(*this, request_.view(), key_count() == 1 && request_.view().size() <= preemptible_bytes);
  }

  void on_reply(std::size_t index, wire::reply& r) noexcept override {
    switch (phase_) {
      case phase::one_reply:
        number_ = kind_ == op_kind::check ? (r.number == wire::check_ready) : static_cast<std::int64_t>(r.number);
        if (kind_ == op_kind::check && r.number > wire::check_not_ready) return fail(errc::protocol, "the answer to CHECK is neither 0 nor 1");
        return end();
      case phase::probing:
        if (index == 0) {
          number_ = r.number == wire::check_ready;
          return;
        }
        [[fallthrough]];
      case phase::fetching:
        if (phase_ == phase::probing && number_ == 0) return absent();
        number_ = 1;
        bytes_.assign(fetches_many() ? r.body : r.bytes);
        return confirm();
      case phase::checking:
        if (r.number != wire::check_ready) return absent();
        guarded([this] {  // a wait may hold the tail of the lane by now
          if (take(client_->command_lane(), phase::fetching)) fetch();
        });
        return client_->request_flush();
      case phase::confirming:
        missing_ |= r.bytes == absent_key ? 1U : r.bytes.empty() ? 0U : 2U;
        if (engine::exchange::engaged()) return;
        if (missing_ == 0) return end();
        return std::exchange(missing_, 0) & 1U ? absent() : on_done();
      case phase::autopsy:
        asked_ |= std::uint64_t{1} << index;
        if (r.number != wire::check_ready) missing_ |= std::uint64_t{1} << index;
        if (!engine::exchange::engaged()) conclude();
        return;
      case phase::unsent:
      case phase::fenced:
      case phase::waiting: return;
    }
  }
  void confirm() noexcept;
  void absent() noexcept {
    if (kind_ == op_kind::find) {
      number_ = 0;
      return end();
    }
    guarded([this] { wait(); });
    client_->request_flush();
  }
  void on_done() noexcept override {
    if (kind_ != op_kind::get && kind_ != op_kind::multi_get && phase_ != phase::confirming) return end();
    guarded([this] {
      if (client_->info().is_rollcall) return probe();
      phase_ = phase::fetching;
      if (take(client_->command_lane(), phase::fetching)) fetch();
    });
    client_->request_flush();
  }
  void on_lost() noexcept override {
    failure_ = std::make_shared<failure const>(describe_loss(lane_->why().get()));
    end();
  }

  void expire() noexcept {
    guarded([this] {
      if (phase_ == phase::autopsy) return conclude();
      if (phase_ != phase::waiting || key_count() <= 1 || !lane_->ready() || std::exchange(expired_, true)) return fail(errc::timed_out, {});
      // Which of the keys are missing? Asked on the connection that waited, up to a tenth of a second.
      phase_ = phase::autopsy;
      lane_->session().cancel(*this);
      for_each_key([this](std::uint64_t i, std::string_view key) {
        constexpr std::string_view check_one("\x05\x01\0\0\0\0\0\0\0", 9);
        if (i < autopsy_keys) send(check_one, key, wire::reply_form::u8);
      });
      client_->request_flush();
      core()->add_timer(*this, core()->now() + autopsy_time);
    });
  }
  void conclude() noexcept {
    const std::uint64_t n = key_count();
    const std::uint64_t bits = n >= autopsy_keys ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
    if (kind_ == op_kind::wait && n <= autopsy_keys && asked_ == bits && missing_ == 0) return end();  // they came while we asked
    guarded([this] { fail(errc::timed_out, {}); });
  }

  void fail(errc code, std::string detail) {
    failure_ = std::make_shared<failure const>(describe(code, std::move(detail)));
    end();
  }
  void end() noexcept {
    retire();
    complete();
  }
  /// Leaves the session and the timers; what was sent stays sent.
  void retire() noexcept {
    if (!std::exchange(active_, false)) return;
    core()->remove_timer(*this);
    if (lane_ && engine::exchange::engaged()) {
      left_behind_ = true;
      guarded_abandon();
      client_->request_flush();
    }
    lane_ = nullptr;
    client_->operation_ends();
  }
  void guarded_abandon() noexcept {
    try {
      lane_->session().abandon(*this);
    } catch (...) {
      // No memory for one byte: the connection cannot be kept in step.
      client_->close();
    }
  }
  void leave() noexcept override { retire(); }

  [[nodiscard]] failure describe_loss(failure const* why) const {
    if (!why) return describe(errc::closed, "the store was closed");
    return describe(why->code(), why->detail());
  }
  [[nodiscard]] failure describe(errc code, std::string detail) const;

 protected:
  failure_ptr failure_;

 private:
  client_ptr client_;
  deadline limit_;
  time_point begun_{};
  lane* lane_ = nullptr;
  std::uint64_t asked_ = 0;
  std::uint64_t missing_ = 0;
  op_kind kind_;
  phase phase_ = phase::unsent;
  bool active_ = false;
  bool left_behind_ = false;
  bool expired_ = false;
};

}  // namespace detail

/// An operation on a store: encoded when it was made, sent when it is awaited, spawned or started. Await it once; it may be moved
/// until then. Keeps its connection alive.
template <class T>
class [[nodiscard]] operation final : public detail::store_op {
 public:
  operation(operation&&) noexcept = default;
  T await_resume() {
    if (failure_ptr f = outcome()) throw error(std::move(f));
    return value();
  }
  /// The outcome without throwing; what as_result() uses.
  result<T> take_result() {
    if (failure_ptr f = outcome()) return result<T>(std::move(f));
    if constexpr (std::is_void_v<T>) {
      return result<void>();
    } else {
      return result<T>(value());
    }
  }

 private:
  friend class tcp_store;
  using detail::store_op::store_op;
  T value() {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::move(bytes_);
    } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
      return number_ != 0 ? std::optional<std::string>(std::move(bytes_)) : std::nullopt;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      std::vector<std::string> values;
      for (wire::field_cursor fields(bytes_); !fields.done();) values.emplace_back(fields.next());
      return values;
    } else if constexpr (std::is_same_v<T, bool>) {
      return number_ != 0;
    } else if constexpr (!std::is_void_v<T>) {
      return static_cast<T>(number_);
    }
  }
};

namespace detail {

template <class T>
class [[nodiscard]] result_awaiter {
 public:
  explicit result_awaiter(operation<T> op) noexcept : op_(std::move(op)) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return op_.await_suspend(h);
  }
  result<T> await_resume() { return op_.take_result(); }
  [[nodiscard]] loop_core* own_loop() const noexcept { return op_.own_loop(); }

 private:
  operation<T> op_;
};

}  // namespace detail

/// The outcome of a store operation as a value: nothing is thrown and no frame is made.
template <class T>
[[nodiscard]] detail::result_awaiter<T> as_result(operation<T> op) noexcept {
  return detail::result_awaiter<T>(std::move(op));
}

}  // namespace v0
}  // namespace rollcall

#include "detail/operation.ipp"
