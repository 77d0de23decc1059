#pragma once
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {

/// The symbol of an errno value, "EADDRINUSE"; "errno 12345" for one without a symbol.
[[nodiscard]] inline std::string errno_name(int value) {
#if defined(_GNU_SOURCE) && defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
  if (char const* name = ::strerrorname_np(value); name && *name != '0') return name;
#else
  struct named {
    int value;
    char const* name;
  };
  static constexpr named table[] = {{EACCES, "EACCES"},
                                    {EADDRINUSE, "EADDRINUSE"},
                                    {EADDRNOTAVAIL, "EADDRNOTAVAIL"},
                                    {EAFNOSUPPORT, "EAFNOSUPPORT"},
                                    {EAGAIN, "EAGAIN"},
                                    {EBADF, "EBADF"},
                                    {ECONNABORTED, "ECONNABORTED"},
                                    {ECONNREFUSED, "ECONNREFUSED"},
                                    {ECONNRESET, "ECONNRESET"},
                                    {EHOSTUNREACH, "EHOSTUNREACH"},
                                    {EINTR, "EINTR"},
                                    {EINVAL, "EINVAL"},
                                    {EMFILE, "EMFILE"},
                                    {ENETUNREACH, "ENETUNREACH"},
                                    {ENFILE, "ENFILE"},
                                    {ENOBUFS, "ENOBUFS"},
                                    {ENOENT, "ENOENT"},
                                    {ENOMEM, "ENOMEM"},
                                    {ENOTDIR, "ENOTDIR"},
                                    {EPERM, "EPERM"},
                                    {EPIPE, "EPIPE"},
                                    {EPROTONOSUPPORT, "EPROTONOSUPPORT"},
                                    {EROFS, "EROFS"},
                                    {ETIMEDOUT, "ETIMEDOUT"}};
  for (named const& n : table)
    if (n.value == value) return n.name;
#endif
  return "errno " + std::to_string(value);
}

/// "ECONNREFUSED (Connection refused)"; takes a positive errno value. Out of descriptors, also what to do.
[[nodiscard]] inline std::string errno_text(int value) {
  std::string text = errno_name(value) + " (" + std::generic_category().message(value) + ")";
  if (value == EMFILE) text += "; out of descriptors: see `ulimit -n`";
  if (value == ENFILE) text += "; the system is out of descriptors: see `sysctl fs.file-max`";
  return text;
}

}  // namespace v0
}  // namespace rollcall
