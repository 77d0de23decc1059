#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "../net/work.hpp"
#include "../posix/fd.hpp"
#include "../posix/listener.hpp"
#include "../rt/combine.hpp"
#include "../rt/timer.hpp"
#include "../stores/store.hpp"
#include "values.hpp"

namespace rollcall {
inline namespace v0 {

/// Where rank 0 tells which port the system has chosen for it (port 0), and the others read that: a file that all of them reach, or a
/// store that is there already. What else can be read and written may be one too.
class port_board {
 public:
  /// Makes the text known, replacing the one before.
  using writer = std::function<task<>(std::string text, deadline limit)>;
  /// Waits until there is a text.
  using reader = std::function<task<std::string>(deadline limit)>;
  /// Takes `text` away again, unless another one has replaced it; must not throw.
  using eraser = std::function<void(std::string const& text)>;

  port_board() = default;
  port_board(writer w, reader r, eraser e = {}) : write_(std::move(w)), read_(std::move(r)), erase_(std::move(e)) {}

  /// A file, replaced as a whole; its directory must exist. Removed when rank 0's session ends.
  [[nodiscard]] static port_board file(std::string path);
  /// A key of a store that all ranks have.
  template <store S>
  [[nodiscard]] static port_board key(S s, std::string key) {
    return port_board([s, key](std::string text, deadline limit) { return set(s, key, std::move(text), limit); },
                      [s, key](deadline limit) { return get(s, key, limit); });
  }

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(write_); }
  [[nodiscard]] task<> write(std::string text, deadline limit) const { return write_(std::move(text), limit); }
  [[nodiscard]] task<std::string> read(deadline limit) const { return read_(limit); }
  /// For where nothing can be waited for. A file's costs a look at 1 KiB and an unlink, on the calling thread.
  void erase(std::string const& text) const {
    if (erase_) erase_(text);
  }
  /// The same in the thread pool, where the board is a file.
  [[nodiscard]] task<> take_down(std::string text) const { return take_down_task(erase_, std::move(text), is_file_); }

 private:
  template <class S>
  static task<> set(S s, std::string key, std::string text, deadline limit) {
    co_await s.set(key, text, limit);
  }
  template <class S>
  static task<std::string> get(S s, std::string key, deadline limit) {
    std::string text = co_await s.get(key, limit);
    co_return text;
  }
  static task<> take_down_task(eraser erase, std::string text, bool in_pool) {
    if (!erase) co_return;
    if (!in_pool) {
      erase(text);
      co_return;
    }
    auto take = [erase, text] { erase(text); };
    auto call = run_blocking(std::move(take));
    co_await std::move(call);
  }
  static task<> write_file(std::string path, std::string text, deadline limit);
  static task<std::string> read_file(std::string path, deadline limit);

  writer write_;
  reader read_;
  eraser erase_;
  bool is_file_ = false;
};
static_assert(await_safe<port_board>);

namespace detail {

/// What stands on a port board: "rollcall port 1\n29500\njob 7\n".
class port_notice {
 public:
  port_notice(int p, std::string r) : port(p), run(std::move(r)) {}
  [[nodiscard]] std::string text() const { return std::string(heading) + std::to_string(port) + "\n" + run + "\n"; }
  [[nodiscard]] static std::optional<port_notice> read(std::string_view text) {
    if (!text.starts_with(heading) || !text.ends_with('\n')) return std::nullopt;
    text.remove_prefix(heading.size());
    const std::size_t end = text.find('\n');
    const sourced<std::int64_t> port = number("", text.substr(0, end), 1, 65535);
    const std::string_view rest = text.substr(end + 1);
    if (!port || rest.find('\n') + 1 != rest.size()) return std::nullopt;
    return port_notice(static_cast<int>(*port), std::string(rest.substr(0, rest.size() - 1)));
  }
  int port;
  std::string run;  // "" where it has no name

 private:
  static constexpr std::string_view heading = "rollcall port 1\n";
};

/// "" when it is done; blocks.
inline std::string replace_file(std::string const& path, std::string_view text) {
  const std::string fresh = path + "." + std::to_string(::getpid()) + ".new";
  const auto failed = [&](char const* call) {
    const int e = errno;
    ::unlink(fresh.c_str());
    return std::string(call) + " " + in_quotes(fresh, 255) + ": " + errno_text(e);
  };
  ::unlink(fresh.c_str());
  const unique_fd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd) return failed("open");
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t n = ::write(fd.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("write");
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return failed("fsync");  // a network file system may tell of a full disk only here
  if (::rename(fresh.c_str(), path.c_str()) != 0) return failed("rename");
  return {};
}

/// The first bytes of a file, or nothing and the errno; blocks.
inline std::optional<std::string> small_file(std::string const& path, int& e) {
  const unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char piece[1024];
  const ssize_t n = fd ? ::read(fd.get(), piece, sizeof piece) : -1;
  e = n < 0 ? errno : 0;
  return n < 0 ? std::nullopt : std::optional<std::string>(std::string(piece, static_cast<std::size_t>(n)));
}

/// Whether the directory of a file that is not there is there; blocks.
inline bool has_directory(std::string const& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  struct stat s;
  return ::stat(folder.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

}  // namespace detail

inline port_board port_board::file(std::string path) {
  port_board b([path](std::string text, deadline limit) { return write_file(path, std::move(text), limit); },
               [path](deadline limit) { return read_file(path, limit); },
               [path](std::string const& text) {
                 int e = 0;
                 if (detail::small_file(path, e) == text) ::unlink(path.c_str());
               });
  b.is_file_ = true;
  return b;
}

inline task<> port_board::write_file(std::string path, std::string text, deadline limit) {
  auto write = [path, text] { return detail::replace_file(path, text); };
  auto call = run_blocking(std::move(write));
  const std::string problem = co_await with_deadline(std::move(call), limit);
  if (!problem.empty()) throw error(errc::io, "write the port file", problem);
}

inline task<std::string> port_board::read_file(std::string path, deadline limit) {
  const environment env = co_await this_environment();
  const time_point until = limit.from(env.loop->now());
  const error late(errc::timed_out, "read the port file", "rank 0 has not written " + detail::in_quotes(path, 255));
  for (duration pause = std::chrono::milliseconds(10);; pause = std::min<duration>(pause * 2, std::chrono::milliseconds(250))) {
    int e = 0;
    bool has_directory = true;
    std::optional<std::string> text;
    {
      auto look = [path] {
        int why = 0;
        std::optional<std::string> found = detail::small_file(path, why);
        const bool there = why != ENOENT || detail::has_directory(path);
        return std::pair(std::move(found), std::pair(why, there));
      };
      auto call = run_blocking(std::move(look));
      auto found = co_await as_result(with_deadline(std::move(call), until));
      if (!found && found.error().code() == errc::timed_out) throw late;
      if (!found) throw error(found.shared());
      text = std::move(found->first);
      e = found->second.first;
      has_directory = found->second.second;
    }
    if (text && !text->empty()) co_return std::move(*text);
    if (!has_directory) throw error(errc::io, "read the port file", "the directory of " + detail::in_quotes(path, 255) + " does not exist");
    if (!text && e != ENOENT && e != ESTALE)
      throw error(errc::io, "read the port file", detail::in_quotes(path, 255) + ": " + errno_text(e));
    if (env.loop->now() >= until) throw late;
    const time_point next = std::min(until, env.loop->now() + pause);
    co_await sleep_until(next);
  }
}

}  // namespace v0
}  // namespace rollcall
