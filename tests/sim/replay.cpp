#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "world.hpp"

// The recorded exchanges of PyTorch's clients with PyTorch's servers, played to our client: it must get from the recorded replies what
// PyTorch's client got, and send what that sent, or what the table says.

using nlohmann::json;
using namespace sim;
using rc::wire::opcode;

namespace {

std::string unhex(std::string_view h) {
  std::string out;
  for (std::size_t i = 0; i + 1 < h.size(); i += 2) out += static_cast<char>(std::stoi(std::string(h.substr(i, 2)), nullptr, 16));
  return out;
}

/// One thing that happens on a connection: the client says these bytes, the server says them, or closes.
struct step {
  enum class kind : unsigned char { client, server, close } what;
  std::string bytes;
};
using script = std::deque<step>;

/// The recorded server on one connection. Answers the handshake itself, as one that is not rollcall's, then plays its script.
class player final : private rc::net::stream_sink {
 public:
  player(rc::net::stream_ptr s, script first) : stream_(std::move(s)), steps_(std::move(first)) { stream_->start_read(*this); }
  void play(script more) {
    for (step& s : more) steps_.push_back(std::move(s));
    go_on();
  }
  [[nodiscard]] bool done() const { return steps_.empty() && got_.empty() && problem.empty(); }
  std::string problem;

 private:
  static constexpr std::size_t handshake_bytes = 5 + 5 + 1 + 8 + 8 + 4;  // VALIDATE, PING, CHECK of the capability key
  void go_on() {
    if (!greeted_) {
      if (got_.size() < handshake_bytes) return;
      std::string hello;
      rc::wire::encode_validate(hello);
      rc::wire::encode_ping(hello, rc::wire::load<std::uint32_t>(got_.data() + 6));
      rc::wire::encode_check(hello, {}, rc::keys(rc::wire::capability_key));
      if (!got_.starts_with(hello)) problem = "another handshake";
      const std::string nonce = got_.substr(6, 4);
      got_.erase(0, handshake_bytes);
      greeted_ = true;
      write(nonce + '\1');
    }
    while (stream_ && !steps_.empty() && problem.empty()) {
      step& s = steps_.front();
      if (s.what == step::kind::client) {
        if (!std::string_view(s.bytes).starts_with(std::string_view(got_).substr(0, s.bytes.size()))) problem = "other bytes than recorded";
        if (got_.size() < s.bytes.size()) return;
        got_.erase(0, s.bytes.size());
      } else if (s.what == step::kind::server) {
        write(s.bytes);
      } else {
        got_.clear();
        stream_.reset();
      }
      steps_.pop_front();
    }
  }
  void write(std::string const& bytes) {
    unsent_ += bytes;
    on_writable();
  }
  void on_read(std::string_view bytes) noexcept override {
    got_ += bytes;
    go_on();
  }
  void on_end(int) noexcept override { problem = "the client has gone"; }
  void on_writable() noexcept override {
    const iovec piece{unsent_.data(), unsent_.size()};
    const std::ptrdiff_t n = unsent_.empty() ? 0 : stream_->try_write(&piece, 1);
    if (n > 0) unsent_.erase(0, static_cast<std::size_t>(n));
  }
  rc::net::stream_ptr stream_;
  script steps_;
  std::string got_, unsent_;
  bool greeted_ = false;
};

std::string const fence("\x05\0\0\0\0\0\0\0\0", 9);
std::string const yes(1, '\0');

std::string of_key(opcode op, std::string const& key) {
  std::string s(1, static_cast<char>(op));
  rc::wire::put_key(s, "/", key);
  return s;
}
std::string number(std::int64_t n) {
  std::string s;
  rc::wire::put_i64(s, n);
  return s;
}

/// How what our client says differs from what PyTorch's client said, by operation; nothing here: not at all.
struct difference {
  enum class form : unsigned char { fenced, checks_first, own_connection } how;
  char const* op;
  char const* reason;
};
constexpr difference differences[] = {
    {difference::form::fenced, "set", "a write completes when it was applied: a CHECK of no keys behind it shows that"},
    {difference::form::fenced, "append", "the same"},
    {difference::form::fenced, "multi_set", "the same"},
    {difference::form::fenced, "queue_push", "the same"},
    {difference::form::checks_first, "get", "what is there needs no WAIT, and CHECK is answered at once"},
    {difference::form::checks_first, "multi_get", "the same"},
    {difference::form::own_connection, "queue_push", "first use of an opcode that the server may not know: a connection of its own, a QUEUE_LEN"},
    {difference::form::own_connection, "list_keys", "the same, without anything beside it"},
    {difference::form::own_connection, "barrier (world size 1)", "the same"},
};
bool differs(difference::form how, std::string const& op) {
  return std::any_of(std::begin(differences), std::end(differences), [&](difference const& d) { return d.how == how && op == d.op; });
}

/// One recording against one client.
class replay {
 public:
  explicit replay(bool legacy) : legacy_(legacy), plan_(7), time_(loop_) {
    network_ = std::make_shared<rc::test::memory_network>(loop_, plan_, [this](rc::net::stream_ptr far, auto const&) {
      players_.push_back(std::make_unique<player>(std::move(far), std::exchange(for_next_, {})));
    });
  }
  ~replay() {
    store_.reset();
    time_.run_for(10s);
  }

  void line(json const& l) {
    const std::string whole = l.at("op").get<std::string>();
    const std::string op = whole.substr(0, whole.find(" ("));
    if (op == "connect") return connect();
    script s = recorded(l);
    const bool refused_there = s.empty();  // by PyTorch's client itself (protocol 5)
    if (differs(difference::form::fenced, op) && !refused_there) {
      s.push_back({step::kind::client, fence});
      s.push_back({step::kind::server, yes});
    }
    if (differs(difference::form::checks_first, op)) {
      if (s.front().bytes[0] == static_cast<char>(opcode::wait)) s.front().bytes[0] = static_cast<char>(opcode::check);
    }
    json const& args = l.at("args");
    const std::string family = op.starts_with("queue") ? "queue" : op;
    if (refused_there) {
      for_next_ = {{step::kind::client, fence}, {step::kind::server, yes}, {step::kind::client, of_key(opcode::queue_len, args.at(0))}, {step::kind::close, {}}};
      std::string check;
      rc::wire::encode_check(check, "/", rc::keys(args.at(0).get<std::string>()));
      s = {{step::kind::client, check}, {step::kind::server, "\1"}};
    } else if ((differs(difference::form::own_connection, op) || differs(difference::form::own_connection, whole)) && tried_.insert(family).second) {
      for_next_ = {{step::kind::client, fence}, {step::kind::server, yes}};
      if (family == "queue") {
        for_next_.push_back({step::kind::client, of_key(opcode::queue_len, args.at(0))});
        for_next_.push_back({step::kind::server, number(0)});
      } else {
        for (step& x : s) for_next_.push_back(std::move(x));
        s.clear();
      }
    }
    if (spare_ && !for_next_.empty()) players_.back()->play(std::exchange(for_next_, {}));  // a connection that is at rest serves as well
    spare_ = spare_ || (!for_next_.empty() && !refused_there);
    players_.front()->play(std::move(s));
    perform(op, args, whole.find("times out") != whole.npos);
    time_.run_for(3s);
    CHECK(ended_);
    CHECK(for_next_.empty());
    for (auto const& p : players_) {
      CHECK(p->problem == "");
      CHECK(p->done());
    }
    judge(op, l.at("result"), whole);
  }

 private:
  static script recorded(json const& l) {
    script s;
    for (json const& x : l.at("exchange")) {
      const std::string who = x.at(0);
      s.push_back({who == "c" ? step::kind::client : step::kind::server, unhex(x.at(1).get<std::string>())});
    }
    return s;
  }
  void connect() {
    store_.reset();
    time_.run_for(10s);
    players_.clear();
    spare_ = false;
    rc::start(loop_, rc::tcp_store::over(loop_, network_->connect(), 5s, rc::client_options(), network_, 4711),
              [this](rc::result<rc::tcp_store> r) { store_ = std::move(r).value(); });
    time_.run_for(1s);
    REQUIRE(store_);
    CHECK(!store_->server_is_rollcall());
  }
  template <class T>
  void start(rc::operation<T> o) {
    rc::start(std::move(o), [this](rc::result<T> r) {
      ended_ = true;
      if (!r) {
        code_ = r.error().code();
        return;
      }
      if constexpr (std::is_void_v<T>) {
        got_ = nullptr;
      } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
        got_ = *r ? json(**r) : json(nullptr);
      } else {
        got_ = *r;
      }
    });
  }
  void perform(std::string const& op, json const& args, bool times_out) {
    ended_ = false;
    code_.reset();
    got_ = "nothing";
    const auto text = [&args](std::size_t i) { return args.at(i).get<std::string>(); };
    const auto list = [&args](std::size_t i) { return args.at(i).get<std::vector<std::string>>(); };
    const rc::deadline limit = times_out ? 1s : 300s;
    rc::tcp_store const& s = *store_;
    if (op == "set") return start(s.set(text(0), text(1)));
    if (op == "get") return start(s.get(text(0)));
    if (op == "add") return start(s.add(text(0), args.at(1).get<std::int64_t>()));
    if (op == "compare_set") return start(s.compare_set(text(0), text(1), text(2)));
    if (op == "check") return start(s.check(list(0)));
    if (op == "wait") return start(s.wait(list(0), limit));
    if (op == "num_keys") return start(s.num_keys());
    if (op == "delete_key") return start(s.delete_key(text(0)));
    if (op == "append") return start(s.append(text(0), text(1)));
    if (op == "multi_get") return start(s.multi_get(list(0)));
    if (op == "multi_set") {
      const std::vector<std::string> names = list(0);
      const std::vector<std::string> values = list(1);
      std::vector<rc::kv> pairs;
      for (std::size_t i = 0; i < names.size(); ++i) pairs.emplace_back(names[i], values[i]);
      return start(s.multi_set(pairs));
    }
    if (op == "queue_push") return start(s.queue_push(text(0), text(1)));
    if (op == "queue_pop" && args.size() > 1 && !args.at(1).get<bool>()) return start(s.queue_pop_now(text(0)));
    if (op == "queue_pop") return start(s.queue_pop(text(0)));
    if (op == "queue_len") return start(s.queue_len(text(0)));
    if (op == "list_keys") return start(s.list_keys());
    if (op == "barrier") return start(s.server_barrier(text(0), args.at(1).get<std::int64_t>(), limit));
    FAIL("no operation of ours for " << op);
  }
  void judge(std::string const& op, json expected, std::string const& whole) {
    if (expected.is_object()) {
      if (whole.find("times out") != whole.npos) {
        CHECK(code_ == rc::errc::timed_out);
      } else if (legacy_ && op.starts_with("queue_")) {
        CHECK(code_ == rc::errc::unsupported);
      } else {
        CHECK(op == "queue_pop");  // "queue is empty": no item
        CHECK(!code_);
        CHECK(got_ == json(nullptr));
      }
      return;
    }
    CHECK(!code_);
    if (op == "list_keys") {
      std::sort(got_.begin(), got_.end());
      std::sort(expected.begin(), expected.end());
    }
    CHECK(got_ == expected);
  }

  bool legacy_;
  rc::test::fault_plan plan_;
  rc::loop loop_;
  rc::test::virtual_time time_;
  std::shared_ptr<rc::test::memory_network> network_;
  std::vector<std::unique_ptr<player>> players_;
  script for_next_;
  std::set<std::string> tried_;
  std::optional<rc::tcp_store> store_;
  bool spare_ = false;  // there is a connection beside the first
  bool ended_ = false;
  std::optional<rc::errc> code_;
  json got_;
};

}  // namespace

TEST_CASE("our client gets from PyTorch's recorded replies what PyTorch's client got") {
  for (std::string const name : {"torch-2.6.0", "torch-2.6.0-libuv", "torch-2.13.0-legacy", "torch-2.13.0-libuv"}) {
    std::ifstream in(std::string(ROLLCALL_TEST_VECTORS "/") + name + ".jsonl");
    replay r(name.find("libuv") == name.npos);
    int played = 0;
    for (std::string text; std::getline(in, text);) {
      const json l = json::parse(text);
      const std::string op = l.at("op").get<std::string>();
      if (op.rfind("raw:", 0) == 0) continue;  // what no client says
      CAPTURE(name);
      CAPTURE(op);
      r.line(l);
      ++played;
    }
    CHECK(played >= 30);
  }
}
