// The how-tos of docs/ against the code that they are about: each pod and each task gets the variables that its manifest says.
#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <rollcall/rendezvous/plan.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {
namespace rc = rollcall;

std::string text_of(char const* name) {
  std::ifstream file(std::string(ROLLCALL_TEST_VECTORS) + "/../../docs/" + name);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

struct block {
  std::string mark, text;
};
/// What stands between ``` and ``` behind each `<!-- WHAT: mark -->`.
std::vector<block> blocks(std::string const& text, std::string const& what) {
  std::vector<block> all;
  const std::string begin = "<!-- " + what + ": ";
  for (std::size_t at = text.find(begin); at != text.npos; at = text.find(begin, at + 1)) {
    const std::size_t end = text.find(" -->\n```", at);
    REQUIRE(end != text.npos);
    const std::size_t first = text.find('\n', end + 5) + 1;
    all.push_back({text.substr(at + begin.size(), end - at - begin.size()), text.substr(first, text.find("\n```", first) + 1 - first)});
  }
  REQUIRE_FALSE(all.empty());
  return all;
}

std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

std::string trimmed(std::string_view s, std::string_view away = " \"'") {
  const std::size_t first = s.find_first_not_of(away);
  return first == s.npos ? std::string() : std::string(s.substr(first, s.find_last_not_of(away) + 1 - first));
}

/// The parts of a manifest that count here; as much of YAML as the how-to uses.
class manifest {
 public:
  explicit manifest(std::string const& text) : lines_(lines_of(text)) {}

  /// The values of `key:`, in order.
  [[nodiscard]] std::vector<std::string> values(std::string const& key) const {
    std::vector<std::string> all;
    for (std::string const& l : lines_)
      if (const std::string t = trimmed(l, " -"); t.starts_with(key + ": "))
        all.push_back(trimmed(std::string_view(t).substr(key.size() + 2)));
    return all;
  }
  [[nodiscard]] std::string value(std::string const& key) const {
    const std::vector<std::string> all = values(key);
    REQUIRE_FALSE(all.empty());
    for (std::string const& other : all) CHECK(other == all.front());
    return all.front();
  }
  [[nodiscard]] std::int64_t number(std::string const& key) const { return std::stoll(value(key)); }
  /// The object's name: that of the last document.
  [[nodiscard]] std::string name() const {
    std::string found;
    for (std::size_t i = 0; i + 1 < lines_.size(); ++i)
      if (lines_[i] == "metadata:") found = trimmed(std::string_view(lines_[i + 1]).substr(lines_[i + 1].find(':') + 1));
    return found;
  }
  [[nodiscard]] std::string url() const {
    const std::string command = value("command");
    const std::string before = "\"--init-method\", \"";
    const std::size_t at = command.find(before);
    REQUIRE(at != command.npos);
    return command.substr(at + before.size(), command.find('"', at + before.size()) - at - before.size());
  }
  /// What a container finds, where `fields` are what the downward API knows.
  [[nodiscard]] rc::variables variables(std::map<std::string, std::string> const& fields) const {
    rc::variables v;
    for (std::size_t i = 0; i + 1 < lines_.size(); ++i) {
      const std::string t = trimmed(lines_[i], " ");
      if (!t.starts_with("- name: ")) continue;
      const std::string name = t.substr(8);
      const std::string next = trimmed(lines_[i + 1], " ");
      if (next.starts_with("value: ")) {
        v.set(name, trimmed(std::string_view(next).substr(7)));
      } else if (next == "valueFrom:") {
        const std::string field = trimmed(lines_.at(i + 3), " ");
        REQUIRE(field.starts_with("fieldPath: "));
        const auto known = fields.find(field.substr(11));
        REQUIRE_MESSAGE(known != fields.end(), field);
        v.set(name, known->second);
      }
    }
    return v;
  }

 private:
  std::vector<std::string> lines_;
};

/// Rank `rank` of `world` at `host` and `port`; only rank 0 serves.
void check_plan(manifest const& m, rc::variables const& v, std::int64_t rank, std::int64_t world, std::string const& host,
                std::int64_t port) {
  const auto plan = rc::try_plan_rendezvous(m.url(), {}, v);
  INFO((plan ? std::string() : plan.error().message()));
  REQUIRE(plan.has_value());
  CHECK(*plan->rank == rank);
  CHECK(*plan->world_size == world);
  CHECK(*plan->host == host);
  CHECK(*plan->port == port);
  CHECK(plan->serves == (rank == 0));
  CHECK(plan->warnings.empty());
}

manifest manifest_of(char const* name) {
  for (block const& b : blocks(text_of("kubernetes.md"), "manifest"))
    if (b.mark == name) return manifest(b.text);
  FAIL(name << " is not in docs/kubernetes.md");
  return manifest("");
}

std::string text(std::int64_t n) { return std::to_string(n); }

TEST_CASE("docs/kubernetes.md: the pods of an Indexed Job find their places") {
  const manifest m = manifest_of("indexed-job");
  const std::int64_t pods = m.number("completions");
  CHECK(m.number("parallelism") == pods);
  for (std::int64_t i = 0; i < pods; ++i) {
    rc::variables v = m.variables({});
    v.set("JOB_COMPLETION_INDEX", text(i)).set("KUBERNETES_SERVICE_HOST", "10.3.0.1").set("HOSTNAME", m.name() + "-" + text(i));
    check_plan(m, v, i, pods, m.name() + "-0." + m.value("subdomain"), 29500);
  }
  CHECK(m.values("name").front() == m.value("subdomain"));  // the headless Service
}

TEST_CASE("docs/kubernetes.md: the pods of a JobSet find their places") {
  const manifest m = manifest_of("jobset");
  const std::int64_t jobs = m.number("replicas"), pods = m.number("completions");
  for (std::int64_t job = 0; job < jobs; ++job)
    for (std::int64_t i = 0; i < pods; ++i) {
      rc::variables v = m.variables({{"metadata.labels['jobset.sigs.k8s.io/job-global-index']", text(job)},
                                     {"metadata.labels['jobset.sigs.k8s.io/restart-attempt']", "2"}});
      v.set("JOB_COMPLETION_INDEX", text(i)).set("KUBERNETES_SERVICE_HOST", "10.3.0.1");
      check_plan(m, v, job * pods + i, jobs * pods, m.name() + "-workers-0-0." + m.name(), 29500);
      CHECK(*rc::plan_rendezvous(m.url(), {}, v).attempt == 2);
    }
}

TEST_CASE("docs/kubernetes.md: the pods of a PyTorchJob find their places") {
  const manifest m = manifest_of("pytorchjob");
  std::int64_t pods = 0;
  for (std::string const& n : m.values("replicas")) pods += std::stoll(n);
  CHECK(pods == 4);
  for (std::int64_t i = 0; i < pods; ++i) {
    // What the operator sets (rendezvous.md 8.3), of the newer kind.
    rc::variables v = m.variables({});
    v.set("RANK", text(i))
        .set("WORLD_SIZE", text(pods))
        .set("MASTER_ADDR", m.name() + "-master-0")
        .set("MASTER_PORT", m.value("containerPort"));
    v.set("PET_NNODES", text(pods)).set("PET_NPROC_PER_NODE", "1").set("PET_NODE_RANK", text(i)).set("KUBERNETES_SERVICE_HOST", "10.3.0.1");
    check_plan(m, v, i, pods, "meet-master-0", 23456);
    v.set("MASTER_ADDR", "localhost");  // an older one, to the master
    CHECK(rc::plan_rendezvous(m.url(), {}, v).warnings.size() == 1);
  }
}

TEST_CASE("docs/kubernetes.md: the pods of a StatefulSet find their places") {
  const manifest m = manifest_of("statefulset");
  const std::int64_t pods = m.number("replicas");
  for (std::int64_t i = 0; i < pods; ++i)
    check_plan(m, m.variables({{"metadata.labels['apps.kubernetes.io/pod-index']", text(i)}}), i, pods,
               m.name() + "-0." + m.value("serviceName"), 29500);
}

TEST_CASE("docs/slurm.md: the tasks find their places") {
  const std::string how_to = text_of("slurm.md");
  const std::vector<block> all = blocks(how_to, "detects");
  CHECK(all.size() >= 4);
  for (block const& b : all) {
    CAPTURE(b.mark);
    rc::variables v;
    for (std::string const& l : lines_of(b.text))
      v.set(l.substr(0, l.find('=')), trimmed(std::string_view(l).substr(l.find('=') + 1), "'"));
    const auto plan = rc::try_plan_rendezvous("auto://", {}, v);
    std::string is = plan ? std::string(to_string(plan->source)) + " " + text(*plan->rank) + "/" + text(*plan->world_size) + " " +
                                rc::host_port(*plan->host, *plan->port)
                          : plan.error().detail();
    if (!plan && is.find(b.mark) != is.npos) is = b.mark;
    CHECK(is == b.mark);
  }
  // The description that is shown is the one of the first.
  rc::variables v;
  for (std::string const& l : lines_of(all.front().text))
    v.set(l.substr(0, l.find('=')), trimmed(std::string_view(l).substr(l.find('=') + 1), "'"));
  const std::string described = rc::launch_environment::detect(v).describe();
  for (char const* line : {"launcher ", "rank ", "world_size ", "host ", "port "}) {
    const std::size_t at = described.find(line);
    REQUIRE(at != described.npos);
    const std::string whole = described.substr(at, described.find('\n', at) + 1 - at);
    CAPTURE(whole);
    CHECK(how_to.find("\n" + whole) != how_to.npos);
  }
  for (block const& b : blocks(how_to, "script")) CHECK(b.text.find("--init-method auto://") != b.text.npos);
}

}  // namespace
