#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rollcall/url.hpp>

namespace {
namespace rc = rollcall;
using rc::rendezvous_url;
using rc::sourced;

template <class T>
std::string text_of(sourced<T> const& v) {
  return v ? rc::detail::show(*v) : v.is_wrong() ? "wrong" : "-";
}

/// "tcp h 29500 rank=0 world_size=2": what was read, in one line; or "2 problems: ..."
std::string read(std::string_view text, std::vector<std::string> const& further = {}) {
  const rendezvous_url u = rendezvous_url::read(text, further);
  if (!u.problems().empty()) {
    std::string all = std::to_string(u.problems().size()) + ":";
    for (std::string const& p : u.problems()) all += " " + p + ";";
    return all;
  }
  std::string out = u.scheme();
  if (u.scheme() == "file") {
    out += " " + u.path();
  } else if (u.scheme() == "unix") {
    out += " " + text_of(u.host());
  } else if (rc::rendezvous_url::read(text).problems().empty()) {
    out += " " + text_of(u.host()) + " " + text_of(u.port());
  } else {
    out += " " + u.authority() + " " + u.path();
  }
  for (auto const& [name, value] : u.parameters()) out += " " + name + "=" + value;
  return out;
}

struct row {
  char const* url;
  char const* read_as;
};

constexpr row good[] = {
    {"tcp://node0:29500", "tcp node0 29500"},
    {"tcp://10.0.0.7:29500?rank=3&world_size=8", "tcp 10.0.0.7 29500 rank=3 world_size=8"},
    {"tcp://[::1]:29500", "tcp ::1 29500"},
    {"tcp://[fe80::1%25lo]:29500", "tcp fe80::1%lo 29500"},
    {"tcp://[fe80::1%lo]:29500", "tcp fe80::1%lo 29500"},
    {"tcp://[fe80::1%25]:29500", "tcp fe80::1%25 29500"},
    {"tcp://[fe80::1%25a%2Fb]:1", "tcp fe80::1%a/b 1"},
    {"tcp://[::ffff:10.0.0.7]:1", "tcp ::ffff:10.0.0.7 1"},
    {"TCP://Node0.example:1", "tcp Node0.example 1"},
    {"tcp://node0:29500/", "tcp node0 29500"},
    {"tcp://node%30:29500", "tcp node0 29500"},
    {"tcp://127.0.0.1:0?rank=0&world_size=1", "tcp 127.0.0.1 0 rank=0 world_size=1"},
    {"tcp://h:65535?&rank=0&&world_size=1&", "tcp h 65535 rank=0 world_size=1"},
    {"tcp://h:1?", "tcp h 1"},
    {"tcp://h:1?r%61nk=%31", "tcp h 1 rank=1"},
    {"tcp://h:1?use_libuv=maybe", "tcp h 1 use_libuv=maybe"},  // only the process that serves judges it
    {"tcp://h:1?bind=*&generation=g-1.2_3", "tcp h 1 bind=* generation=g-1.2_3"},
    {"tcp://h:1?bind=[::]", "tcp h 1 bind=[::]"},
    {"tcp://h:0?port_file=/shared/a%20b", "tcp h 0 port_file=/shared/a b"},
    {"env://", "env - -"},
    {"env://?rank=0&world_size=2", "env - - rank=0 world_size=2"},
    {"env://h:1", "env h 1"},
    {"auto://", "auto - -"},
    {"auto://:29500", "auto - 29500"},
    {"auto://h", "auto h -"},
    {"auto://[::1]?from=slurm", "auto ::1 - from=slurm"},
    {"file:///data/rdzv?rank=0&world_size=2", "file /data/rdzv rank=0 world_size=2"},
    {"file:///data/f%20s%3F%23%25", "file /data/f s?#%"},
    {"file:///data/a+b", "file /data/a+b"},
    {"file:///data/a b", "file /data/a b"},
    {"file://localhost/x", "file /x"},
    {"file:///x?run_id=job%2042", "file /x run_id=job 42"},
    {"file:///dir/", "file /dir/"},
    {"file:///x?world_size=4&rank=1", "file /x world_size=4 rank=1"},
    {"tcp://h:1?run_id=job%2042", "tcp h 1 run_id=job 42"},
    {"unix:///run/job/store", "unix unix:/run/job/store"},
    {"unix:/run/job/store?rank=0&world_size=2", "unix unix:/run/job/store rank=0 world_size=2"},  // as a listener prints it
    {"UNIX://localhost/run/a%20b?use_libuv=0&run_id=r", "unix unix:/run/a b use_libuv=0 run_id=r"},
};

/// What is wrong with a URL: how many problems, and what their texts have in them.
constexpr row bad[] = {
    {"", "1: it does not begin with tcp://, unix://, file://, env:// or auto://"},
    {"unix://", "1: it has no path: unix:///PATH"},
    {"unix://run/store", "1: the path is not absolute: 'run' stands where a host does; three slashes begin a path: unix:///run/store"},
    {"unix:///", "1: '/' is not the absolute path of a unix socket"},
    {"unix:///run/", "1: '/run/' is not the absolute path of a unix socket"},
    {"unix:///a34567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
     "has 109 bytes, and the system takes at most 107 for a unix socket"},
    {"unix:///x?bind=*", "there is no parameter 'bind' for unix://, only rank, world_size, timeout, generation, use_libuv, run_id"},
    {"unix:///x?port_file=/p", "there is no parameter 'port_file' for unix://"},
    {"unix:x", "1: it does not begin with"},
    {"tcp://unix:/run/store", "2: a unix socket has a scheme of its own: unix:///PATH"},
    {"tcp://unix:%2Frun%2Fstore", "1: a unix socket has a scheme of its own: unix:///PATH"},
    {"node0:29500", "1: it does not begin with"},
    {"://h:1", "1: it does not begin with"},
    {"tcq://h:1", "1: there is no scheme 'tcq': tcp, unix, file, env, auto"},
    {"http://h:1?rank=x", "2: there is no scheme 'http'"},
    {"tcp://", "1: it has no host and no port: tcp://HOST:PORT"},
    {"tcp://h", "1: it has no port"},
    {"tcp://h:", "1: port is empty"},
    {"tcp://:29500", "1: it has no host"},
    {"tcp://h:x", "1: port='x' is not a whole number"},
    {"tcp://h:65536", "1: port='65536' is not in 0..65535"},
    {"tcp://h:123456", "1: port='123456' is not in 0..65535"},
    {"tcp://h:-1", "1: port='-1' is not in 0..65535"},
    {"tcp://h:99999999999999999999", "is not in 0..65535"},
    {"tcp://::1:29500", "1: an IPv6 address stands in brackets: tcp://[::1]:29500"},
    {"tcp://f3:03::e1:29500", "1: an IPv6 address stands in brackets: tcp://[f3:03::e1]:29500"},
    {"tcp://fe80::1", "stands in brackets: tcp://[fe80::1]:PORT"},
    {"tcp://a:b:c", "stands in brackets: tcp://[::1]:29500"},
    {"tcp://[::1", "is not closed"},
    {"tcp://[::1]29500", "'29500' follows the bracket"},
    {"tcp://[::1]", "1: it has no port"},
    {"tcp://[node0]:1", "1: host 'node0' is not an IPv6 address"},
    {"tcp://[::g]:1", "1: host '::g' is not an IPv6 address"},
    {"tcp://[fe80::1%]:1", "is not an IPv6 address"},
    {"tcp://user@h:1", "1: it has a user's name"},
    {"tcp://h h:1", "1: host 'h h' has ' ' in it"},
    {"tcp://h%2fx:1", "1: host 'h/x' has '/' in it"},
    {"tcp://10.0.0.256:1", "1: host '10.0.0.256' is not an IPv4 address"},
    {"tcp://127.1:1", "1: host '127.1' is not an IPv4 address"},
    {"tcp://.h:1", "1: host '.h' is not the name of a host"},
    {"tcp://h:1/path", "1: it has a path, '/path'"},
    {"tcp://h:1#x", "begins a fragment"},
    {"file:///a#b?rank=0", "1: '#' begins a fragment, which nobody reads: write %23"},
    {"tcp://h:1?rank", "1: ?rank has no value: rank=..."},
    {"tcp://h:1?rank=", "1: ?rank is empty"},
    {"tcp://h:1?rank=0=5", "1: ?rank='0=5' is not a whole number"},
    {"tcp://h:1?rank=-1", "1: ?rank='-1' is not in 0..2147483646"},
    {"tcp://h:1?rank=+1", "1: ?rank='+1' is not a whole number"},
    {"tcp://h:1?rank=1_0", "is not a whole number"},
    {"tcp://h:1?rank=%201", "1: ?rank=' 1' is not a whole number"},
    {"tcp://h:1?world_size=0", "1: ?world_size='0' is not in 1..2147483647"},
    {"tcp://h:1?world_size=9223372036854775808", "is not in 1..2147483647"},
    {"tcp://h:1?rank=0&rank=1", "1: ?rank is given more than once"},
    {"tcp://h:1?rank=0&ran%6B=0", "1: ?rank is given more than once"},
    {"tcp://h:1?wolrd_size=2",
     "1: there is no parameter 'wolrd_size' for tcp://, only rank, world_size, timeout, generation, use_libuv, bind, port_file, run_id"},
    {"tcp://h:1?run_id=a/b", "1: ?run_id='a/b' cannot be the name of a file"},
    {"tcp://h:1?from=slurm", "there is no parameter 'from' for tcp://"},
    {"file:///x?bind=*", "there is no parameter 'bind' for file://, only rank, world_size, timeout, generation, run_id"},
    {"tcp://h:1?rank=%zz", "'%zz' is no percent-escape"},
    {"tcp://h:1?generation=%4", "'%4' is no percent-escape"},
    {"file:///x%00y", "%00 is a zero byte"},
    {"file://data/x", "three slashes begin a path: file:///data/x"},
    {"file://", "1: it has no path"},
    {"file:/x", "1: three slashes begin a path: file:///x"},
    {"file:///x?run_id=a/b", "1: ?run_id='a/b' cannot be the name of a file"},
    {"file:///x?run_id=..", "cannot be the name of a file"},
    {"file:///x?run_id=", "1: ?run_id is empty"},
    {"tcp://h:1?generation=a%2Fb", "1: ?generation='a/b' is not 1..128 letters"},
    {"tcp://h:1?generation=", "is not 1..128 letters"},
    {"tcp://h:1?bind=", "1: ?bind='' is empty; * means all interfaces"},
    {"tcp://h:1?bind=a:b", "is not an IPv6 address; * means all interfaces"},
    {"tcp://h:0?port_file=p", "1: ?port_file='p' is not the absolute path of a file"},
    {"tcp://h:0?port_file=/p/", "is not the absolute path of a file"},
    {"file:///x?port_file=/p", "there is no parameter 'port_file' for file://"},
    {"tcp://h:1?timeout=0", "1: ?timeout='0' is shorter than 1 ms"},
    {"tcp://h:1?timeout=-5", "is not a time"},
    {"tcp://h:1?timeout=5x", "is not a time"},
    {"tcp://h:1?timeout=inf", "is not a time"},
    {"tcp://h:1?timeout=nan", "is not a time"},
    {"tcp://h:1?timeout=1e3", "is not a time"},
    {"tcp://h:1?timeout=2000000000", "is longer than"},
    {"tcp://h:1\n", "it has a control character in it"},
    // All at once.
    {"tcp://h:x?rank=-1&world_size=0&rnak=1&timeout=soon", "5: port='x'"},
};

TEST_CASE("a URL is taken apart") {
  for (row const& r : good) {
    CAPTURE(r.url);
    CHECK(read(r.url) == r.read_as);
  }
}

TEST_CASE("what is wrong with a URL is said, all of it") {
  for (row const& r : bad) {
    const std::string is = read(r.url);
    INFO(r.url, " gave ", is);
    CHECK(is.find(r.read_as) != is.npos);
    CHECK_FALSE(rendezvous_url::try_parse(r.url).has_value());
  }
}

TEST_CASE("a URL printed is the same URL") {
  for (row const& r : good) {
    CAPTURE(r.url);
    const std::string printed = rendezvous_url::read(r.url).to_string();
    CAPTURE(printed);
    CHECK(read(printed) == r.read_as);
    CHECK(rendezvous_url::read(printed).to_string() == printed);
  }
  CHECK(rendezvous_url::parse("TCP://[::1]:29500/?rank=0").to_string() == "tcp://[::1]:29500?rank=0");
  CHECK(rendezvous_url::parse("tcp://[fe80::1%lo]:1").to_string() == "tcp://[fe80::1%25lo]:1");
  CHECK(rc::host_port("::1", 29500) == "[::1]:29500");
  CHECK(rc::host_port("node0", 1) == "node0:1");
  CHECK(rc::host_port("unix:/run/store", 0) == "unix:/run/store");
}

TEST_CASE("a URL that stands alone is judged whole") {
  CHECK(rendezvous_url::try_parse("tcp://h:1?rank=1&world_size=2").has_value());
  const auto past = rendezvous_url::try_parse("tcp://h:1?rank=2&world_size=2");
  REQUIRE_FALSE(past.has_value());
  CHECK(past.code() == rc::errc::invalid);
  CHECK(past.error().message().find("?rank=2 is not below ?world_size=2") != std::string::npos);
  const auto several = rendezvous_url::try_parse("tcp://h?rank=x&use_libuv=maybe");
  REQUIRE_FALSE(several.has_value());
  const std::string text = several.error().message();
  CHECK(text.find("3 problems with tcp://h?rank=x&use_libuv=maybe: it has no port") != text.npos);
  CHECK(text.find("?rank='x'") != text.npos);
  CHECK(text.find("?use_libuv= in the URL is 'maybe'; it takes 1, 0, true, false, yes, no, on or off") != text.npos);
  CHECK_THROWS_AS(static_cast<void>(rendezvous_url::parse("x")), rc::error);
}

TEST_CASE("times have units, switches have words") {
  const auto limit = [](std::string const& t) { return rendezvous_url::read("tcp://h:1?timeout=" + t).timeout(); };
  using namespace std::chrono_literals;
  CHECK(*limit("30") == 30s);
  CHECK(*limit("0.5") == 500ms);
  CHECK(*limit("250ms") == 250ms);
  CHECK(*limit("30s") == 30s);
  CHECK(*limit("5min") == 5min);
  CHECK(*limit("1.5h") == 90min);
  for (std::string const t : {"1", "true", "yes", "on", "True", "YES"})
    CHECK(rendezvous_url::read("tcp://h:1?use_libuv=" + t).use_libuv().value() == true);
  for (std::string const t : {"0", "false", "no", "off", "FALSE", "Off"})
    CHECK(rendezvous_url::read("tcp://h:1?use_libuv=" + t).use_libuv().value() == false);
  for (std::string const t : {"", "2", "maybe", "01"}) CHECK(rendezvous_url::read("tcp://h:1?use_libuv=" + t).use_libuv().is_wrong());
}

TEST_CASE("a scheme of the caller's keeps all that its URL says") {
  CHECK(read("etcd://a:1,b:2/dir%20x?rank=1&ttl=5", {"etcd"}) == "etcd a:1,b:2 /dir x rank=1 ttl=5");
  CHECK(read("etcd://a?rank=x", {"etcd"}).starts_with("1: ?rank='x'"));
  CHECK(read("redis://a", {"etcd"}) == "1: there is no scheme 'redis': tcp, unix, file, env, auto, etcd;");
}

TEST_CASE("an error about a long or binary URL is short and printable") {
  const std::string text = rendezvous_url::try_parse("tcp://" + std::string(100'000, '\x01') + ":1").error().message();
  CHECK(text.size() < 4096);
  for (char c : text) CHECK((c >= 0x20 && c < 0x7f));
}

TEST_CASE("no text of a few pieces breaks the parser, and what it takes it prints") {
  constexpr std::string_view schemes[] = {"tcp://", "unix://", "file://", "env://", "auto://"};
  constexpr std::string_view pieces[] = {"[", "]", "::1", ":", "/", "?", "&", "=", "%", "%2", "%20", "rank", "0", "h", "#", "@", "%00", ""};
  std::size_t taken = 0;
  for (std::string_view s : schemes)
    for (std::string_view a : pieces)
      for (std::string_view b : pieces)
        for (std::string_view c : pieces) {
          const std::string text = std::string(s) + std::string(a) + std::string(b) + std::string(c);
          const rendezvous_url u = rendezvous_url::read(text);
          if (!u.problems().empty()) continue;
          ++taken;
          const std::string printed = u.to_string();
          if (rendezvous_url::read(printed).to_string() != printed) FAIL(text << " is printed as " << printed);
        }
  CHECK(taken > 100);
}

}  // namespace
