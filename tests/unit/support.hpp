#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rollcall/engine/store.hpp>
#include <rollcall/wire/encode.hpp>

/// What this test program has asked of operator new so far.
struct allocation_count {
  std::size_t calls = 0;
  std::size_t bytes = 0;
};
allocation_count allocations() noexcept;
/// The n-th call of operator new from now on fails, once; 0: none does.
void fail_allocation(std::size_t n) noexcept;

namespace unit {

namespace wire = rollcall::wire;
namespace engine = rollcall::engine;
using rollcall::keys;
using engine::apply_status;

inline std::string u8(std::uint8_t v) {
  std::string s;
  wire::put_u8(s, v);
  return s;
}
inline std::string i64(std::int64_t v) {
  std::string s;
  wire::put_i64(s, v);
  return s;
}
inline std::string bytes(std::string_view v) {
  std::string s;
  wire::put_bytes(s, v);
  return s;
}
inline std::string const ready = u8(wire::check_ready);
inline std::string const not_ready = u8(wire::check_not_ready);
inline std::string const stop = u8(wire::stop_waiting);
inline std::string const canceled = u8(wire::wait_canceled);
inline std::string const nothing;

/// All unsent bytes of a batch, as a socket would see them, a few pieces at a time.
inline std::string drain(wire::write_batch& batch) {
  std::string out;
  while (!batch.empty()) {
    iovec pieces[3];
    const int n = batch.fill(pieces, 3);
    std::size_t taken = 0;
    for (int i = 0; i < n; ++i) {
      out.append(static_cast<char const*>(pieces[i].iov_base), pieces[i].iov_len);
      taken += pieces[i].iov_len;
    }
    batch.consume(taken);
  }
  return out;
}

/// A connection without a socket: what the server does with its bytes, and nothing else.
class peer {
 public:
  explicit peer(engine::store& s, bool validate = true) : client(s), store_(s) {
    if (!validate) return;
    std::string b;
    wire::encode_validate(b);
    feed(b);
  }

  void feed(std::string_view input) {
    wire::request r;
    while (!closed) {
      switch (decoder.next(input, r, store_.limits())) {
        case wire::decode_status::need_more: return;
        case wire::decode_status::bad: close(); return;
        case wire::decode_status::complete: break;
      }
      why = store_.apply(client, r, out);
      if (why != apply_status::ok) close();
    }
  }
  /// All that the peer has been sent since the last call.
  std::string take() {
    std::string got = drain(out);
    got.append(store_.take_due(client), static_cast<char>(wire::stop_waiting));
    return got;
  }
  void close() {
    closed = true;
    store_.disconnect(client);
  }

  template <class... A>
  std::string say(void (*encode)(std::string&, std::string_view, A...), A... a) {
    request_.clear();
    encode(request_, "/", a...);
    feed(request_);
    return take();
  }
  std::string set(std::string_view k, std::string_view v) { return say(&wire::encode_set<std::string>, k, v); }
  std::string compare_set(std::string_view k, std::string_view e, std::string_view d) {
    return say(&wire::encode_compare_set<std::string>, k, e, d);
  }
  std::string get(std::string_view k) { return say(&wire::encode_get<std::string>, k); }
  std::string add(std::string_view k, std::int64_t n) { return say(&wire::encode_add<std::string>, k, n); }
  std::string check(keys const& k) { return say<keys const&>(&wire::encode_check<std::string>, k); }
  std::string wait(keys const& k) { return say<keys const&>(&wire::encode_wait<std::string>, k); }
  std::string multi_get(keys const& k) { return say<keys const&>(&wire::encode_multi_get<std::string>, k); }
  std::string delete_key(std::string_view k) { return say(&wire::encode_delete_key<std::string>, k); }
  std::string append(std::string_view k, std::string_view v) { return say(&wire::encode_append<std::string>, k, v); }
  std::string push(std::string_view k, std::string_view v) { return say(&wire::encode_queue_push<std::string>, k, v); }
  std::string pop(std::string_view k) { return say(&wire::encode_queue_pop<std::string>, k); }
  std::string len(std::string_view k) { return say(&wire::encode_queue_len<std::string>, k); }
  std::string barrier(std::string_view k, std::int64_t n) { return say(&wire::encode_barrier<std::string>, k, n); }
  std::string multi_set(std::vector<std::pair<std::string, std::string>> const& pairs) {
    request_.clear();
    wire::encode_multi_set(request_, "/", pairs);
    feed(request_);
    return take();
  }
  std::string num_keys() { return plain(wire::opcode::num_keys); }
  std::string cancel() { return plain(wire::opcode::cancel_wait); }
  std::string list_keys() { return plain(wire::opcode::list_keys); }
  std::string ping(std::uint32_t nonce) {
    request_.clear();
    wire::encode_ping(request_, nonce);
    feed(request_);
    return take();
  }

  engine::client client;
  wire::request_decoder decoder;
  wire::write_batch out;
  bool closed = false;
  apply_status why = apply_status::ok;

 private:
  std::string plain(wire::opcode op) {
    const char c = static_cast<char>(op);
    feed({&c, 1});
    return take();
  }
  engine::store& store_;
  std::string request_;
};

/// Small and fast, the same everywhere: xorshift64*.
class xorshift {
 public:
  explicit xorshift(std::uint64_t seed) noexcept : state_(seed * 2 + 1) {}
  std::uint64_t operator()() noexcept {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1DU;
  }
  /// 0 <= result < n
  std::size_t below(std::size_t n) noexcept { return static_cast<std::size_t>((*this)() >> 33) % n; }

 private:
  std::uint64_t state_;
};

}  // namespace unit
