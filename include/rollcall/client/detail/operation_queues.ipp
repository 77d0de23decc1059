#pragma once
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "../operation.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

inline void store_op::pop() {
  if (!take(client_->command_lane(), phase::popping)) return;
  in_doubt_ = true;
  send("\x0f", key_with_length(), wire::reply_form::popped);
}
inline void store_op::popped(wire::reply const& r) {
  in_doubt_ = false;
  number_ = r.number > 0;
  if (number_ != 0) bytes_.assign(r.bytes);
  if (number_ != 0 || kind_ == op_kind::queue_pop_now) return end();
  // Nothing there, or somebody else was quicker. A value under the same key ends each WAIT at once (protocol 7.4): then it asks ever
  // more rarely.
  if (rounds_ >= 2) return pause();
  ++rounds_;
  wait();
  client_->request_flush();
}
inline void store_op::take_item(std::string_view item) noexcept {
  guarded([&] {
    bytes_.assign(item);
    number_ = 1;
    end();
  });
}

/// Destroyed with an item that its coroutine was not resumed to take.
inline void store_op::leave_item() noexcept { client_->leave_popped(key(), bytes_); }

inline void store_op::arrive() {
  if (!take(client_->wait_lane(false), phase::waiting)) return;
  in_doubt_ = resumable_ = true;
  lane_->session().wait(*this, request_.view(), false);
}
/// This BARRIER was sent before and must not be counted twice, and a WAIT for its key would end at once: the count is looked at.
inline void store_op::poll() {
  if (client_->info().is_rollcall) {
    if (take(client_->command_lane(), phase::fetching)) send("\x03", key_with_length(), wire::reply_form::bytes);
  } else if (take(client_->command_lane(), phase::checking)) {
    send(check_one, key_with_length(), wire::reply_form::u8);
  }
}
inline void store_op::polled() {
  std::int64_t count = 0;
  std::from_chars(bytes_.data(), bytes_.data() + bytes_.size(), count);
  const auto world = static_cast<std::int64_t>(wire::load<std::uint64_t>(key_with_length().data() + key_with_length().size()));
  if (count < world) return pause();
  resumable_ = false;
  end();
}

/// Goes on after a while that grows from time to time.
inline void store_op::pause() {
  phase_ = phase::pausing;
  lane_ = nullptr;
  const unsigned shift = rounds_ < longest_pause ? rounds_ : longest_pause;
  if (rounds_ < longest_pause) ++rounds_;
  set_timer(std::min(core()->now() + first_pause * (1U << shift), limit_.from(begun_)));
}
inline void store_op::resume() {
  if (phase_ == phase::doubting) {
    ask();
  } else if (is_pop() || waits_and_fetches()) {
    wait();
  } else {
    poll();
  }
  if (active_) client_->request_flush();
}

// A server that is not ours may not know the opcode and close the connection at it. So the first use has a connection of its own, once
// that stands: the request itself where it changes nothing, QUEUE_LEN for the queues; a BARRIER can only be tried.

inline void store_op::try_out() {
  if (take(client_->trial_lane(traits().family), phase::knocking)) send(check_none, {}, wire::reply_form::u8);
}
/// The connection stands.
inline void store_op::try_it() {
  const op_family family = traits().family;
  if (client_->knows(family)) {
    start_known();
  } else if (family != op_family::barrier) {
    phase_ = phase::trying;
    lane_->set_tried();
    family == op_family::list_keys ? send({}, request_.view(), wire::reply_form::list) : send("\x10", key_with_length(), wire::reply_form::i64);
  } else if (lane_->session().takes_wait()) {
    phase_ = phase::trying;
    in_doubt_ = resumable_ = true;
    lane_->session().wait(*this, request_.view(), false);
  } else {
    try_out();
  }
  client_->request_flush();
}
/// The server has answered: it knows the opcodes. `r`: nullptr for the end of a BARRIER.
inline void store_op::tried(wire::reply const* r) {
  client_->learned(*lane_);
  if (!r) {
    resumable_ = false;
    return end();
  }
  if (kind_ == op_kind::list_keys || kind_ == op_kind::queue_len) return answered(*r);
  start_known();
  client_->request_flush();
}
/// The connection was closed. By a server that still answers on others?
inline void store_op::ask() {
  if (!take(client_->command_lane(), phase::asking)) return;
  send(traits().has_key ? check_one : check_none, traits().has_key ? key_with_length() : std::string_view(), wire::reply_form::u8);
}
inline void store_op::told(bool key_is_there) {
  std::string why = "the server closed the connection at the first ";
  switch (traits().family) {
    case op_family::queues: why += "QUEUE_LEN: it has no queues (PyTorch's libuv server has them since 2.8, its blocking one has none)"; break;
    case op_family::list_keys: why += "LIST_KEYS: it does not know it (PyTorch's servers do since 2.10)"; break;
    default:
      why += "BARRIER: it does not know it (PyTorch's servers do since 2.12)";
      if (key_is_there) why += ", or the key holds no number";
      // Without the key it was certainly not counted.
      in_doubt_ = in_doubt_ && key_is_there;
  }
  fail(errc::unsupported, std::move(why));
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
