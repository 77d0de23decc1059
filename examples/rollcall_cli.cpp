// rollcall-cli: one operation on a store, for people and for scripts. Works with PyTorch's servers too.
//
// Its parts are in rollcall_cli/: the commands, and the ways in which answers are printed.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <rollcall/rollcall.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "options.hpp"
#include "rollcall_cli/answer.hpp"
#include "rollcall_cli/commands.hpp"
#include "rollcall_cli/environment.hpp"

namespace rc = rollcall;

namespace {

constexpr std::size_t longest_value = std::size_t{8} << 20;  // of one request (protocol 6)

constexpr int most_ranks = 1 << 24;  // of a barrier

constexpr char const* footer =
    "A VALUE that is - is read from standard input. Keys and values that begin with a dash follow --.\n\n"
    "Exit status: 0 done; 1 a negative answer: the key is absent, the check false, the value another one, the queue empty, a rank "
    "missing;\n"
    "2 wrong usage, told as text also with --json; 3 the time is over, and nobody has answered; 4 no store there, the connection lost, a\n"
    "server that does not know the operation, or an answer that standard output does not take.";

struct settings {
  std::string url;
  double timeout = 30;
  bool json = false;
  bool raw = false;
  cli::request what;

  [[nodiscard]] cli::output output(bool is_open) const {
    return {json ? cli::format::json : raw ? cli::format::raw : cli::format::text, is_open};
  }
};

[[noreturn]] void wrong(std::string const& why) { throw CLI::ValidationError(why); }

int port_number(std::string_view text, std::string const& where) {
  int port = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || port < 1 || port > 65535)
    wrong(fmt::format("{}: '{}' is not a port (1..65535)", where, text));
  return port;
}

/// What is wrong with --url is wrong usage, and is told before anybody is asked.
void check_url(settings const& s) {
  const rc::result<rc::store_location> at = rc::try_locate_store(s.url, rc::variables::of_process());
  if (!at) wrong(fmt::format("--url '{}': {}", cli::printable(s.url, true), at.error().detail()));
}

void from_environment(settings& s) {
  const auto value = [](char const* name) {
    char const* v = std::getenv(name);
    return std::string(v ? v : "");
  };
  const std::string addr = value("MASTER_ADDR"), port = value("MASTER_PORT");
  const rc::sourced<std::string> host = rc::variables().set("MASTER_ADDR", addr).host("MASTER_ADDR");
  if (host && rc::detail::is_unix_host(*host)) {
    s.url = "unix://" + rc::detail::percent_encoded(rc::detail::unix_path_in(*host), rc::detail::path_characters);
    return;
  }
  std::string missing;
  if (addr.empty()) missing = "MASTER_ADDR";
  if (port.empty()) missing += missing.empty() ? "MASTER_PORT" : " and MASTER_PORT";
  if (!missing.empty()) wrong("where is the store? Give --url tcp://HOST:PORT, or set " + missing);
  if (!host) wrong(host.problem());
  s.url = "tcp://" + rc::host_port(*host, port_number(port, "MASTER_PORT"));
}

std::string standard_input() {
  std::string all;
  char piece[65536];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw std::system_error(errno, std::generic_category(), "standard input");
    if (n == 0) return all;
    all.append(piece, static_cast<std::size_t>(n));
    if (all.size() > longest_value)
      wrong(fmt::format("standard input has more than {} bytes, the most that a value may have", longest_value));
  }
}

/// Replaces the words of a command that are values and say -.
void read_input(cli::request& r) {
  std::vector<std::string*> asking;
  const auto value = [&](std::size_t i) {
    if (r.words[i] == "-") asking.push_back(&r.words[i]);
  };
  if (r.command == "set" || r.command == "append" || r.command == "push") value(1);
  if (r.command == "cas") value(1), value(2);
  if (r.command == "mset")
    for (std::size_t i = 1; i < r.words.size(); i += 2) value(i);
  if (asking.size() > 1) wrong("only one value can come from standard input");
  if (!asking.empty()) *asking.front() = standard_input();
}

/// The commands that take keys and values: how many words, and what --wait waits for, where it is offered.
struct shape {
  char const* name;
  char const* words;
  std::size_t least, most;
  char const* help;
  char const* waits_for;
};
constexpr std::size_t any = 131072;  // keys of one request (protocol 6)
constexpr shape shapes[] = {
    {"get", "KEY", 1, 1, "Print the value of a key", "the key exists"},
    {"set", "KEY VALUE", 2, 2, "Store a value", nullptr},
    {"add", "KEY [DELTA]", 1, 2, "Add to a number (1 unless given) and print the sum", nullptr},
    {"cas", "KEY EXPECTED DESIRED", 3, 3,
     "Store DESIRED if the value is EXPECTED, or if the key is missing and EXPECTED is ''; print what is there afterwards", nullptr},
    {"check", "KEY...", 1, any, "Whether all keys exist", nullptr},
    {"wait", "KEY...", 1, any, "Wait until all keys exist", nullptr},
    {"delete", "KEY...", 1, any, "Delete keys, print how many there were", nullptr},
    {"append", "KEY VALUE", 2, 2, "Add to the end of a value", nullptr},
    {"mget", "KEY...", 1, any, "Print the values of several keys", "all of them exist"},
    {"mset", "KEY VALUE [KEY VALUE]...", 2, 2 * any, "Store several values at once", nullptr},
    {"push", "QUEUE ITEM", 2, 2, "Put an item at the tail of a queue", nullptr},
    {"pop", "QUEUE", 1, 1, "Take the item at the head of a queue", "there is one"},
    {"len", "QUEUE", 1, 1, "How many items a queue holds", nullptr},
    {"keys", "", 0, 0, "List the keys that users have set", nullptr},
    {"num-keys", "", 0, 0, "How many keys the server holds, internal ones included", nullptr},
    {"ping", "", 0, 0, "Print how long a request takes, in seconds", nullptr},
};

/// What is wrong with a time, or nothing.
std::string not_seconds(std::string const& text) {
  double n = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), n);
  const bool number = !text.empty() && parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return number && std::isfinite(n) && n > 0 ? "" : fmt::format("'{}' is not a number of seconds above 0", text);
}

/// What was wrong with the command line, under this program's name.
std::string complaint(CLI::App const* app, CLI::Error const& e) {
  std::string why = e.what();
  const std::vector<std::string> unknown = app->remaining(true);
  if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) && !unknown.empty()) {
    std::string const& first = unknown.front();
    if (first.starts_with('-')) {
      why = fmt::format("there is no option {}; keys and values that begin with a dash follow --", first);
    } else if (app->get_subcommands().empty()) {
      why = fmt::format("there is no command '{}'", first);
    }
  }
  return fmt::format("rollcall-cli: {}\nRun with --help for more information.\n", why);
}

/// Shows the words of a command as they are written here, without counts.
class words_formatter : public CLI::Formatter {
 public:
  std::string make_option_usage(CLI::Option const* o) const override { return o->get_name(true); }
};

void add_commands(CLI::App& app, settings& s) {
  const auto command = [&](char const* name, char const* help) {
    CLI::App* c = app.add_subcommand(name, help);
    c->fallthrough();
    c->parse_complete_callback([&s, c] { s.what.command = c->get_name(); });
    return c;
  };
  for (shape const& each : shapes) {
    CLI::App* c = command(each.name, each.help);
    // Any number here; what is wrong with it is said in our words.
    if (each.most > 0) c->add_option(each.words, s.what.words, "")->expected(0, 1 << 24)->option_text(" ");
    if (each.waits_for) c->add_flag("--wait", s.what.wait, fmt::format("wait until {}", each.waits_for));
  }
  command("env", "Print what this process's launcher says, and which variable says so; with --url what a rendezvous there would do");
  CLI::App* barrier = command("barrier", "Meet the other ranks of a job; when one does not come, say which");
  barrier->add_option("--name", s.what.name, "of the meeting")->capture_default_str();
  barrier->add_option("--rank", s.what.rank, "which rank this is, from 0 on")->required()->check(CLI::Range(0, most_ranks - 1));
  barrier->add_option("--world", s.what.world, "how many ranks the job has")->required()->check(CLI::Range(1, most_ranks));
  barrier->add_option("--attempt", s.what.attempt, "how often the job was restarted")
      ->capture_default_str()
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  app.require_subcommand(0, 1);  // what is not known is told before what is missing
}

/// That the command has as many words as it takes.
void check_words(cli::request& r) {
  const std::size_t n = r.words.size();
  const auto takes = [&](std::string_view what) {
    wrong(fmt::format("{} takes {}, not {} word{}", r.command, what, n, n == 1 ? "" : "s"));
  };
  if ((r.command == "barrier" || r.command == "env") && n > 0) takes("options only");
  for (shape const& each : shapes)
    if (r.command == each.name && (n < each.least || n > each.most)) takes(each.most > 0 ? each.words : "none");
  if (r.command == "mset" && r.words.size() % 2 != 0) wrong(fmt::format("mset: the last key, '{}', has no value", r.words.back()));
  if (r.command != "add" || r.words.size() < 2) return;
  std::string const& text = r.words[1];
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), r.delta);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size())
    wrong(fmt::format("add: '{}' is not a whole number of 64 bits", text));
}

/// What follows -- is words; the parser would offer it to the program instead of the command.
std::vector<std::string> cut_words(int& argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--") return {argv + i + 1, argv + std::exchange(argc, i)};
  return {};
}

void parse(CLI::App& app, settings& s, int argc, char** argv) {
  app.formatter(std::make_shared<words_formatter>());
  constexpr auto last = CLI::MultiOptionPolicy::TakeLast;
  app.add_option("--url", s.url, "where the store is: tcp://HOST:PORT, unix:///PATH, file:///PATH, env://, auto://; unless given what MASTER_ADDR and MASTER_PORT say")
      ->type_name("URL")
      ->multi_option_policy(last);
  app.add_option("--timeout", s.timeout, "limit of all there is to do, in seconds")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Validator(not_seconds, ""))
      ->multi_option_policy(last);
  CLI::Option* json = app.add_flag("--json", s.json, "print one line of JSON");
  app.add_flag("--raw", s.raw, "print values as they are, byte by byte; each of several ends with a zero byte")->excludes(json);
  app.footer(footer);
  app.failure_message(complaint);
  add_commands(app, s);
  const std::vector<std::string> words = cut_words(argc, argv);
  app.parse(argc, argv);
  options::refuse_empty_values(app);
  s.what.words.insert(s.what.words.end(), words.begin(), words.end());
  if (s.what.command.empty()) wrong("which command? get, set, add, ...: see --help");
  check_words(s.what);
  if (s.what.command == "env") return;  // needs no store
  if (s.url.empty()) from_environment(s);
  check_url(s);
}

rc::task<cli::answer> work(rc::loop& loop, settings s) {
  const rc::deadline limit = rc::deadline(std::chrono::duration<double>(s.timeout)).from(loop.now());
  rc::rendezvous_options options;
  options.timeout(limit.length(loop.now()));
  // A barrier needs some time past its own limit, to learn the verdict.
  if (s.what.command != "barrier") options.client(rc::client_options().timeout(limit));
  rc::any_store store = co_await rc::open_store(loop, s.url, options);
  co_return co_await cli::carry_out(store, s.what, limit);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One operation on a key-value store of rollcall's or PyTorch's (TCPStore).");
  settings s;
  try {
    parse(app, s, argc, argv);
    read_input(s.what);
  } catch (CLI::ParseError const& e) {
    return app.exit(e) == 0 ? cli::ok : cli::usage;
  } catch (std::exception const& e) {
    fmt::print(stderr, "rollcall-cli: {}\n", e.what());
    return cli::usage;
  }
  const cli::output to = s.output(rc::fill_standard_descriptors()[STDOUT_FILENO]);  // later than that, so that a closed standard input is no empty value
  try {
    if (s.what.command == "env") return cli::print_environment(s.url, to);
    rc::loop loop;
    return cli::print(rc::sync_wait(loop, work(loop, s)), to);
  } catch (rc::error const& e) {
    return cli::print(e, to);
  } catch (std::exception const& e) {
    fmt::print(stderr, "rollcall-cli: {}\n", e.what());
    return cli::connection;
  }
}
