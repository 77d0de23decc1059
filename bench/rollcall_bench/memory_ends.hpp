#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <rollcall/net/stream.hpp>
#include <rollcall/rt/loop.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "counted_stream.hpp"

namespace bench {

/// One end of a stream in memory that carries whatever it is given, whole and in the loop's next turn. Unlike test::memory_link, which can
/// also do harm, it is small enough for two million of them; it is no handle, and an idle one holds no buffer. Its buffers are not
/// counted as allocations, as a socket's are not.
class memory_end final : public rollcall::net::stream, private rollcall::detail::ready_node {
 public:
  memory_end(rollcall::detail::loop_core& core, traffic& counts) noexcept
      : ready_node([](ready_node& n) noexcept { static_cast<memory_end&>(n).deliver(); }), core_(core), counts_(counts) {}
  static void join(memory_end& a, memory_end& b) noexcept {
    a.other_ = &b;
    b.other_ = &a;
  }

  void start_read(rollcall::net::stream_sink& sink) noexcept override {
    sink_ = &sink;
    reading_ = true;
    wake();
  }
  void stop_read() noexcept override { reading_ = false; }
  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override {
    std::size_t sum = 0;
    for (int i = 0; i < count; ++i) {
      if (other_) other_->append(pieces[i].iov_base, pieces[i].iov_len);
      sum += pieces[i].iov_len;
    }
    ++counts_.writes;
    counts_.bytes_written += sum;
    if (other_) other_->wake();
    return static_cast<std::ptrdiff_t>(sum);
  }
  void shutdown() noexcept override {
    if (!other_) return;
    other_->ends_ = true;
    other_->wake();
  }
  void keep_alive(bool) noexcept override {}
  [[nodiscard]] std::string peer_name() const override { return "memory"; }
  void close() noexcept override {
    shutdown();
    if (other_) other_->other_ = nullptr;
    delete this;
  }

 private:
  ~memory_end() {
    std::free(bytes_);
    if (gone_) *gone_ = true;
  }
  void wake() noexcept {
    if (reading_ && (size_ > 0 || ends_) && !list_hook<rollcall::detail::ready_tag>::linked()) core_.schedule(*this);
  }
  void append(void const* p, std::size_t n) {
    if (size_ + n > room_) {
      room_ = size_ + n > 2 * room_ ? size_ + n : 2 * room_;
      bytes_ = static_cast<char*>(std::realloc(bytes_, room_));
      if (!bytes_) std::abort();
    }
    std::memcpy(bytes_ + size_, p, n);
    size_ += n;
  }
  void deliver() noexcept {
    if (!reading_) return;
    if (size_ > 0) {
      char* const bytes = std::exchange(bytes_, nullptr);
      const std::size_t size = std::exchange(size_, 0);
      room_ = 0;
      ++counts_.reads;
      counts_.bytes_read += size;
      bool gone = false;
      gone_ = &gone;
      sink_->on_read(std::string_view(bytes, size));
      std::free(bytes);
      if (gone) return;
      gone_ = nullptr;
      return wake();
    }
    if (!ends_) return;
    reading_ = false;
    sink_->on_end(0);
  }

  rollcall::detail::loop_core& core_;
  traffic& counts_;
  memory_end* other_ = nullptr;
  rollcall::net::stream_sink* sink_ = nullptr;
  char* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::size_t room_ = 0;
  bool* gone_ = nullptr;
  bool reading_ = false;
  bool ends_ = false;
};

}  // namespace bench
