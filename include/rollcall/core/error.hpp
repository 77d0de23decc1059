#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "bytes.hpp"
#include "clock.hpp"

namespace rollcall {
inline namespace v0 {

/// What happened. Compare `error::code()` or `result::code()` with these.
enum class errc : int {
  timed_out = 1,    ///< the operation's own deadline passed
  cancelled,        ///< a stop was requested
  disconnected,     ///< the connection was lost; every pending operation of it gets this
  refused,          ///< nobody listens there, or nobody could be reached before the deadline
  protocol,         ///< the peer answered something that no store answers
  limit,            ///< a size, a count or a total is past its limit; nothing was sent
  unsupported,      ///< the peer, or this build, does not know the operation
  closed,           ///< the object was closed, or its server stopped, before the call
  invalid,          ///< an argument that can never work: a rank past the world size, a port past 65535
  address_in_use,   ///< somebody else listens on the port
  resolve,          ///< the host name could not be resolved before the deadline
  io,               ///< any other error of the operating system; the text names it
  failed,           ///< a barrier was decided against: a member is missing, twice there, or gave up
  server_replaced,  ///< another server answers at the address: what the old one held is gone
};

/// Whether a request took effect: may I retry?
enum class effect : unsigned char {
  none,     ///< it was not carried out; a retry is safe
  unknown,  ///< it was sent, and the answer did not come
  applied,  ///< the server has carried it out
};

[[nodiscard]] constexpr std::string_view to_string(errc e) noexcept {
  switch (e) {
    case errc::timed_out: return "timed out";
    case errc::cancelled: return "cancelled";
    case errc::disconnected: return "disconnected";
    case errc::refused: return "refused";
    case errc::protocol: return "protocol error";
    case errc::limit: return "limit exceeded";
    case errc::unsupported: return "unsupported";
    case errc::closed: return "closed";
    case errc::invalid: return "invalid argument";
    case errc::address_in_use: return "address in use";
    case errc::resolve: return "cannot resolve host";
    case errc::io: return "system error";
    case errc::failed: return "failed";
    case errc::server_replaced: return "server replaced";
  }
  return "unknown error";
}

[[nodiscard]] constexpr std::string_view to_string(effect e) noexcept {
  switch (e) {
    case effect::none: return "none";
    case effect::unknown: return "unknown";
    case effect::applied: return "applied";
  }
  return "unknown";
}

class error_category_type final : public std::error_category {
 public:
  [[nodiscard]] char const* name() const noexcept override { return "rollcall"; }
  [[nodiscard]] std::string message(int value) const override { return std::string(to_string(static_cast<errc>(value))); }
};

/// The category of `errc`; stateless.
[[nodiscard]] inline std::error_category const& error_category() noexcept {
  static error_category_type const category;
  return category;
}
[[nodiscard]] inline std::error_code make_error_code(errc e) noexcept { return {static_cast<int>(e), error_category()}; }

/// Everything known about one failed operation. `message()` renders it in bounded text (under 4 KiB).
class failure {
 public:
  failure(errc code, std::string_view operation, std::string detail = {})
      : code_(code), operation_(operation), detail_(std::move(detail)) {}

  failure& with_code(errc c) noexcept { return code_ = c, *this; }
  failure& with_effect(effect e) noexcept { return effect_ = e, *this; }
  failure& with_detail(std::string d) noexcept { return detail_ = std::move(d), *this; }
  failure& with_peer(std::string_view peer) { return peer_ = peer, *this; }
  /// The errno of the system call that failed; ETIMEDOUT where nobody answered.
  failure& with_system_error(int e) noexcept { return system_error_ = e, *this; }
  failure& with_times(duration elapsed, duration limit) noexcept { return elapsed_ = elapsed, limit_ = limit, *this; }
  /// Keys as the user wrote them; at most `max_keys_kept` are kept, all are counted.
  failure& with_key(std::string_view key) {
    if (++key_count_ <= max_keys_kept) keys_.emplace_back(key);
    return *this;
  }
  static constexpr std::size_t max_keys_kept = 64;

  [[nodiscard]] errc code() const noexcept { return code_; }
  [[nodiscard]] rollcall::effect effect() const noexcept { return effect_; }
  [[nodiscard]] std::string const& operation() const noexcept { return operation_; }
  [[nodiscard]] std::vector<std::string> const& keys() const noexcept { return keys_; }
  [[nodiscard]] std::size_t key_count() const noexcept { return key_count_; }
  [[nodiscard]] std::string const& peer() const noexcept { return peer_; }
  [[nodiscard]] std::string const& detail() const noexcept { return detail_; }
  /// The errno that is the cause, for programs that decide by it; 0 where there is none, or where it is not known. The text names it.
  [[nodiscard]] int system_error() const noexcept { return system_error_; }
  /// Time from the await to the failure; negative where it was not measured.
  [[nodiscard]] duration elapsed() const noexcept { return elapsed_; }
  /// The operation's limit; negative where it had none, duration::max() for deadline::never().
  [[nodiscard]] duration limit() const noexcept { return limit_; }
  [[nodiscard]] std::string message() const;

 private:
  errc code_;
  rollcall::effect effect_ = rollcall::effect::none;
  int system_error_ = 0;
  std::string operation_;
  std::vector<std::string> keys_;
  std::size_t key_count_ = 0;
  std::string peer_;
  duration elapsed_{-1};
  duration limit_{-1};
  std::string detail_;
};
static_assert(await_safe<failure>);

using failure_ptr = std::shared_ptr<failure const>;

/// The exception of layers 4 and up. Its code compares with `errc`.
class error : public std::system_error {
 public:
  explicit error(failure_ptr f) : std::system_error(make_error_code(f->code()), ""), failure_(std::move(f)), text_(failure_->message()) {}
  explicit error(failure f) : error(std::make_shared<failure const>(std::move(f))) {}
  error(errc code, std::string_view operation, std::string detail = {}) : error(failure(code, operation, std::move(detail))) {}

  [[nodiscard]] errc code() const noexcept { return failure_->code(); }
  [[nodiscard]] rollcall::effect effect() const noexcept { return failure_->effect(); }
  [[nodiscard]] failure const& info() const noexcept { return *failure_; }
  [[nodiscard]] failure_ptr const& shared() const noexcept { return failure_; }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }

 private:
  failure_ptr failure_;
  std::string text_;
};

namespace detail {

/// `text` with control bytes and bytes past ASCII as \xNN, cut at `limit` bytes.
inline void append_printable(std::string& out, std::string_view text, std::size_t limit) {
  constexpr char hex[] = "0123456789abcdef";
  const std::size_t start = out.size();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (out.size() - start >= limit) {
      out += "...";
      return;
    }
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      out += "\\x";
      out += hex[c >> 4];
      out += hex[c & 15];
    }
  }
}

/// "200 ms", "1500 ms", "12.3 s", "300 s": milliseconds below 10 s, else tenths of a second, cut off.
inline std::string duration_text(duration d) {
  const std::int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  if (ms > -10'000 && ms < 10'000) return std::to_string(ms) + " ms";
  std::string s = std::to_string(ms / 1000);
  if (const std::int64_t part = (ms % 1000) / 100; part > 0) s += "." + std::to_string(part);
  return s + " s";
}

}  // namespace detail

inline std::string failure::message() const {
  std::string m = operation_;
  if (key_count_ > 0) {
    m += key_count_ == 1 ? " of key " : " of keys ";
    const std::size_t start = m.size();
    std::size_t shown = 0;
    for (; shown < keys_.size() && m.size() - start < 1024; ++shown) {
      if (shown) m += ", ";
      m += '\'';
      detail::append_printable(m, keys_[shown], 80);
      m += '\'';
    }
    if (shown < key_count_) m += ", ... (" + std::to_string(key_count_) + " keys)";
  }
  if (!peer_.empty()) m += " at " + peer_;
  m += ": ";
  m += to_string(code_);
  if (elapsed_ >= duration::zero()) m += " after " + detail::duration_text(elapsed_);
  if (limit_ >= duration::zero() && limit_ != duration::max()) m += " (limit " + detail::duration_text(limit_) + ")";
  if (!detail_.empty()) {
    m += ": ";
    m += detail_.size() <= 2048 ? detail_ : detail_.substr(0, 2048) + "...";
  }
  if (effect_ == effect::unknown) m += "; whether it took effect is unknown";
  if (effect_ == effect::applied) m += "; it took effect";
  return m;
}

}  // namespace v0
}  // namespace rollcall

template <>
struct std::is_error_code_enum<rollcall::errc> : std::true_type {};
