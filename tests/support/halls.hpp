#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "net.hpp"

/// One conformance suite for all stores (docs/design/stores.md): a case is written once, over any_store, and asked of every kind there is.
namespace net_test {

using strings = std::vector<string>;

/// Where stores of one kind come from: open() gives one more client of the same data.
class hall {
 public:
  hall() = default;
  hall(hall const&) = delete;
  hall& operator=(hall const&) = delete;
  virtual ~hall() = default;
  virtual rc::task<rc::any_store> open(rc::deadline limit = 300s) = 0;
  virtual rc::task<> close() = 0;
  /// Whether a stop ends one call, and not all that its client has under way.
  [[nodiscard]] virtual bool stops_one_call() const = 0;
};

/// A kind of store, under the name that a failing case shows.
struct kind_of_store {
  char const* name;
  std::unique_ptr<hall> (*make)(rc::loop&);
};
/// All of them: net/halls.cpp. A new store joins by one line there.
[[nodiscard]] std::vector<kind_of_store> const& all_kinds();

/// Runs `f(loop, hall)`, a task, for each kind, each on a fresh loop.
template <class F>
void of_every_kind(F f) {
  for (kind_of_store const& kind : all_kinds()) {
    DYNAMIC_SECTION(kind.name) {
      const auto body = [&](rc::loop& l) -> rc::task<> {
        const std::unique_ptr<hall> data = kind.make(l);
        co_await f(l, *data);
        co_await data->close();
      };
      on_loop(body);
    }
  }
}
/// Runs `f(loop, hall, store)` in the same way, with a client that is open.
template <class F>
void of_every_store(F f) {
  const auto body = [&f](rc::loop& l, hall& data) -> rc::task<> {
    rc::any_store s = co_await data.open();
    co_await f(l, data, s);
  };
  of_every_kind(body);
}

/// An operation that runs beside the test.
template <class T>
class outcome {
 public:
  template <class Op>
  void start(Op op) {
    rc::start(std::move(op), [this](rc::result<T> got) { r.emplace(std::move(got)); }, stop.token());
  }
  std::optional<rc::result<T>> r;
  rc::stop_source stop;
};

[[nodiscard]] inline strings sorted(strings v) {
  std::sort(v.begin(), v.end());
  return v;
}

}  // namespace net_test
