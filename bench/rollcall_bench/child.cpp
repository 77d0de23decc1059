#include "child.hpp"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

namespace {

/// Our ends of all children's sockets: a new child must not hold those of its siblings, or they would never see their end.
std::vector<int>& our_ends() {
  static std::vector<int> ends;
  return ends;
}

std::uint64_t clock_ns(clockid_t c) noexcept {
  timespec t{};
  clock_gettime(c, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(t.tv_nsec);
}

template <class F>
void for_each_name(std::string const& folder, F f) {
  DIR* const d = opendir(folder.c_str());
  if (!d) return;
  while (dirent const* e = readdir(d))
    if (e->d_name[0] != '.') f(std::string(e->d_name));
  closedir(d);
}

}  // namespace

std::uint64_t now_ns() noexcept { return clock_ns(CLOCK_MONOTONIC); }
std::uint64_t thread_cpu_ns() noexcept { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

bool read_all(int fd, void* to, std::size_t n) noexcept {
  for (char* p = static_cast<char*>(to); n > 0;) {
    const ssize_t k = ::read(fd, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    n -= static_cast<std::size_t>(k);
  }
  return true;
}

bool write_all(int fd, void const* from, std::size_t n) noexcept {
  for (char const* p = static_cast<char const*>(from); n > 0;) {
    const ssize_t k = ::send(fd, p, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    n -= static_cast<std::size_t>(k);
  }
  return true;
}

child::child(std::function<int(int)> const& body, int cpu) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) throw std::runtime_error("socketpair failed");
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) {
    ::close(pair[1]);
    socket_ = pair[0];
    our_ends().push_back(socket_);
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(pair[0]);
  for (const int fd : our_ends()) ::close(fd);
  our_ends().clear();
  raise_descriptor_limit();
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(cpu), &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  int status = 1;
  try {
    status = body(pair[1]);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "rollcall-bench: %s\n", e.what());
  }
  std::fflush(nullptr);
  ::_exit(status);
}

child::~child() {
  std::erase(our_ends(), socket_);
  ::close(socket_);
  for (int i = 0; i < 2000; ++i) {
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) return;
    ::usleep(1000);
  }
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::uint64_t child::cpu_ns() const {
  std::uint64_t sum = 0;
  const std::string tasks = "/proc/" + std::to_string(pid_) + "/task/";
  for_each_name(tasks, [&](std::string const& thread) {
    std::uint64_t ran = 0;
    std::ifstream(tasks + thread + "/schedstat") >> ran;
    sum += ran;
  });
  return sum;
}

std::uint64_t child::rss() const {
  std::uint64_t total = 0, resident = 0;
  std::ifstream("/proc/" + std::to_string(pid_) + "/statm") >> total >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

void raise_descriptor_limit() noexcept {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::size_t open_descriptors() {
  std::size_t n = 0;
  for_each_name("/proc/self/fd", [&](std::string const&) { ++n; });
  return n - 1;  // one of them was looking
}

}  // namespace bench
