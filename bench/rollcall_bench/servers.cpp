#include "servers.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include <cstdlib>
#include <rollcall/legacy.hpp>
#include <rollcall/server.hpp>
#include <stdexcept>

namespace rc = rollcall;

namespace bench {

namespace {

/// Answers what the parent asks, on the loop of the server; ends the process with the socket.
class reporter {
 public:
  reporter(uv_loop_t* loop, int socket, rc::detail::server_core const& core, rc::server_stats const& stats)
      : socket_(socket), core_(core), stats_(stats) {
    uv_poll_init(loop, &poll_, socket);
    poll_.data = this;
    uv_poll_start(&poll_, UV_READABLE, [](uv_poll_t* h, int, int) { static_cast<reporter*>(h->data)->answer(); });
  }

 private:
  void answer() noexcept {
    char asked = 0;
    if (!read_all(socket_, &asked, 1)) ::_exit(0);
    const rc::engine::store_stats s = core_.store().stats();
    server_report r;
    r.memory = allocations();
    r.connections = stats_.connections;
    r.accepted = stats_.accepted;
    r.requests = stats_.requests;
    r.reads = stats_.reads;
    r.writes = stats_.writes;
    r.waits = s.waits;
    r.keys = s.keys;
    r.entries = core_.store().entries();
    if (!write_all(socket_, &r, sizeof r)) ::_exit(0);
  }
  int socket_;
  rc::detail::server_core const& core_;
  rc::server_stats const& stats_;
  uv_poll_t poll_;
};

int serve_rollcall(int socket) {
  rc::listener at = rc::listen(rc::listen_options{}.host("0.0.0.0"));
  const int port = at.port();
  rc::loop loop;
  rc::server_stats stats;
  rc::detail::server_core core(loop.core(), std::move(at), rc::serve_options{}.stats(&stats));
  const reporter tells(loop.native(), socket, core, stats);
  if (!write_all(socket, &port, sizeof port)) return 1;
  uv_run(loop.native(), UV_RUN_DEFAULT);
  return 0;
}

/// Our blocking back end, which has a thread of its own; this one waits for the parent's end. Asks nothing of it: its counts are the
/// thread's.
int serve_legacy(int socket) {
  rc::legacy_server server(rc::listen_options{}.host("0.0.0.0"));
  server.start();
  const int port = server.port();
  if (!write_all(socket, &port, sizeof port)) return 1;
  char end = 0;
  static_cast<void>(read_all(socket, &end, 1));
  return 0;
}

char const* python() {
  char const* const named = std::getenv("ROLLCALL_TORCH_PYTHON");
  return named && *named ? named : "python3";
}

/// PyTorch's servers ask DNS for the name of every peer, and serve nobody while they wait: where a name server is slow, that is all one
/// would measure. This process gets the names in /etc/hosts only, as far as it may.
void ask_no_name_server() noexcept {
  constexpr std::string_view files_only = "hosts: files\n";
  char path[] = "/tmp/rollcall-bench-XXXXXX";
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
  const int fd = ::mkstemp(path);
  if (fd < 0) return;
  if (::write(fd, files_only.data(), files_only.size()) > 0) {
    ::fchmod(fd, 0644);
    ::mount(path, "/etc/nsswitch.conf", nullptr, MS_BIND, nullptr);
  }
  ::close(fd);
  ::unlink(path);
}

/// PyTorch's own server in an interpreter.
int serve_torch(int socket, bool libuv) {
  const std::string program =
      "import os, struct, sys, torch.distributed as d\n"
      "s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv=" +
      std::string(libuv ? "True" : "False") +
      ")\n"
      "os.write(3, struct.pack('i', s.port))\n"
      "os.read(3, 1)\n"
      "os._exit(0)\n";
  if (::dup2(socket, 3) < 0) return 1;
  fcntl(3, F_SETFD, 0);
  const int null = ::open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) ::dup2(null, fd);
  ask_no_name_server();
  ::execlp(python(), python(), "-c", program.c_str(), nullptr);
  return 127;
}
int serve_torch_libuv(int socket) { return serve_torch(socket, true); }
int serve_torch_legacy(int socket) { return serve_torch(socket, false); }

std::string nothing_missing() { return {}; }
std::string torch_missing() {
  static const int status = std::system((std::string(python()) + " -c 'import torch.distributed' >/dev/null 2>&1").c_str());
  return status == 0 ? "" : std::string(python()) + " cannot import torch (ROLLCALL_TORCH_PYTHON names another)";
}

}  // namespace

std::vector<server_kind> const& servers() {
  static const std::vector<server_kind> all{
      {"rollcall", "our server on libuv", true, true, serve_rollcall, nothing_missing},
      {"legacy", "our blocking server", false, true, serve_legacy, nothing_missing},
      {"floor", "bare epoll, what the kernel costs", true, false, serve_floor, nothing_missing},
      {"torch", "PyTorch's server on libuv", false, true, serve_torch_libuv, torch_missing},
      {"torch-legacy", "PyTorch's blocking server", false, true, serve_torch_legacy, torch_missing},
  };
  return all;
}

std::vector<server_kind> servers_named(std::string const& list) {
  std::vector<server_kind> named;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t to = std::min(list.find(',', from), list.size());
    const std::string name = list.substr(from, to - from);
    from = to + 1;
    bool found = false;
    for (server_kind const& k : servers()) {
      if (name != "all" && name != k.name) continue;
      found = true;
      const std::string missing = k.missing();
      if (missing.empty()) {
        named.push_back(k);
      } else if (name != "all") {
        throw std::runtime_error(name + ": " + missing);
      }
    }
    if (!found) {
      std::string known;
      for (server_kind const& k : servers()) known.append(" ").append(k.name);
      throw std::runtime_error("no server is called '" + name + "'; there are:" + known + " all");
    }
  }
  return named;
}

server_process::server_process(server_kind const& kind, int cpu) : kind_(kind), process_(std::make_unique<child>(kind.serve, cpu)) {
  if (!read_all(process_->socket(), &port_, sizeof port_)) throw std::runtime_error("the server '" + std::string(kind.name) + "' does not start");
}

server_report server_process::ask() const {
  server_report r;
  if (!kind_.reports) return r;
  const char ask = '?';
  if (!write_all(process_->socket(), &ask, 1) || !read_all(process_->socket(), &r, sizeof r))
    throw std::runtime_error("the server '" + std::string(kind_.name) + "' is gone");
  return r;
}

void server_process::pause() noexcept { ::usleep(2000); }

}  // namespace bench
