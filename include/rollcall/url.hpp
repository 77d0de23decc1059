#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/result.hpp"
#include "rendezvous/values.hpp"

namespace rollcall {
inline namespace v0 {

/// A rendezvous URL, taken apart: tcp://HOST:PORT?..., unix:///PATH?..., file:///PATH?..., env://?..., auto://?..., or a scheme that the caller names
/// (docs/design/rendezvous.md has the grammar). Knows nothing of the environment, resolves nothing, opens nothing.
class rendezvous_url {
 public:
  rendezvous_url() = default;

  /// Takes a text apart as far as it goes; problems() says what is wrong with it.
  ///
  /// further_schemes  names of schemes beside tcp, unix, file, env and auto, in lower case; such URLs keep authority(), path() and all parameters.
  [[nodiscard]] static rendezvous_url read(std::string_view text, std::vector<std::string> const& further_schemes = {});
  /// The same for a URL that stands alone: its own rank is below its own world_size, use_libuv is a switch.
  ///
  /// errors    invalid: one that names every problem.
  [[nodiscard]] static result<rendezvous_url> try_parse(std::string_view text, std::vector<std::string> const& further_schemes = {});
  [[nodiscard]] static rendezvous_url parse(std::string_view text, std::vector<std::string> const& further_schemes = {}) {
    return try_parse(text, further_schemes).value();
  }

  [[nodiscard]] std::vector<std::string> const& problems() const noexcept { return problems_; }
  /// As it was given.
  [[nodiscard]] std::string const& text() const noexcept { return text_; }
  /// In lower case, without "://"; "" where there is none.
  [[nodiscard]] std::string const& scheme() const noexcept { return scheme_; }
  /// tcp, env, auto: without brackets, decoded. unix: "unix:PATH", as connect() takes it.
  [[nodiscard]] sourced<std::string> const& host() const noexcept { return host_; }
  /// tcp, env, auto: 0..65535.
  [[nodiscard]] sourced<std::int64_t> const& port() const noexcept { return port_; }
  /// file, unix: absolute, decoded. A scheme of the caller's: what follows the authority, decoded.
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// What stands between "//" and the path, as it was given.
  [[nodiscard]] std::string const& authority() const noexcept { return authority_; }
  /// All of them, decoded, in order.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> const& parameters() const noexcept { return parameters_; }
  [[nodiscard]] std::optional<std::string> parameter(std::string_view name) const;

  /// A value that is wrong is among problems() too, except use_libuv's: only the process that serves judges it.
  [[nodiscard]] sourced<std::int64_t> rank() const { return whole("rank", 0, detail::most_ranks - 1); }
  [[nodiscard]] sourced<std::int64_t> world_size() const { return whole("world_size", 1, detail::most_ranks); }
  [[nodiscard]] sourced<duration> timeout() const { return typed<duration>("timeout", detail::time_limit); }
  [[nodiscard]] sourced<bool> use_libuv() const {
    return typed<bool>("use_libuv",
                       [](std::string const& name, std::string_view text) { return detail::on_off(name, text, "= in the URL"); });
  }
  [[nodiscard]] sourced<std::string> bind() const { return typed<std::string>("bind", detail::bind_host); }
  [[nodiscard]] sourced<std::string> port_file() const { return typed<std::string>("port_file", detail::absolute_path); }
  [[nodiscard]] sourced<std::string> generation() const { return typed<std::string>("generation", detail::generation_name); }
  [[nodiscard]] sourced<std::string> run_id() const { return typed<std::string>("run_id", detail::run_name); }
  [[nodiscard]] sourced<std::string> from() const { return typed<std::string>("from", any_word); }

  /// The URL in its plainest spelling: brackets around IPv6, percent-escapes where they are needed. Only without problems().
  [[nodiscard]] std::string to_string() const;

 private:
  struct known_parameter {
    std::string_view name;
    std::string_view schemes;  // "" for all
  };
  static constexpr std::array<known_parameter, 9> known{{{"rank", ""},
                                                         {"world_size", ""},
                                                         {"timeout", ""},
                                                         {"generation", ""},
                                                         {"use_libuv", "tcp unix env auto"},
                                                         {"bind", "tcp env auto"},
                                                         {"port_file", "tcp env auto"},
                                                         {"run_id", ""},
                                                         {"from", "auto"}}};
  static bool belongs(known_parameter const& p, std::string_view scheme) {
    return p.schemes.empty() || p.schemes.find(scheme) != p.schemes.npos;
  }

  [[nodiscard]] bool is_network() const { return scheme_ == "tcp" || scheme_ == "env" || scheme_ == "auto"; }
  [[nodiscard]] bool is_path() const { return scheme_ == "file" || scheme_ == "unix"; }
  [[nodiscard]] bool is_ours() const { return is_network() || is_path(); }
  void wrong(std::string problem) { problems_.push_back(std::move(problem)); }
  std::string decoded(std::string_view text);
  bool read_scheme(std::string_view& rest, std::vector<std::string> const& further);
  void read_address(std::string_view authority);
  void read_brackets(std::string_view authority);
  void read_port(std::string_view text);
  void read_path(std::string_view authority, std::string_view path);
  void read_query(std::string_view query);
  void check_parameter(std::string const& name);
  void check_values();

  template <class T>
  sourced<T> typed(std::string_view name, std::type_identity_t<sourced<T> (*)(std::string const&, std::string_view)> rule) const {
    const std::optional<std::string> text = parameter(name);
    return text ? rule("?" + std::string(name), *text) : sourced<T>();
  }
  [[nodiscard]] sourced<std::int64_t> whole(std::string_view name, std::int64_t low, std::int64_t high) const {
    const std::optional<std::string> text = parameter(name);
    return text ? detail::number("?" + std::string(name), *text, low, high) : sourced<std::int64_t>();
  }
  static sourced<std::string> any_word(std::string const& name, std::string_view text) {
    if (text.empty()) return sourced<std::string>::wrong(name + " is empty");
    return {std::string(text), name};
  }

  std::string text_;
  std::string scheme_;
  std::string authority_;
  std::string path_;
  sourced<std::string> host_;
  sourced<std::int64_t> port_;
  std::vector<std::pair<std::string, std::string>> parameters_;
  std::vector<std::string> problems_;
};
static_assert(await_safe<rendezvous_url>);

}  // namespace v0
}  // namespace rollcall

#include "detail/url.ipp"
