#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <rollcall/net/stream.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace bench {

/// What went through streams, as seen by one side.
struct traffic {
  std::uint64_t writes = 0;  // each is one send() where the stream is a socket
  std::uint64_t bytes_written = 0;
  std::uint64_t reads = 0;  // each is one recv()
  std::uint64_t bytes_read = 0;
};

/// A stream that counts what goes through another one.
class counted_stream final : public rollcall::net::stream, private rollcall::net::stream_sink {
 public:
  counted_stream(rollcall::net::stream_ptr inner, traffic& counts) noexcept : inner_(std::move(inner)), counts_(counts) {}

  void start_read(rollcall::net::stream_sink& sink) noexcept override {
    sink_ = &sink;
    inner_->start_read(*this);
  }
  void stop_read() noexcept override { inner_->stop_read(); }
  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override {
    const std::ptrdiff_t n = inner_->try_write(pieces, count);
    ++counts_.writes;
    if (n > 0) counts_.bytes_written += static_cast<std::uint64_t>(n);
    return n;
  }
  void shutdown() noexcept override { inner_->shutdown(); }
  void keep_alive(bool on) noexcept override { inner_->keep_alive(on); }
  [[nodiscard]] std::string peer_name() const override { return inner_->peer_name(); }
  void close() noexcept override { delete this; }

 private:
  ~counted_stream() = default;
  void on_read(std::string_view bytes) noexcept override {
    ++counts_.reads;
    counts_.bytes_read += bytes.size();
    sink_->on_read(bytes);
  }
  void on_end(int status) noexcept override { sink_->on_end(status); }
  void on_writable() noexcept override { sink_->on_writable(); }

  rollcall::net::stream_ptr inner_;
  traffic& counts_;
  rollcall::net::stream_sink* sink_ = nullptr;
};

/// A connected, counted stream to 127.0.0.`last_byte`. Blocks; throws where nobody listens.
[[nodiscard]] rollcall::net::stream_ptr dial_counted(rollcall::detail::loop_core& core, int port, traffic& counts, int last_byte = 1);

}  // namespace bench
