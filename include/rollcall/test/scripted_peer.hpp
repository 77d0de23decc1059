#pragma once
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "../net/stream.hpp"

namespace rollcall {
inline namespace v0 {
namespace test {

/// The other end of a stream, that does what a test has written down, step by step: expects bytes, sends bytes, ends.
/// Steps may be added at any time; what the peer does not expect is a problem(), and the script stops there.
class scripted_peer final : private net::stream_sink {
 public:
  explicit scripted_peer(net::stream_ptr s) : stream_(std::move(s)) { stream_->start_read(*this); }
  scripted_peer(scripted_peer const&) = delete;
  scripted_peer& operator=(scripted_peer const&) = delete;
  ~scripted_peer() = default;

  /// The next bytes must be these, however they are split.
  scripted_peer& expect(std::string bytes) { return add(kind::expect, std::move(bytes)); }
  /// The next `n` bytes may be anything.
  scripted_peer& skip(std::size_t n) { return add(kind::skip, {}, n); }
  scripted_peer& send(std::string bytes) { return add(kind::send, std::move(bytes)); }
  /// Sends its end, and goes on reading.
  scripted_peer& shutdown() { return add(kind::shutdown, {}); }
  scripted_peer& close() { return add(kind::close, {}); }
  /// The other side must send its end, or break the connection.
  scripted_peer& expect_end() { return add(kind::expect_end, {}); }

  /// Everything that was written down has happened, and nothing else has come.
  [[nodiscard]] bool done() const noexcept { return steps_.empty() && got_.empty() && problem_.empty(); }
  [[nodiscard]] std::string const& problem() const noexcept { return problem_; }
  /// What has come and was not asked for yet.
  [[nodiscard]] std::string const& unread() const noexcept { return got_; }

 private:
  enum class kind : unsigned char { expect, skip, send, shutdown, close, expect_end };
  struct step {
    kind what;
    std::string bytes;
    std::size_t count;
  };

  scripted_peer& add(kind what, std::string bytes, std::size_t count = 0) {
    steps_.push_back(step{what, std::move(bytes), count});
    go_on();
    return *this;
  }
  void go_on() {
    while (!steps_.empty() && problem_.empty() && step_is_done(steps_.front())) steps_.pop_front();
  }
  /// Does what can be done of a step now; whether it is over.
  bool step_is_done(step& s) {
    switch (s.what) {
      case kind::expect: {
        const std::size_t n = std::min(got_.size(), s.bytes.size());
        if (std::string_view(got_).substr(0, n) != std::string_view(s.bytes).substr(0, n)) {
          problem_ = "other bytes than expected";
          return false;
        }
        got_.erase(0, n);
        s.bytes.erase(0, n);
        return over(s.bytes.empty());
      }
      case kind::skip: {
        const std::size_t n = std::min(got_.size(), s.count);
        got_.erase(0, n);
        s.count -= n;
        return over(s.count == 0);
      }
      case kind::send: {
        if (!stream_) return true;
        const iovec piece{s.bytes.data(), s.bytes.size()};
        const std::ptrdiff_t n = stream_->try_write(&piece, 1);
        if (n < 0) return true;  // who has gone need not be told
        s.bytes.erase(0, static_cast<std::size_t>(n));
        return s.bytes.empty();  // else on_writable goes on
      }
      case kind::shutdown:
        if (stream_) stream_->shutdown();
        return true;
      case kind::close: stream_.reset(); return true;
      case kind::expect_end: return ended_;
    }
    return true;
  }
  /// A step that waits for bytes can end no other way once there will be none.
  bool over(bool enough) {
    if (!enough && ended_) problem_ = "the other side ended too early";
    return enough;
  }
  void on_read(std::string_view bytes) noexcept override {
    got_.append(bytes);
    go_on();
  }
  void on_end(int) noexcept override {
    ended_ = true;
    go_on();
  }
  void on_writable() noexcept override { go_on(); }

  net::stream_ptr stream_;
  std::deque<step> steps_;
  std::string got_;
  std::string problem_;
  bool ended_ = false;
};

}  // namespace test
}  // namespace v0
}  // namespace rollcall
