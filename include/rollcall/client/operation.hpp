#pragma once
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
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
#include "typed_operation.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What every store operation is: an encoded request, then an exchange with a session under a limit, then an outcome.
/// Moves until it is awaited; from then on it stays where it is. docs/design/session.md, "An operation", has its phases.
class store_op : private waiter, private engine::exchange, private timer_node, private running_op {
 public:
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return suspend(h, env_of(h));
  }
  /// The same where the type of the promise is lost (docs/design/stores.md).
  bool suspend(std::coroutine_handle<> h, environment const& e) noexcept {
    begun_ = client_->core().now();
    return begin(h, e, &client_->core()) && go();
  }
  /// For start(): the loop this runs on.
  [[nodiscard]] loop_core* own_loop() const noexcept { return &client_->core(); }

 protected:
  store_op(client_ptr c, op_kind k, deadline d) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<store_op&>(t).expire(); }),
        request_(c->spares()),
        client_(std::move(c)),
        limit_(d),
        kind_(k) {
    client_->core().check_thread();
  }
  store_op(store_op&& o) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<store_op&>(t).expire(); }),
        request_(std::move(o.request_)),
        buffer_(o.buffer_),
        failure_(std::move(o.failure_)),
        client_(o.client_),
        limit_(o.limit_),
        asked_(o.asked_),
        missing_(o.missing_),
        kind_(o.kind_) {
    ROLLCALL_ASSERT(o.how() == state::idle && "an operation does not move once it is awaited");
  }
  ~store_op() {
    retire();
    if (is_pop() && number_ != 0 && !told_) leave_item();
    request_.release();
  }

  /// The failure, or nullptr for success; once the operation has ended.
  [[nodiscard]] failure_ptr outcome() {
    told_ = true;
    if (was_stopped() && !failure_) return std::make_shared<failure const>(describe(errc::cancelled, {}));
    return failure_;
  }
  /// For what is found wrong before anything is sent.
  void refuse(failure f) { failure_ = std::make_shared<failure const>(std::move(f.with_peer(client_->endpoint()))); }
  [[nodiscard]] op_kind kind() const noexcept { return kind_; }
  [[nodiscard]] std::string& bytes() noexcept { return bytes_; }
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }
  /// Values; of LIST_KEYS the keys of users, as they wrote them (protocol 5).
  [[nodiscard]] std::vector<std::string> list() const {
    std::vector<std::string> all;
    const bool lists_keys = kind_ == op_kind::list_keys;
    for (wire::field_cursor fields(bytes_); !fields.done();) {
      std::string_view field = fields.next();
      if (lists_keys && !field.starts_with('/')) continue;
      if (lists_keys) field.remove_prefix(1);
      all.emplace_back(field);
    }
    return all;
  }
  /// A flush is for what was sent before it was called.
  void cover_sends() noexcept {
    asked_ = client_->sends().sent();
    missing_ = client_->sends().told();
  }

  request_bytes request_;
  std::string bytes_;
  std::span<char> buffer_;  // of get_into
  std::int64_t number_ = 0;

 private:
  enum class phase : unsigned char {
    unsent,
    fenced,
    one_reply,
    probing,
    checking,
    fetching,
    confirming,
    waiting,
    autopsy,
    popping,
    pausing,
    knocking,
    trying,
    doubting,
    asking
  };
  static constexpr std::size_t autopsy_keys = 64;
  static constexpr std::chrono::milliseconds autopsy_time{100};
  static constexpr std::chrono::milliseconds first_pause{1};
  static constexpr unsigned longest_pause = 6;  // first_pause, doubled so often
  static constexpr std::size_t preemptible_bytes = 4096;
  static constexpr std::string_view check_one{"\x05\x01\0\0\0\0\0\0\0", 9};
  static constexpr std::string_view check_none{"\x05\0\0\0\0\0\0\0\0", 9};

  [[nodiscard]] op_traits traits() const noexcept { return traits_of(kind_); }
  [[nodiscard]] bool fetches_many() const noexcept { return kind_ == op_kind::multi_get || kind_ == op_kind::multi_fetch; }
  [[nodiscard]] bool waits_and_fetches() const noexcept {
    return kind_ == op_kind::get || kind_ == op_kind::multi_get || kind_ == op_kind::get_into;
  }
  [[nodiscard]] bool is_pop() const noexcept { return kind_ == op_kind::queue_pop || kind_ == op_kind::queue_pop_now; }
  /// What it has sent last changes nothing; what did, a BARRIER, was sent before.
  [[nodiscard]] bool only_looks() const noexcept {
    return kind_ == op_kind::server_barrier && phase_ != phase::waiting && phase_ != phase::trying;
  }
  [[nodiscard]] std::uint64_t key_count() const noexcept {
    return traits().counts_keys ? wire::load<std::uint64_t>(request_.view().data() + 1) : traits().has_key ? 1U : 0U;
  }
  /// Calls `f(index, wire form with its length)` for every key of the request.
  template <class F>
  void for_each_key(F f) const {
    std::string_view rest = request_.view();
    if (rest.empty()) return;  // refused before it was encoded
    rest.remove_prefix(traits().counts_keys ? 9 : 1);
    for (std::uint64_t i = 0, n = key_count(); i < n; ++i) {
      const auto size = static_cast<std::size_t>(8 + wire::load<std::uint64_t>(rest.data()));
      f(i, rest.substr(0, size));
      rest.remove_prefix(size);
      if (kind_ == op_kind::multi_set) rest.remove_prefix(8 + wire::load<std::uint64_t>(rest.data()));
    }
  }
  /// The first one, in wire form, with its length and without.
  [[nodiscard]] std::string_view key_with_length() const noexcept {
    const std::string_view rest = request_.view().substr(traits().counts_keys ? 9 : 1);
    return rest.substr(0, static_cast<std::size_t>(8 + wire::load<std::uint64_t>(rest.data())));
  }
  [[nodiscard]] std::string_view key() const noexcept { return key_with_length().substr(8); }
  [[nodiscard]] static std::string_view as_user_wrote(std::string_view key_with_length) noexcept {
    std::string_view key = key_with_length.substr(8);
    if (!key.empty() && key.front() == '/') key.remove_prefix(1);
    return key;
  }

  // detail/operation.ipp: from the await on
  [[nodiscard]] bool go() noexcept;
  [[nodiscard]] bool over_before_it_begins();
  void start();
  void start_known();
  [[nodiscard]] bool take(lane* l, phase p);
  void send(std::string_view head, std::string_view body, wire::reply_form form) { lane_->session().send(this, head, body, form); }
  void change(wire::reply_form form, phase p);
  void post();
  void probe();
  void fetch();
  void wait();
  void on_reply(std::size_t index, wire::reply& r) noexcept override;
  void answered(wire::reply const& r);
  void fetched(wire::reply const& r);
  void confirm();
  void absent();
  void on_done() noexcept override;
  [[nodiscard]] std::span<char> room() noexcept override { return buffer_; }

  // detail/operation_queues.ipp: queues, BARRIER, and what a server may not know
  void pop();
  void popped(wire::reply const& r);
  void arrive();
  void poll();
  void polled();
  void pause();
  void resume();
  void try_out();
  void try_it();
  void tried(wire::reply const* r);
  void ask();
  void told(bool key_is_there);
  [[nodiscard]] bool pops(std::string_view k) const noexcept override { return active_ && is_pop() && k == key(); }
  void take_item(std::string_view item) noexcept override;
  void leave_item() noexcept;

  // detail/operation_end.ipp
  void on_lost() noexcept override;
  void store_ends() noexcept override;
  void expire() noexcept;
  void conclude();
  void fail(errc code, std::string detail);
  void end() noexcept;
  void retire() noexcept;
  void leave_session() noexcept;
  void leave() noexcept override { retire(); }
  [[nodiscard]] failure describe_loss(failure const* why) const;
  [[nodiscard]] failure describe(errc code, std::string detail) const;

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
  void set_timer(time_point at) noexcept {
    core()->remove_timer(*this);
    if (at != time_point::max()) core()->add_timer(*this, at);
  }

 protected:
  failure_ptr failure_;

 private:
  client_ptr client_;
  deadline limit_;
  time_point begun_{};
  lane* lane_ = nullptr;
  std::uint64_t asked_ = 0;    // of an autopsy: which keys have an answer; of a flush: the last send it covers
  std::uint64_t missing_ = 0;  // which of them are not there; of a flush: losses up to this one were told before
  op_kind kind_;
  phase phase_ = phase::unsent;
  std::uint8_t rounds_ = 0;   // fruitless ones in a row
  bool active_ = false;
  bool expired_ = false;
  bool told_ = false;         // its coroutine has the outcome
  bool in_doubt_ = false;     // a request that changes something was staged, and its answer has not come
  bool resumable_ = false;    // this BARRIER's arrival counts, and calling again must not repeat it
};

}  // namespace detail

/// An operation on a store: encoded when it was made, sent when it is awaited, spawned or started. Await it once; it may be moved
/// until then. Keeps its connection alive.
template <class T>
class [[nodiscard]] operation final : public detail::typed_operation<T, detail::store_op> {
 public:
  operation(operation&&) noexcept = default;

 private:
  friend class store_operations;
  using detail::typed_operation<T, detail::store_op>::typed_operation;
};

}  // namespace v0
}  // namespace rollcall

#include "detail/operation.ipp"
#include "detail/operation_end.ipp"
#include "detail/operation_queues.ipp"
