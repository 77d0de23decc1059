#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support.hpp"

using namespace unit;

namespace {

/// The rules of the store, written down as naively as possible: one list of waits, searched from the front.
struct model {
  struct wait {
    std::size_t who;
    std::vector<std::string> missing;
  };
  std::map<std::string, std::string> kv;
  std::map<std::string, std::deque<std::string>> queues;
  std::list<std::pair<std::string, wait*>> lines;  // who stands in line for which key, in order of arrival
  std::list<wait> waits;
  std::vector<std::pair<std::size_t, std::string>> grants;
  std::vector<std::string> out;

  bool ready(std::string const& k) { return kv.count(k) != 0 || queues.count(k) != 0; }
  /// The first in line for k has seen it; tells who, if that was the last key of its wait. False: nobody is in line.
  bool advance(std::string const& k, std::optional<std::size_t>& finished) {
    const auto first = std::find_if(lines.begin(), lines.end(), [&](auto const& l) { return l.first == k; });
    if (first == lines.end()) return false;
    wait* w = first->second;
    lines.erase(first);
    w->missing.pop_back();
    finished.reset();
    if (w->missing.empty()) {
      finished = w->who;
      out[w->who] += stop;
      waits.remove_if([w](wait const& x) { return &x == w; });
    }
    return true;
  }
  void wake_all(std::string const& k) {
    std::optional<std::size_t> who;
    while (advance(k, who)) {}
  }
  void wake_one(std::string const& k) {
    std::optional<std::size_t> who;
    while (advance(k, who))
      if (who) return grants.emplace_back(*who, k), void();
  }
  void set(std::string const& k, std::string v) {
    kv[k] = std::move(v);
    wake_all(k);
  }
  void enter(std::size_t who, std::vector<std::string> const& missing) {
    waits.push_back({who, missing});
    for (std::string const& k : missing) lines.emplace_back(k, &waits.back());
  }
  void cancel(std::size_t who) {
    lines.remove_if([who](auto const& l) { return l.second->who == who; });
    waits.remove_if([who](wait const& w) { return w.who == who; });
  }
  std::vector<std::string> take_grants(std::size_t who) {
    std::vector<std::string> mine;
    for (auto const& g : grants)
      if (g.first == who) mine.push_back(g.second);
    std::reverse(mine.begin(), mine.end());
    return mine;
  }
  void pass_on(std::size_t who, std::vector<std::string> const& mine) {
    for (std::string const& k : mine) {
      grants.erase(std::find(grants.begin(), grants.end(), std::pair(who, k)));
      const auto awake = std::count_if(grants.begin(), grants.end(), [&](auto const& g) { return g.second == k; });
      if (queues.count(k) != 0 && std::ssize(queues[k]) > awake) wake_one(k);
    }
  }
  std::string value(std::string const& k) { return kv.count(k) != 0 ? kv[k] : std::string(); }
};

constexpr std::size_t client_count = 5;
constexpr std::size_t key_count = 6;

class game {
 public:
  explicit game(std::uint64_t seed) : rng_(seed), store_(engine::store_options().seed(seed)) {
    for (std::size_t i = 0; i < key_count; ++i) names_[i] = std::string(1, static_cast<char>('a' + i));
    for (auto& p : peers_) p = std::make_unique<peer>(store_);
    model_.out.resize(client_count);
  }

  void step() {
    const std::size_t who = rng_.below(client_count);
    const std::size_t op = rng_.below(100);
    if (op < 3) {
      peers_[who] = std::make_unique<peer>(store_);  // the old one leaves after the new one came
      const auto mine = model_.take_grants(who);
      model_.cancel(who);
      model_.pass_on(who, mine);
      model_.out[who].clear();
    } else {
      request_.clear();
      const auto mine = model_.take_grants(who);
      const bool first = (op >= 70 && op < 78) || (op >= 3 && op < 8);
      if (!first) model_.pass_on(who, mine);
      act(who, op);
      if (first) model_.pass_on(who, mine);
      peers_[who]->feed(request_);
    }
    for (std::size_t i = 0; i < client_count; ++i) {
      const std::string got = peers_[i]->take();
      if (got != model_.out[i]) FAIL("operation " << op << " of client " << who << ": client " << i << " got something else");
      model_.out[i].clear();
    }
    const engine::store_stats s = store_.stats();
    if (s.keys != model_.kv.size() || s.waits != model_.waits.size()) FAIL("counts differ after operation " << op);
  }
  /// Everything is let go: nothing may be left.
  void finish() {
    for (auto& p : peers_) p->close();
    for (std::string const& k : names_) {
      peer last(store_);
      std::string request;
      wire::encode_delete_key(request, "", k);
      for (std::size_t n = model_.queues[k].size(); n > 0; --n) wire::encode_queue_pop(request, "", k);
      last.feed(request);
    }
    CHECK(store_.entries() == 0);
    CHECK(store_.stats().stored_bytes == 0);
  }

 private:
  std::string const& key() { return names_[rng_.below(key_count)]; }
  std::vector<std::string> some_keys() {
    std::vector<std::string> k(rng_.below(4));
    for (std::string& s : k) s = key();
    return k;
  }

  void act(std::size_t who, std::size_t op) {
    std::string& out = model_.out[who];
    std::string const& k = key();
    const std::string v = std::to_string(rng_.below(50));
    if (op < 8) {
      wire::encode_cancel_wait(request_);
      model_.cancel(who);
      out += canceled;
    } else if (op < 14) {
      wire::encode_set(request_, "", k, v);
      model_.set(k, v);
    } else if (op < 20) {
      const std::string e = rng_.below(2) != 0 ? model_.value(k) : v;
      wire::encode_compare_set(request_, "", k, e, v);
      const bool present = model_.kv.count(k) != 0;
      if (present ? model_.kv[k] == e : e.empty()) {
        model_.set(k, v);
        out += bytes(v);
      } else {
        out += bytes(present ? model_.kv[k] : e);
      }
    } else if (op < 24) {
      wire::encode_get(request_, "", k);
      out += bytes(model_.value(k));
    } else if (op < 30) {
      const std::int64_t n = model_.kv.count(k) != 0 ? std::stoll(model_.kv[k]) : 0;
      const auto delta = static_cast<std::int64_t>(rng_.below(9)) - 4;
      wire::encode_add(request_, "", k, delta);
      model_.set(k, std::to_string(n + delta));
      out += i64(n + delta);
    } else if (op < 36) {
      const auto list = some_keys();
      wire::encode_check(request_, "", list);
      out += std::all_of(list.begin(), list.end(), [this](auto const& x) { return model_.ready(x); }) ? ready : not_ready;
    } else if (op < 56) {
      const auto list = some_keys();
      wire::encode_wait(request_, "", list);
      std::vector<std::string> missing;
      for (std::string const& x : list)
        if (!model_.ready(x)) missing.push_back(x);
      if (missing.empty()) {
        out += stop;
      } else {
        model_.enter(who, missing);
      }
    } else if (op < 68) {
      wire::encode_delete_key(request_, "", k);
      out += i64(static_cast<std::int64_t>(model_.kv.erase(k)));
    } else if (op < 70) {
      wire::encode_multi_get(request_, "", some_keys_then_reply(out));
    } else if (op < 78) {
      wire::encode_queue_pop(request_, "", k);
      auto& q = model_.queues[k];
      out += i64(std::ssize(q));
      if (!q.empty()) {
        out += bytes(q.front());
        q.pop_front();
      }
      if (q.empty()) model_.queues.erase(k);
    } else if (op < 86) {
      wire::encode_queue_push(request_, "", k, v);
      model_.queues[k].push_back(v);
      model_.wake_one(k);
    } else if (op < 88) {
      wire::encode_queue_len(request_, "", k);
      out += i64(model_.queues.count(k) != 0 ? std::ssize(model_.queues[k]) : 0);
    } else if (op < 92) {
      std::vector<std::pair<std::string, std::string>> pairs(rng_.below(4));
      for (auto& [pk, pv] : pairs) {
        pk = key();
        pv = v;
      }
      wire::encode_multi_set(request_, "", pairs);
      for (auto const& [pk, pv] : pairs) model_.set(pk, pv);
    } else if (op < 97) {
      const std::int64_t n = (model_.kv.count(k) != 0 ? std::stoll(model_.kv[k]) : 0) + 1;
      const auto world = static_cast<std::int64_t>(rng_.below(8));
      wire::encode_barrier(request_, "", k, world);
      model_.kv[k] = std::to_string(n);
      if (n >= world) {
        model_.wake_all(k);
        out += stop;
      } else {
        model_.enter(who, {k});
      }
    } else {
      wire::encode_num_keys(request_);
      out += i64(std::ssize(model_.kv));
    }
  }
  std::vector<std::string> const& some_keys_then_reply(std::string& out) {
    list_ = some_keys();
    for (std::string const& x : list_) out += bytes(model_.value(x));
    return list_;
  }

  xorshift rng_;
  engine::store store_;
  std::array<std::string, key_count> names_;
  std::array<std::unique_ptr<peer>, client_count> peers_;
  model model_;
  std::string request_;
  std::vector<std::string> list_;
};

}  // namespace

TEST_CASE("random operations of several connections do what the naive model does") {
  constexpr int games = 100;
  constexpr int steps = 2100;
  for (std::uint64_t seed = 1; seed <= games; ++seed) {
    CAPTURE(seed);
    game g(seed);
    for (int i = 0; i < steps; ++i) g.step();
    g.finish();
  }
  MESSAGE("seeds 1 to " << games << ", " << games * steps << " operations");
}
