// Preloaded: flock() as some file systems have it. FLOCK_SHIM: "held" by somebody for ever; "enolck"; "granted" to everybody;
// "estale once", then as it is.
#include <dlfcn.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

extern "C" __attribute__((visibility("default"))) int flock(int fd, int operation) noexcept {
  using flock_fn = int (*)(int, int);
  static const auto real = reinterpret_cast<flock_fn>(dlsym(RTLD_NEXT, "flock"));
  static bool was_stale = false;
  char const* set = std::getenv("FLOCK_SHIM");
  const std::string_view how = set ? set : "";
  if (how == "granted") return 0;
  if (how == "held") return errno = EWOULDBLOCK, -1;
  if (how == "enolck") return errno = ENOLCK, -1;
  if (how == "estale once" && !was_stale) return was_stale = true, errno = ESTALE, -1;
  return real(fd, operation);
}
