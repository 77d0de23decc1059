#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "../operation.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Sends the first request; false when it is over already.
inline bool store_op::go() noexcept {
  bool over = true;
  guarded([&] { over = over_before_it_begins(); });
  if (over || failure_) return finish_at_once();
  client_->operation_begins(*this);
  active_ = true;
  if (!limit_.is_never()) set_timer(limit_.from(begun_));
  guarded([this] { start(); });
  if (active_) client_->request_flush();  // else it has failed, and its coroutine is in the ready queue
  return true;
}

inline bool store_op::over_before_it_begins() {
  if (failure_) return true;
  if (is_pop() && client_->take_popped(key(), bytes_)) {
    number_ = 1;
    return true;
  }
  unconfirmed_sends& sends = client_->sends();
  if (failure const* const why = kind_ == op_kind::flush ? sends.lost_behind(missing_) : nullptr) {
    sends.tell(asked_);
    failure_ = std::make_shared<failure const>(describe_loss(why));
  } else if (client_->closed()) {
    failure_ = std::make_shared<failure const>(describe_loss(client_->why_closed().get()));
  }
  return failure_ || (kind_ == op_kind::flush && !sends.outstanding());
}

inline void store_op::start() {
  if (kind_ == op_kind::server_barrier && client_->take_arrival(key())) {
    in_doubt_ = resumable_ = true;
    return poll();
  }
  client_->knows(traits().family) ? start_known() : try_out();
}

inline void store_op::start_known() {
  switch (kind_) {
    case op_kind::set:
    case op_kind::append:
    case op_kind::multi_set:
    case op_kind::queue_push: return post();
    case op_kind::flush: {
      lane* const l = client_->sends().through();
      if (!l->session().takes_command()) return static_cast<void>(take(nullptr, phase::fenced));  // the only one, in a wait
      lane_ = l;
      phase_ = phase::fenced;
      return l->session().post(*this, {});
    }
    case op_kind::add:
    case op_kind::delete_key: return change(wire::reply_form::i64, phase::one_reply);
    case op_kind::compare_set: return change(wire::reply_form::bytes, phase::fetching);
    case op_kind::num_keys:
    case op_kind::queue_len:
      if (take(client_->command_lane(), phase::one_reply)) send({}, request_.view(), wire::reply_form::i64);
      return;
    case op_kind::list_keys:
      if (take(client_->command_lane(), phase::one_reply)) send({}, request_.view(), wire::reply_form::list);
      return;
    case op_kind::check:
      if (take(client_->command_lane(), phase::one_reply)) send({}, request_.view(), wire::reply_form::u8);
      return;
    case op_kind::ping: {
      const bool by_ping = static_cast<wire::opcode>(request_.view().front()) == wire::opcode::ping;
      if (take(client_->command_lane(), phase::one_reply)) send({}, request_.view(), by_ping ? wire::reply_form::u32 : wire::reply_form::u8);
      return;
    }
    case op_kind::fetch:
      if (take(client_->command_lane(), phase::fetching)) send({}, request_.view(), wire::reply_form::bytes);
      return;
    case op_kind::multi_fetch:
      if (take(client_->command_lane(), phase::fetching)) fetch();
      return;
    case op_kind::multi_get:
      if (key_count() == 0) {  // its reply has no bytes, so nothing would show that it came: a CHECK of no keys instead
        if (take(client_->command_lane(), phase::one_reply)) send("\x05", request_.view().substr(1), wire::reply_form::u8);
        return;
      }
      return probe();
    case op_kind::get:
    case op_kind::get_into:
    case op_kind::find: return probe();
    case op_kind::wait: return wait();
    case op_kind::queue_pop: return client_->info().is_rollcall ? pop() : wait();  // elsewhere as the reference does (protocol 5)
    case op_kind::queue_pop_now: return pop();
    case op_kind::server_barrier: return arrive();
  }
}

inline bool store_op::take(lane* l, phase p) {
  lane_ = l;
  phase_ = p;
  if (!l) {
    fail(errc::limit, "all " + std::to_string(client_->options().max_lanes()) +
                          " connections of this store are in use, in waits for example (client_options::max_lanes)");
  } else if (l->backlog() > client_->options().max_unsent()) {
    lane_ = nullptr;
    fail(errc::limit, "the server does not read: " + std::to_string(l->backlog()) + " bytes wait for it (client_options::max_unsent)");
  }
  return lane_ != nullptr;
}

inline void store_op::change(wire::reply_form form, phase p) {
  if (!take(client_->command_lane(), p)) return;
  in_doubt_ = true;
  send({}, request_.view(), form);
}
inline void store_op::post() {
  if (!take(client_->command_lane(), phase::fenced)) return;
  in_doubt_ = true;
  lane_->session().post(*this, request_.view());
}

/// One round trip where a GET of a missing key is known to be answered; else CHECK first (design.md 5).
inline void store_op::probe() {
  const bool at_once = client_->info().is_rollcall;
  if (!take(client_->command_lane(), at_once ? phase::probing : phase::checking)) return;
  send("\x05", request_.view().substr(1), wire::reply_form::u8);
  if (at_once) fetch();
}
inline void store_op::fetch() {
  if (fetches_many()) {
    lane_->session().send(this, "\x0a", request_.view().substr(1), wire::reply_form::many, key_count());
  } else if (kind_ == op_kind::get_into) {
    lane_->session().send_into(*this, "\x03", key_with_length());
  } else {
    send("\x03", key_with_length(), wire::reply_form::bytes);
  }
}
inline void store_op::wait() {
  const bool preemptible = key_count() == 1 && request_.view().size() <= preemptible_bytes;
  if (take(client_->wait_lane(preemptible), phase::waiting)) lane_->session().wait(*this, request_.view(), preemptible);
}

inline void store_op::on_reply(std::size_t index, wire::reply& r) noexcept {
  guarded([&] {
    switch (phase_) {
      case phase::one_reply: return answered(r);
      case phase::probing:
        if (index == 0) {
          number_ = r.number == wire::check_ready;
          return;
        }
        return number_ == 0 ? absent() : fetched(r);
      case phase::fetching: return fetched(r);
      case phase::checking:
        if (r.number != wire::check_ready) return absent();
        if (take(client_->command_lane(), phase::fetching)) fetch();  // a wait may hold the tail of the lane by now
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
      case phase::popping: return popped(r);
      case phase::knocking: return try_it();
      case phase::trying: return tried(&r);
      case phase::asking: return told(r.number == wire::check_ready);
      case phase::unsent:
      case phase::fenced:
      case phase::waiting:
      case phase::pausing:
      case phase::doubting: return;
    }
  });
}

/// The one reply of an operation that has only one.
inline void store_op::answered(wire::reply const& r) {
  number_ = r.number;
  if (kind_ == op_kind::check) {
    number_ = r.number == wire::check_ready;
    if (r.number > wire::check_not_ready) return fail(errc::protocol, "the answer to CHECK is neither 0 nor 1");
  } else if (kind_ == op_kind::list_keys) {
    bytes_.assign(r.body);
  } else if (kind_ == op_kind::ping) {
    const std::string_view request = request_.view();
    if (static_cast<wire::opcode>(request.front()) == wire::opcode::ping && r.number != wire::load<std::uint32_t>(request.data() + 1))
      return fail(errc::protocol, "the answer to PING is another number");
    number_ = (core()->now() - begun_).count();
  }
  end();
}

inline void store_op::fetched(wire::reply const& r) {
  if (kind_ == op_kind::server_barrier) {
    bytes_.assign(r.bytes);
    return polled();
  }
  if (kind_ == op_kind::get_into) {
    const auto size = static_cast<std::size_t>(r.number);
    if (size > buffer_.size())
      return fail(errc::limit, "the value has " + std::to_string(size) + " bytes, the buffer " + std::to_string(buffer_.size()));
    number_ = r.number;
    return size == 0 ? confirm() : end();
  }
  number_ = 1;
  bytes_.assign(fetches_many() ? r.body : r.bytes);
  confirm();
}

/// An empty value is also what a GET gives for a key that was deleted after the CHECK. A server of ours is asked again, in a way that
/// tells the two apart and changes nothing (elsewhere the same COMPARE_SET could wake somebody: protocol 4).
inline void store_op::confirm() {
  if (!client_->info().is_rollcall || !(waits_and_fetches() || kind_ == op_kind::find)) return end();
  bool doubt = false;
  wire::field_cursor values(kind_ == op_kind::multi_get ? std::string_view(bytes_) : std::string_view());
  for_each_key([&](std::uint64_t, std::string_view key) {
    if (!(kind_ == op_kind::multi_get ? values.next() : std::string_view(bytes_)).empty()) return;
    if (!std::exchange(doubt, true) && !take(client_->command_lane(), phase::confirming)) return;
    if (lane_) lane_->session().send(this, "\x02", key, absent_twice, wire::reply_form::bytes);
  });
  doubt ? client_->request_flush() : end();
}

/// A key to be read is not there.
inline void store_op::absent() {
  number_ = 0;
  if (kind_ == op_kind::find) return end();
  if (kind_ == op_kind::server_barrier) return polled();
  // A queue under that key ends each WAIT at once, and it still has no value (protocol 7.4): then it asks ever more rarely.
  if (rounds_ >= 2) return pause();
  ++rounds_;
  wait();
  client_->request_flush();
}

inline void store_op::on_done() noexcept {
  guarded([this] {
    if (phase_ == phase::trying) return tried(nullptr);
    if (kind_ == op_kind::queue_pop) {
      pop();
    } else if (waits_and_fetches() || phase_ == phase::confirming) {
      if (client_->info().is_rollcall) {
        probe();
      } else if (take(client_->command_lane(), phase::fetching)) {
        fetch();
      }
    } else {
      resumable_ = false;
      return end();
    }
    client_->request_flush();
  });
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
