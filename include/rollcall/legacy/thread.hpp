#pragma once
#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

/// A thread that handles no signals: they stay with the threads that had them. Those that a thread brings on itself still find it.
/// throws std::system_error where there is none to be had.
template <class F>
[[nodiscard]] std::thread start_thread(F f) {
  struct masked {
    masked() noexcept {
      sigset_t all;
      sigfillset(&all);
      for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, own);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~masked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const masked here;
  return std::thread(std::move(f));
}

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall
