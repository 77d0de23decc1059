#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <rollcall/server/server_core.hpp>
#include <rollcall/test/memory_stream.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A second, naive server that is shown what the real one executes, in the order in which that executes it.
namespace sim {

namespace rc = rollcall;

/// The number in "…#17|": which operation wrote this value; 0 where none did.
inline std::uint64_t id_in(std::string_view value) {
  const std::size_t at = value.rfind('#');
  if (at == value.npos) return 0;
  std::uint64_t id = 0;
  for (std::size_t i = at + 1; i < value.size() && value[i] >= '0' && value[i] <= '9'; ++i)
    id = id * 10 + static_cast<std::uint64_t>(value[i] - '0');
  return id;
}

/// A request with bytes of its own.
struct request {
  rc::wire::opcode op{};
  std::uint32_t nonce = 0;
  std::int64_t number = 0;
  std::string key, value, value2;
  std::vector<std::string> fields;  // of CHECK, WAIT, MULTI_GET, MULTI_SET

  explicit request(rc::wire::request const& r) : op(r.op) {
    using rc::wire::opcode;
    switch (op) {
      case opcode::ping: nonce = r.nonce; break;
      case opcode::set:
      case opcode::append:
      case opcode::queue_push: key = r.key, value = r.value; break;
      case opcode::compare_set: key = r.key, value = r.value, value2 = r.value2; break;
      case opcode::add:
      case opcode::barrier: key = r.key, number = r.number; break;
      case opcode::get:
      case opcode::queue_pop:
      case opcode::queue_len:
      case opcode::delete_key: key = r.key; break;
      case opcode::check:
      case opcode::wait:
      case opcode::multi_get:
      case opcode::multi_set:
        for (rc::wire::field_cursor f(r.body); !f.done();) fields.emplace_back(f.next());
        break;
      default: break;
    }
  }
};

/// One change that the server has made, or tried: what, for which client, when, and what it answered.
struct applied {
  rc::wire::opcode op{};
  int client = 0;
  std::uint64_t at = 0;
  std::string key;    // the first one
  std::string value;  // the last one
  std::int64_t number = 0;
  std::string answer;
  bool refused = false;
};

struct version {
  std::uint64_t from = 0;
  std::optional<std::string> value;
};

/// A connection as the model knows it.
struct peer {
  explicit peer(int who) : client(who) {}
  int client;
  std::list<request> queue;  // read by the server, not executed yet
  rc::wire::request_decoder decoder;
  std::string out;  // what the server must have written and has not yet
  std::deque<std::pair<std::uint64_t, std::size_t>> lists;  // where and how long in its stream are replies to LIST_KEYS: in no order
  std::uint64_t bytes_out = 0;
  bool inside = false;  // a call of the server's sink is on the stack
  bool closed = false;
  bool gone = false;     // the model has been told
  bool refused = false;  // a request of it must have ended it
};

class model {
 public:
  using complaint_fn = std::function<void(std::string)>;
  explicit model(rc::engine::store_options const& o, complaint_fn f) : options_(o), complain(std::move(f)) { keys_.push_back({0, 0}); }

  std::uint64_t events = 0;
  std::map<std::uint64_t, std::vector<applied>> by_id;
  std::map<std::pair<int, std::string>, std::vector<applied>> deletes;
  std::array<std::uint64_t, 32> seen{};
  std::set<int> refused;  // clients of which a connection had to be ended
  rc::test::virtual_time* clock = nullptr;
  /// When event n happened.
  [[nodiscard]] rc::time_point when(std::uint64_t n) const { return n == 0 ? rc::time_point() : when_[n - 1]; }

  [[nodiscard]] std::map<std::string, std::string> const& values() const { return kv_; }
  [[nodiscard]] std::size_t waits() const { return waits_.size(); }

  /// Whether `test(value or none)` was true of the key at some moment of [from, to].
  template <class F>
  bool ever(std::string const& key, std::uint64_t from, std::uint64_t to, F test) const {
    const auto h = history_.find(key);
    if (h == history_.end()) return test(std::optional<std::string>());
    auto const& v = h->second;
    std::size_t i = v.size();
    while (i > 0 && v[i - 1].from > to) --i;
    for (; i > 0; --i) {
      if (test(v[i - 1].value)) return true;
      if (v[i - 1].from <= from) return false;
    }
    return test(std::optional<std::string>());
  }
  /// Whether there was a moment in [from, to] with n keys.
  bool ever_counted(std::int64_t n, std::uint64_t from, std::uint64_t to) const {
    for (std::size_t i = keys_.size(); i > 0; --i) {
      if (keys_[i - 1].first > to) continue;
      if (keys_[i - 1].second == n) return true;
      if (keys_[i - 1].first <= from) return false;
    }
    return false;
  }
  /// The event since which the key exists without a break; none where it does not.
  std::optional<std::uint64_t> present_since(std::string const& key) const {
    const auto h = history_.find(key);
    if (h == history_.end() || !h->second.back().value) return std::nullopt;
    std::size_t i = h->second.size();
    while (i > 1 && h->second[i - 2].value) --i;
    return h->second[i - 1].from;
  }

  void execute(peer& p, request const& r) {
    using rc::wire::opcode;
    ++events;
    when_.push_back(clock->now());
    ++seen[static_cast<std::size_t>(r.op)];
    // A connection that was woken for an item of a queue takes it with its next request; if that is another one, the next in line is
    // woken. CANCEL_WAIT comes first, so that it is not offered what it drops.
    const std::vector<std::string> granted = take_grants(p);
    const bool first = r.op == opcode::queue_pop || r.op == opcode::cancel_wait;
    if (!first) pass_on(p, granted);
    perform(p, r);
    if (first) pass_on(p, granted);
  }

  /// One value that was pushed: how often it was taken from its queue, and how often it was brought back.
  struct item {
    int client = 0;  // who took it last
    std::uint64_t popped = 0, returned = 0;
  };
  std::map<std::string, item> items;  // by value
  std::map<std::string, std::deque<std::string>> queues;

 private:
  void perform(peer& p, request const& r) {
    using rc::wire::opcode;
    switch (r.op) {
      case opcode::validate: break;
      case opcode::ping: put<std::uint32_t>(p, r.nonce); break;
      case opcode::set:
        note(p, r, id_in(r.value), r.key, r.value);
        store(r.key, r.value);
        break;
      case opcode::append: {
        note(p, r, id_in(r.value), r.key, r.value);
        const auto k = kv_.find(r.key);
        store(r.key, (k == kv_.end() ? std::string() : k->second) + r.value);
        break;
      }
      case opcode::compare_set: {
        const auto k = kv_.find(r.key);
        std::string answer = r.value;
        if (k == kv_.end() ? r.value.empty() : k->second == r.value) {
          store(r.key, answer = r.value2);
        } else if (k != kv_.end()) {
          answer = k->second;
        }
        note(p, r, id_in(r.value2), r.key, r.value2).answer = answer;
        bytes(p, answer);
        break;
      }
      case opcode::get:
        if (r.key == rc::wire::capability_key) return bytes(p, capability());
        bytes(p, kv_.contains(r.key) ? kv_[r.key] : std::string());
        break;
      case opcode::add: {
        applied& a = note(p, r, static_cast<std::uint64_t>(r.number), r.key, {});
        std::int64_t sum = 0;
        if (const auto k = kv_.find(r.key); k != kv_.end()) {
          if (k->second.empty() || k->second.find_first_not_of("0123456789") != std::string::npos) {
            a.refused = p.refused = true;
            refused.insert(p.client);
            return;
          }
          sum = std::stoll(k->second);
        }
        sum += r.number;
        store(r.key, std::to_string(sum));
        a.number = sum;
        put<std::int64_t>(p, sum);
        break;
      }
      case opcode::check: {
        bool all = true;
        for (std::string const& k : r.fields) all = all && (ready(k) || k == rc::wire::capability_key);
        put<char>(p, static_cast<char>(all ? rc::wire::check_ready : rc::wire::check_not_ready));
        break;
      }
      case opcode::wait: {
        waiting w{&p, {}};
        for (std::string const& k : r.fields)
          if (!ready(k)) w.missing.push_back(k);
        if (w.missing.empty()) {
          p.out += '\0';
        } else {
          waits_.push_back(std::move(w));
        }
        break;
      }
      case opcode::num_keys: put<std::int64_t>(p, static_cast<std::int64_t>(kv_.size())); break;
      case opcode::delete_key: {
        const bool there = kv_.erase(r.key) > 0;
        if (there) changed(r.key, std::nullopt);
        applied a{r.op, p.client, events, r.key, {}, there, {}, false};
        deletes[{p.client, r.key}].push_back(a);
        put<std::int64_t>(p, there);
        break;
      }
      case opcode::multi_get:
        for (std::string const& k : r.fields) bytes(p, kv_.contains(k) ? kv_[k] : std::string());
        break;
      case opcode::multi_set:
        note(p, r, r.fields.empty() ? 0 : id_in(r.fields.back()), r.fields.empty() ? std::string() : r.fields.front(),
             r.fields.empty() ? std::string() : r.fields.back());
        for (std::size_t i = 0; i + 1 < r.fields.size(); i += 2) store(r.fields[i], r.fields[i + 1]);
        break;
      case opcode::cancel_wait:
        drop_waits(p);
        p.out += '\1';
        break;
      case opcode::queue_push: {
        auto const i = items.find(r.value);
        if (i != items.end() && i->second.popped > i->second.returned) {
          ++i->second.returned;
        } else {
          note(p, r, id_in(r.value), r.key, r.value);
          items.try_emplace(r.value);
        }
        queues[r.key].push_back(r.value);
        queue_changed(r.key);
        wake_one(r.key);
        break;
      }
      case opcode::queue_pop: {
        auto& q = queues[r.key];
        put<std::int64_t>(p, static_cast<std::int64_t>(q.size()));
        if (q.empty()) break;
        bytes(p, q.front());
        item& i = items[q.front()];
        ++i.popped;
        i.client = p.client;
        q.pop_front();
        queue_changed(r.key);
        break;
      }
      case opcode::queue_len: put<std::int64_t>(p, static_cast<std::int64_t>(queues[r.key].size())); break;
      case opcode::list_keys: {
        const std::size_t before = p.out.size();
        put<std::int64_t>(p, static_cast<std::int64_t>(kv_.size()));
        for (auto const& [k, v] : kv_) bytes(p, k);
        p.lists.emplace_back(p.bytes_out + before, p.out.size() - before);
        break;
      }
      case opcode::barrier: {
        const auto k = kv_.find(r.key);
        const std::int64_t count = (k == kv_.end() ? 0 : std::stoll(k->second)) + 1;
        kv_[r.key] = std::to_string(count);
        changed(r.key, kv_[r.key]);
        note(p, r, 0, r.key, {});
        if (count < r.number) {
          waits_.push_back(waiting{&p, {r.key}});
        } else {
          wake_all(r.key);
          p.out += '\0';
        }
        break;
      }
      default: complain("a request that the client has no reason to send: " + std::string(rc::wire::to_string(r.op)));
    }
  }

 public:
  /// The peer is gone, or has sent its end.
  void forget(peer& p) {
    drop_waits(p);
    const std::vector<std::string> granted = take_grants(p);
    pass_on(p, granted);
  }

 private:
  struct waiting {
    peer* who;
    std::vector<std::string> missing;
  };

  [[nodiscard]] bool ready(std::string const& k) { return kv_.contains(k) || !queues[k].empty(); }
  void drop_waits(peer& p) {
    waits_.remove_if([&p](waiting const& w) { return w.who == &p; });
  }
  /// The first in line for `key` has seen it once; tells who, if that was the last that its wait needed. False: nobody is in line.
  bool advance(std::string const& key, peer*& finished) {
    finished = nullptr;
    for (auto w = waits_.begin(); w != waits_.end(); ++w) {
      const auto k = std::find(w->missing.begin(), w->missing.end(), key);
      if (k == w->missing.end()) continue;
      w->missing.erase(k);
      if (!w->missing.empty()) return true;
      finished = w->who;
      finished->out += '\0';
      waits_.erase(w);
      return true;
    }
    return false;
  }
  void wake_all(std::string const& key) {
    peer* who = nullptr;
    while (advance(key, who)) {}
  }
  void wake_one(std::string const& key) {
    peer* who = nullptr;
    while (advance(key, who))
      if (who) return grants_.emplace_back(who, key), void();
  }
  [[nodiscard]] std::vector<std::string> take_grants(peer& p) {
    std::vector<std::string> mine;
    for (auto const& g : grants_)
      if (g.first == &p) mine.push_back(g.second);
    std::reverse(mine.begin(), mine.end());
    return mine;
  }
  void pass_on(peer& p, std::vector<std::string> const& mine) {
    for (std::string const& k : mine) {
      grants_.erase(std::find(grants_.begin(), grants_.end(), std::pair(&p, k)));
      const auto awake = std::count_if(grants_.begin(), grants_.end(), [&](auto const& g) { return g.second == k; });
      if (std::ssize(queues[k]) > awake) wake_one(k);
    }
  }
  /// The history of a queue is that of its length: as text, none where it is empty.
  void queue_changed(std::string const& key) {
    const std::size_t n = queues[key].size();
    changed(key, n != 0 ? std::optional(std::to_string(n)) : std::nullopt);
  }

  template <class T>
  static void put(peer& p, T v) {
    p.out.append(reinterpret_cast<char const*>(&v), sizeof v);
  }
  static void bytes(peer& p, std::string const& v) {
    put<std::uint64_t>(p, v.size());
    p.out += v;
  }
  std::string capability() const {
    std::string c(rc::wire::capability_bytes, '\0');
    rc::wire::store(c.data(), rc::wire::capability_version);
    rc::wire::store(c.data() + 4, options_.capabilities);
    std::copy(options_.instance_id.begin(), options_.instance_id.end(), c.begin() + 12);
    return c;
  }
  applied& note(peer const& p, request const& r, std::uint64_t id, std::string key, std::string value) {
    auto& list = by_id[id];
    list.push_back(applied{r.op, p.client, events, std::move(key), std::move(value), r.number, {}, false});
    return list.back();
  }
  void changed(std::string const& key, std::optional<std::string> value) {
    history_[key].push_back({events, std::move(value)});
    if (keys_.back().second != static_cast<std::int64_t>(kv_.size())) keys_.push_back({events, static_cast<std::int64_t>(kv_.size())});
  }
  void store(std::string const& key, std::string value) {
    kv_[key] = value;
    changed(key, std::move(value));
    wake_all(key);
  }

  rc::engine::store_options options_;
  std::map<std::string, std::string> kv_;
  std::map<std::string, std::vector<version>> history_;
  std::vector<std::pair<std::uint64_t, std::int64_t>> keys_;
  std::list<waiting> waits_;
  std::vector<std::pair<peer*, std::string>> grants_;
  std::vector<rc::time_point> when_;

 public:
  complaint_fn complain;
};

/// Stands between a stream and the server: shows the model what the server executes, when it executes it, and compares what it answers.
class tap final : public rc::net::stream, private rc::net::stream_sink {
 public:
  tap(rc::net::stream_ptr s, std::shared_ptr<peer> p, model& m, rc::server_stats const& stats)
      : inner_(std::move(s)), peer_(std::move(p)), model_(m), stats_(stats) {}

  void start_read(rc::net::stream_sink& sink) noexcept override {
    sink_ = &sink;
    inner_->start_read(*this);
  }
  void stop_read() noexcept override { inner_->stop_read(); }
  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override {
    const std::ptrdiff_t n = inner_->try_write(pieces, count);
    auto left = static_cast<std::size_t>(std::max<std::ptrdiff_t>(n, 0));
    for (int i = 0; left > 0; ++i) {
      const std::size_t part = std::min(left, pieces[i].iov_len);
      written_.append(static_cast<char const*>(pieces[i].iov_base), part);
      left -= part;
    }
    if (!peer_->inside) compare(model_, *peer_, written_);
    return n;
  }
  void shutdown() noexcept override { inner_->shutdown(); }
  void keep_alive(bool on) noexcept override { inner_->keep_alive(on); }
  [[nodiscard]] std::string peer_name() const override { return inner_->peer_name(); }
  void close() noexcept override {
    peer_->closed = true;
    if (!peer_->inside) leave(model_, *peer_);
    inner_.reset();
    if (kept_) *kept_ = std::move(written_);
    delete this;
  }

 private:
  ~tap() = default;
  static void leave(model& m, peer& p) {
    if (!std::exchange(p.gone, true)) m.forget(p);
  }
  static void compare(model& m, peer& p, std::string& written) {
    while (!written.empty()) {
      std::size_t n = written.size();
      if (!p.lists.empty()) {
        auto const& [at, size] = p.lists.front();
        if (at == p.bytes_out) {
          if (written.size() < size) return;  // the rest of the list is still to come
          if (sorted(written.substr(0, size)) != sorted(p.out.substr(0, size))) m.complain("a LIST_KEYS is not answered with the keys");
          take(p, written, size);
          p.lists.pop_front();
          continue;
        }
        n = std::min<std::size_t>(n, static_cast<std::size_t>(at - p.bytes_out));
      }
      if (n > p.out.size() || p.out.compare(0, n, written, 0, n) != 0) {
        m.complain("the server has not written what it should, after " + std::to_string(p.bytes_out) + " bytes");
        n = written.size();
      }
      take(p, written, n);
    }
  }
  static void take(peer& p, std::string& written, std::size_t n) {
    p.bytes_out += n;
    p.out.erase(0, n);
    written.erase(0, n);
  }
  static std::vector<std::string> sorted(std::string const& list) {
    std::vector<std::string> keys;
    for (std::size_t at = 8; at + 8 <= list.size();) {
      const auto n = static_cast<std::size_t>(rc::wire::load<std::uint64_t>(list.data() + at));
      if (n > list.size() - at - 8) return {list};
      keys.push_back(list.substr(at + 8, n));
      at += 8 + n;
    }
    keys.push_back(list.substr(0, 8));
    std::sort(keys.begin(), keys.end());
    return keys;
  }
  /// Runs one call of the server's sink, which may delete this, then lets the model do what the server did in it.
  template <class F>
  void guard(F call, bool ends = false) {
    const std::shared_ptr<peer> p = peer_;
    model& m = model_;
    rc::server_stats const& stats = stats_;
    std::string rest;
    bool gone = false;
    p->inside = true;
    kept_ = &rest;
    const std::uint64_t before = stats.requests;
    call();
    p->inside = false;
    gone = p->closed;
    for (std::uint64_t n = stats.requests - before; n > 0; --n) {
      if (p->queue.empty()) {
        m.complain("the server has executed more requests than were sent");
        break;
      }
      m.execute(*p, p->queue.front());
      p->queue.pop_front();
    }
    if (!gone) {
      kept_ = nullptr;
      compare(m, *p, written_);
      // It may stay until what it was owed before is written.
      if (p->refused && p->out.empty()) m.complain("a request that must end its connection has not");
      if (ends || p->refused) leave(m, *p);
    } else {
      compare(m, *p, rest);
      leave(m, *p);
    }
  }
  void on_read(std::string_view bytes) noexcept override {
    rc::wire::request r;
    for (std::string_view rest = bytes; peer_->decoder.next(rest, r, rc::wire::limits()) == rc::wire::decode_status::complete;)
      peer_->queue.emplace_back(r);
    guard([&] { sink_->on_read(bytes); });
  }
  void on_end(int status) noexcept override {
    guard([&] { sink_->on_end(status); }, true);
  }
  void on_writable() noexcept override {
    guard([&] { sink_->on_writable(); });
  }

  rc::net::stream_ptr inner_;
  rc::net::stream_sink* sink_ = nullptr;
  std::shared_ptr<peer> peer_;
  model& model_;
  rc::server_stats const& stats_;
  std::string written_;
  std::string* kept_ = nullptr;
};

}  // namespace sim
