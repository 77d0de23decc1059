#pragma once
#include "../core/intrusive.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// Told, in the process of a server, whenever requests were executed or a connection ended: what an owner that waits for a count of its
/// own server would otherwise have to poll for. Leaves by itself when destroyed.
class server_watch : public list_hook<> {
 public:
  /// Once for each batch of requests, after all of them. Must resume nobody and must not end the server.
  virtual void on_served() noexcept = 0;

 protected:
  ~server_watch() = default;
};

class watch_list {
 public:
  watch_list() noexcept = default;
  void add(server_watch& w) noexcept { watches_.push_back(w); }
  void tell() noexcept {
    for (server_watch* w = watches_.empty() ? nullptr : &watches_.front(); w;) {
      server_watch* const after = watches_.next(*w);  // a watch may leave when it is told; it must not take others off
      w->on_served();
      w = after;
    }
  }

 private:
  list<server_watch> watches_;
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
