#pragma once
#include <sys/types.h>
#include <uv.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "../posix/fd.hpp"
#include "../rt/detail/handle.hpp"
#include "../rt/detail/waiter.hpp"
#include "../rt/loop.hpp"

namespace rollcall {
inline namespace v0 {

/// Reads lines from a pipe. Reads only while somebody waits in next_line(), so that a writer whose lines nobody takes is held up,
/// and holds at most 80 KiB. Keeps the loop alive only while somebody waits; must outlive its waiter.
class line_reader {
  using own = detail::handle<uv_pipe_t, line_reader>;

 public:
  static constexpr std::size_t longest_line = 65536;  ///< bytes; a longer line is delivered in pieces of this size

  /// Reads from `fd`, a pipe, a socket or a terminal, which it owns from here. errors: invalid for a file or a device; io.
  line_reader(loop& l, unique_fd fd) : line_reader(l.core(), std::move(fd)) {}
  line_reader(detail::loop_core& core, unique_fd fd) : core_(core), bytes_(new char[capacity]) {
    // What epoll cannot watch, libuv would abort on.
    const uv_handle_type kind = uv_guess_handle(fd.get());
    if (kind == UV_FILE || kind == UV_UNKNOWN_HANDLE)
      throw error(errc::invalid, "read lines", "descriptor " + std::to_string(fd.get()) + " is a file, a device or closed, not a pipe, a socket or a terminal");
    int status = pipe_.open(core, this, [](uv_loop_t* l, uv_pipe_t* h) { return uv_pipe_init(l, h, 0); });
    if (status == 0) status = uv_pipe_open(pipe_.get(), fd.get());
    if (status != 0) throw error(errc::io, "read lines", uv_strerror(status));
    static_cast<void>(fd.release());
  }
  line_reader(line_reader const&) = delete;
  line_reader& operator=(line_reader const&) = delete;
  ~line_reader() = default;

  class [[nodiscard]] reading final : private detail::waiter {
   public:
    explicit reading(line_reader& r) noexcept : reader_(r) {}
    /// Only before it is awaited.
    reading(reading&& o) noexcept : detail::waiter(), reader_(o.reader_) {}
    ~reading() {
      if (how() == state::waiting) leave();
    }
    [[nodiscard]] bool await_ready() const noexcept { return reader_.ready(); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      ROLLCALL_ASSERT(!reader_.waiting_ && "rollcall: one next_line() at a time");
      if (!begin(h, &reader_.core_)) return false;
      reader_.waiting_ = this;
      reader_.start();
      return true;
    }
    std::optional<std::string> await_resume() {
      if (was_stopped()) detail::throw_cancelled("read a line");
      return reader_.take();
    }

   private:
    friend class line_reader;
    void arrived() noexcept { complete(); }
    void leave() noexcept override { reader_.stop(); }
    line_reader& reader_;
  };
  /// The next line without its newline; a last one without newline counts; nullopt at the end, again and again.
  ///
  /// errors  io, after what was read before the error; cancelled.
  /// cancel  as if never called: no byte is lost.
  [[nodiscard]] reading next_line() noexcept { return reading(*this); }

 private:
  static constexpr std::size_t capacity = longest_line + 16384;

  /// How many bytes the next call of take() gives, the newline included; 0: it must wait.
  [[nodiscard]] std::size_t next_size() const noexcept {
    const std::size_t most = std::min(end_ - begin_, longest_line + 1);
    if (most == 0) return 0;
    if (void const* newline = std::memchr(&bytes_[begin_], '\n', most))
      return static_cast<std::size_t>(static_cast<char const*>(newline) - &bytes_[begin_]) + 1;
    return most > longest_line ? longest_line : ended_ ? most : 0;
  }
  [[nodiscard]] bool ready() const noexcept { return ended_ || next_size() > 0; }
  std::optional<std::string> take() {
    const std::size_t n = next_size();
    if (n == 0) {
      if (failed_ != 0) throw error(errc::io, "read a line", uv_strerror(std::exchange(failed_, 0)));
      return std::nullopt;
    }
    std::string line(&bytes_[begin_], bytes_[begin_ + n - 1] == '\n' ? n - 1 : n);
    begin_ += n;
    return line;
  }
  void start() noexcept {
    const int status = uv_read_start(
        reinterpret_cast<uv_stream_t*>(pipe_.get()),
        [](uv_handle_t* h, std::size_t, uv_buf_t* b) noexcept {
          line_reader* self = own::owner_of(h);
          *b = self ? self->room() : uv_buf_init(nullptr, 0);
        },
        [](uv_stream_t* h, ssize_t n, uv_buf_t const*) noexcept {
          const detail::loop_core::turn t(own::core_of(h));
          if (line_reader* self = own::owner_of(h)) self->arrived(n);
        });
    if (status != 0) arrived(status);
  }
  void stop() noexcept {
    waiting_ = nullptr;
    if (pipe_) uv_read_stop(reinterpret_cast<uv_stream_t*>(pipe_.get()));
  }
  uv_buf_t room() noexcept {
    std::memmove(&bytes_[0], &bytes_[begin_], end_ - begin_);
    end_ -= std::exchange(begin_, 0);
    return uv_buf_init(&bytes_[end_], static_cast<unsigned>(capacity - end_));
  }
  void arrived(ssize_t n) noexcept {
    if (n > 0) end_ += static_cast<std::size_t>(n);
    if (n < 0) {
      ended_ = true;
      failed_ = n == UV_EOF ? 0 : static_cast<int>(n);
    }
    if (!ready()) return;
    reading* w = waiting_;
    stop();
    if (ended_) pipe_.reset();
    if (w) w->arrived();
  }

  detail::loop_core& core_;
  std::unique_ptr<char[]> bytes_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool ended_ = false;
  int failed_ = 0;
  reading* waiting_ = nullptr;
  own pipe_;
};

}  // namespace v0
}  // namespace rollcall
