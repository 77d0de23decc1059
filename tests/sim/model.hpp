#pragma once
#include <array>
#include <cstdint>
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
      case opcode::append: key = r.key, value = r.value; break;
      case opcode::compare_set: key = r.key, value = r.value, value2 = r.value2; break;
      case opcode::add: key = r.key, number = r.number; break;
      case opcode::get:
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
        for (std::string const& k : r.fields) all = all && (kv_.contains(k) || k == rc::wire::capability_key);
        put<char>(p, static_cast<char>(all ? rc::wire::check_ready : rc::wire::check_not_ready));
        break;
      }
      case opcode::wait: {
        waiting w{&p, {}};
        for (std::string const& k : r.fields)
          if (!kv_.contains(k)) w.missing.insert(k);
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
        forget(p);
        p.out += '\1';
        break;
      default: complain("a request that the client has no reason to send: " + std::string(rc::wire::to_string(r.op)));
    }
  }
  /// The peer is gone, or has sent its end.
  void forget(peer& p) {
    waits_.remove_if([&p](waiting const& w) { return w.who == &p; });
  }

 private:
  struct waiting {
    peer* who;
    std::set<std::string> missing;
  };

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
    for (auto w = waits_.begin(); w != waits_.end();) {
      if (w->missing.erase(key) > 0 && w->missing.empty()) {
        w->who->out += '\0';
        w = waits_.erase(w);
      } else {
        ++w;
      }
    }
  }

  rc::engine::store_options options_;
  std::map<std::string, std::string> kv_;
  std::map<std::string, std::vector<version>> history_;
  std::vector<std::pair<std::uint64_t, std::int64_t>> keys_;
  std::list<waiting> waits_;
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
    if (written.empty()) return;
    if (!p.out.starts_with(written))
      m.complain("the server has not written what it should, after " + std::to_string(p.bytes_out) + " bytes");
    p.bytes_out += written.size();
    p.out.erase(0, written.size());
    written.clear();
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
      if (p->refused && !gone) m.complain("a request that must end its connection has not");
    }
    if (!gone) {
      kept_ = nullptr;
      compare(m, *p, written_);
      if (ends) leave(m, *p);
    } else {
      if (!p->out.starts_with(rest)) m.complain("the last bytes of the server are wrong");
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
