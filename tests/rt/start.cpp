#include <chrono>
#include <functional>
#include <memory>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/start.hpp>
#include <rollcall/rt/timer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace {

rc::task<std::string> text(std::string s) { co_return s; }
rc::task<std::unique_ptr<int>> box(rc::event& e, int n) {
  co_await e.wait();
  co_return std::make_unique<int>(n);
}
rc::task<> refuse() {
  throw rc::error(rc::errc::refused, "a test");
  co_return;
}

/// An operation that knows its loop, as those of a store do.
class knows_its_loop {
 public:
  knows_its_loop(rc::loop& l, rc::event& e) : core_(&l.core()), wait_(e.wait()) {}
  [[nodiscard]] rc::detail::loop_core* own_loop() const noexcept { return core_; }
  auto operator co_await() && noexcept { return std::move(wait_); }

 private:
  rc::detail::loop_core* core_;
  rc::event::waiting wait_;
};

}  // namespace

TEST_CASE("start calls back with the value, in a later turn, once") {
  rc::loop l;
  std::vector<std::string> got;
  rc::start(l, text(std::string(50, 'x')), [&got](rc::result<std::string> r) { got.push_back(*r); });
  CHECK(got.empty());
  l.run();
  CHECK(got == std::vector<std::string>{std::string(50, 'x')});
  CHECK(l.live_frames() == 0);
}

TEST_CASE("start calls back with the failure, and with void results") {
  rc::loop l;
  rc::event e(l);
  rc::errc code{};
  bool done = false;
  rc::start(l, refuse(), [&code](rc::result<void> r) { code = r.error().code(); });
  rc::start(l, e.wait(), [&done](rc::result<void> r) { done = r.has_value(); });
  e.set();
  CHECK(!done);
  l.run();
  CHECK(code == rc::errc::refused);
  CHECK(done);
}

TEST_CASE("start owns what it was given, and lets go of it with the call") {
  rc::loop l;
  rc::event e(l);
  auto witness = std::make_shared<int>(1);
  int got = 0;
  rc::start(l, box(e, 4), [witness, &got](rc::result<std::unique_ptr<int>> r) { got = **r; });
  uv_run(l.native(), UV_RUN_NOWAIT);
  CHECK(witness.use_count() == 2);
  e.set();
  l.run();
  CHECK(got == 4);
  CHECK(witness.use_count() == 1);
  CHECK(l.live_frames() == 0);
}

TEST_CASE("a stop ends what was started, in that loop turn") {
  rc::loop l;
  rc::event never(l);
  rc::stop_source source;
  std::vector<rc::errc> codes;
  auto note = [&codes](rc::result<void> r) { codes.push_back(r.has_value() ? rc::errc{} : r.error().code()); };
  rc::start(l, never.wait(), note, source.token());
  rc::start(l, rc::sleep_for(1h), note, source.token());
  uv_run(l.native(), UV_RUN_NOWAIT);
  source.request_stop();
  CHECK(codes.empty());
  uv_run(l.native(), UV_RUN_NOWAIT);
  CHECK(codes == std::vector<rc::errc>{rc::errc::cancelled, rc::errc::cancelled});
  rc::start(l, never.wait(), note, source.token());
  l.run();
  CHECK(codes.size() == 3);
}

TEST_CASE("a callback may start the next operation") {
  rc::loop l;
  int rounds = 0;
  std::function<void()> next = [&] {
    if (++rounds < 100) rc::start(l, rc::sleep_for(0s), [&next](rc::result<void>) { next(); });
  };
  next();
  l.run();
  CHECK(rounds == 100);
  CHECK(l.live_frames() == 0);
}

TEST_CASE("operations that know their loop need not be told one") {
  rc::loop l;
  rc::event e(l);
  bool done = false;
  rc::start(knows_its_loop(l, e), [&done](rc::result<void> r) { done = r.has_value(); });
  uv_run(l.native(), UV_RUN_NOWAIT);
  e.set();
  l.run();
  CHECK(done);
}
