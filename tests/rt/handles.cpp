#include <uv.h>

#include <chrono>
#include <functional>
#include <memory>
#include <rollcall/rt/detail/handle.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/loop.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <utility>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace {

/// Owns a uv_idle_t; calls `f` in every turn of the loop.
class ticker {
 public:
  using handle = rc::detail::handle<uv_idle_t, ticker>;
  ticker(rc::loop& l, std::function<void(ticker&)> f) : f_(std::move(f)) {
    REQUIRE(handle_.open(l.core(), this, [](uv_loop_t* u, uv_idle_t* h) { return uv_idle_init(u, h); }) == 0);
    uv_idle_start(handle_.get(), [](uv_idle_t* h) noexcept {
      const rc::detail::loop_core::turn t(handle::core_of(h));
      if (ticker* self = handle::owner_of(h)) self->f_(*self);
    });
  }
  ticker(ticker&& o) noexcept : handle_(std::move(o.handle_)), f_(std::move(o.f_)) { handle_.set_owner(this); }
  void close() noexcept { handle_.reset(); }
  [[nodiscard]] bool open() const noexcept { return static_cast<bool>(handle_); }

 private:
  handle handle_;
  std::function<void(ticker&)> f_;
};

}  // namespace

TEST_CASE("a handle whose init fails is not owned and not counted") {
  rc::loop l;
  ticker::handle h;
  CHECK(h.open(l.core(), nullptr, [](uv_loop_t*, uv_idle_t*) { return UV_EMFILE; }) == UV_EMFILE);
  CHECK(!h);
  CHECK(l.live_handles() == 0);
}

TEST_CASE("letting go closes the handle; it counts until libuv has let go of it") {
  rc::loop l;
  {
    const ticker t(l, [](ticker&) {});
    CHECK(l.live_handles() == 1);
  }
  CHECK(l.live_handles() == 1);
  uv_run(l.native(), UV_RUN_NOWAIT);
  CHECK(l.live_handles() == 0);
}

TEST_CASE("a handle may be closed, and its owner destroyed, within its own callback") {
  rc::loop l;
  int calls = 0;
  auto closes = std::make_unique<ticker>(l, [&calls](ticker& t) {
    ++calls;
    t.close();
    t.close();
  });
  std::unique_ptr<ticker> dies;
  dies = std::make_unique<ticker>(l, [&](ticker&) {
    ++calls;
    auto gone = std::move(dies);
    static_cast<void>(gone);
    // `f_` is destroyed with its owner: nothing of it is used from here on.
  });
  l.run();
  CHECK(calls == 2);
  CHECK(!closes->open());
  CHECK(!dies);
  CHECK(l.live_handles() == 0);
}

TEST_CASE("a handle may be closed within the callback of another in the same turn") {
  rc::loop l;
  int calls = 0;
  ticker* other[2] = {nullptr, nullptr};
  auto close_both = [&](ticker&) {
    ++calls;
    other[0]->close();
    other[1]->close();
  };
  ticker a(l, close_both);
  ticker b(l, close_both);
  other[0] = &a;
  other[1] = &b;
  l.run();
  CHECK(calls == 1);
  CHECK(l.live_handles() == 0);
}

TEST_CASE("a handle follows its owner when that moves") {
  rc::loop l;
  ticker const* called = nullptr;
  ticker a(l, [&called](ticker& t) {
    called = &t;
    t.close();
  });
  const ticker b(std::move(a));
  l.run();
  CHECK(called == &b);
}

TEST_CASE("the loop may go while handles on it are closing") {
  rc::loop l;
  ticker a(l, [](ticker&) {});
  uv_run(l.native(), UV_RUN_NOWAIT);
  a.close();
}

CO_TEST_CASE("a coroutine that a callback makes ready may destroy the handle's owner") {
  rc::event called(loop);
  auto t = std::make_unique<ticker>(loop, [&called](ticker&) { called.set(); });
  co_await called.wait();  // resumed at the end of the callback, on top of it
  t.reset();
}
