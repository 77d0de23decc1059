#pragma once
#include "halls.hpp"
#include "threaded_store.hpp"

/// The kinds of stores there are, each with its own type; erased_hall makes a hall of them.
namespace net_test {

class tcp_hall {
 public:
  using store_type = rc::tcp_store;
  explicit tcp_hall(rc::loop& l) : loop_(l), server_(l) {}
  rc::task<rc::tcp_store> open(rc::deadline limit = 300s) { return client_of(loop_, server_.port(), rc::client_options{}.timeout(limit)); }
  rc::task<> close() { return server_.stop(); }

 private:
  rc::loop& loop_;
  local_server server_;
};

class hash_hall {
 public:
  using store_type = rc::hash_store;
  explicit hash_hall(rc::loop& l) : loop_(l) {}
  rc::task<rc::hash_store> open(rc::deadline limit = 300s) {
    if (!first_) first_.emplace(loop_, rc::hash_options{}.timeout(limit));
    co_return first_->clone();
  }
  rc::task<> close() {
    first_.reset();
    co_return;
  }

 private:
  rc::loop& loop_;
  std::optional<rc::hash_store> first_;
};

/// Every client is a member of a file of its own hall's, with the kernel's change notice or without.
template <bool Watch>
class file_hall {
 public:
  using store_type = rc::file_store;
  explicit file_hall(rc::loop& l) : loop_(l) {}
  rc::task<rc::file_store> open(rc::deadline limit = 300s) {
    return rc::file_store::open(loop_, here_.path + "/store", 20s, rc::file_options{}.timeout(limit).watch(Watch));
  }
  rc::task<> close() { co_return; }

 private:
  rc::loop& loop_;
  scratch here_;
};
using watched = file_hall<true>;
using polled = file_hall<false>;

/// Its server has a thread of its own: a blocking close(), on the loop's thread, asks it.
class blocking_hall {
 public:
  using store_type = threaded_store;
  explicit blocking_hall(rc::loop& l) : loop_(l), server_(rc::listen_options{}) { server_.start(); }
  rc::task<threaded_store> open(rc::deadline limit = 300s) {
    co_return threaded_store(loop_, rc::blocking_store::connect("127.0.0.1", server_.port(), 10s, rc::blocking_options{}.timeout(limit)));
  }
  rc::task<> close() {
    server_.stop();
    co_return;
  }

 private:
  rc::loop& loop_;
  rc::legacy_server server_;
};

template <class Hall>
class prefixed {
 public:
  using store_type = rc::prefix_store<typename Hall::store_type>;
  explicit prefixed(rc::loop& l) : below_(l) {}
  rc::task<store_type> open(rc::deadline limit = 300s) {
    typename Hall::store_type below = co_await below_.open();
    co_return store_type(std::move(below), "some/prefix", limit);
  }
  rc::task<> close() { return below_.close(); }

 private:
  Hall below_;
};

template <class Hall>
class erased {
 public:
  using store_type = rc::any_store;
  explicit erased(rc::loop& l) : below_(l) {}
  rc::task<rc::any_store> open(rc::deadline limit = 300s) {
    typename Hall::store_type below = co_await below_.open(limit);
    co_return rc::any_store(std::move(below));
  }
  rc::task<> close() { return below_.close(); }

 private:
  Hall below_;
};

template <class Hall>
class erased_hall final : public hall {
 public:
  explicit erased_hall(rc::loop& l) : below_(l) {}
  rc::task<rc::any_store> open(rc::deadline limit) override { return below_.open(limit); }
  rc::task<> close() override { return below_.close(); }
  [[nodiscard]] bool stops_one_call() const override { return !std::is_same_v<Hall, blocking_hall>; }

 private:
  erased<Hall> below_;
};

}  // namespace net_test
