#pragma once
#include <uv.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../core/intrusive.hpp"
#include "../../core/random.hpp"
#include "../../rt/detail/core.hpp"
#include "../../rt/detail/handle.hpp"
#include "../../rt/event.hpp"
#include "file_log.hpp"
#include "file_request.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What the copies of a handle and their operations share, on the loop's thread: requests that are due, those that wait, and one job at
/// a time in the thread pool, which carries out what is due. Lives until the last job has ended.
///
/// A request: made -> due -> job -> done; or job -> due again, where the lock could not be had; or job -> waiting -> (a job found what it
/// waits for) -> done. While anyone waits, jobs look at the file: at the kernel's notice, and now and then. A rank looks whether the others
/// are alive, too, also while nobody waits.
class file_state final : public std::enable_shared_from_this<file_state>, private timer_node {
 public:
  file_state(loop_core& core, std::string path, file_options const& o)
      : timer_node([](timer_node& t) noexcept { static_cast<file_state&>(t).fire(); }, false),
        core_(core),
        over_(&core),
        options_(o),
        path_(path),
        log_(std::move(path), o) {
    core_.keep();
    dice_.seed(static_cast<std::minstd_rand::result_type>(random_bits()));
  }
  file_state(file_state const&) = delete;
  file_state& operator=(file_state const&) = delete;
  ~file_state() {
    core_.remove_timer(*this);
    while (!due_.empty()) delete &due_.pop_front();
    while (!waiting_.empty()) delete &waiting_.pop_front();
    core_.release();
  }

  [[nodiscard]] loop_core& core() const noexcept { return core_; }
  [[nodiscard]] file_options const& options() const noexcept { return options_; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] bool ended() const noexcept { return leaving_ || lost_; }
  /// Why it ended, for operations that come later.
  [[nodiscard]] errc ended_by() const noexcept { return lost_ ? lost_by_ : errc::closed; }
  [[nodiscard]] std::string_view why_ended() const noexcept { return lost_ ? std::string_view(why_lost_) : "the store was closed"; }
  /// Set when it has ended.
  [[nodiscard]] event& over() noexcept { return over_; }
  /// What keeps the requests that are due from being carried out; empty where nothing does.
  [[nodiscard]] std::string const& trouble() const noexcept { return trouble_; }
  [[nodiscard]] errc trouble_code() const noexcept { return trouble_code_; }

  void submit(std::unique_ptr<file_request> r, file_op& owner) {
    r->owner = &owner;
    r->where = file_request::place::due;
    due_.push_back(*r.release());
    pump();
  }
  /// The operation gives its request up.
  void abandon(file_request& r) noexcept {
    if (r.where == file_request::place::job) {
      r.owner = nullptr;
    } else {
      delete take(r).release();
    }
  }
  /// An item that was taken for nobody goes back.
  void give_back(std::string_view key, std::string item) noexcept {
    try {
      if (said_good_bye_) throw std::runtime_error("the store is closed");
      taken_.emplace_back(std::string(key), std::move(item));
      if (!leaving_) pump();
    } catch (std::exception const& e) {
      core_.log(log_level::warning, std::string("an item of a queue in ") + path_ + " is lost: " + e.what());
    }
  }

  /// Ends all operations, and leaves.
  void close(errc code, std::string_view text) noexcept {
    if (job_)
      for (auto const& r : job_->requests)
        if (r->owner) std::exchange(r->owner, nullptr)->store_ends(code, text, r->give_up());
    for (auto* all : {&due_, &waiting_})
      while (!all->empty()) {
        const std::unique_ptr<file_request> r = take(all->front());
        r->owner->store_ends(code, text, effect::none);
      }
  }
  /// The store is in its user's hands: from now on it leaves as a member, and not as if it had never come.
  void opened() noexcept { opened_ = true; }
  /// Nobody needs it any more: says good-bye to the others, in the thread pool.
  /// why     this rank says that the run has failed; empty: it does not.
  void leave(std::string_view why) noexcept {
    if (std::exchange(leaving_, true)) return;
    try {
      failure_ = why;
    } catch (std::exception const&) {}  // then it is not told
    core_.remove_timer(*this);
    notice_.reset();
    over_.set();
    if (!job_) start(true);
  }

 private:
  class job {
   public:
    job(std::shared_ptr<file_state> s, bool leaves) noexcept : state(std::move(s)), leaving(leaves) { request.data = this; }
    uv_work_t request{};
    std::shared_ptr<file_state> state;
    file_log::batch requests;
    file_log::items taken;
    file_report report;
    bool leaving;
  };
  class reference {
   public:
    reference(file_request& r, std::size_t i) noexcept : request(&r), index(i) {}
    file_request* request;
    std::size_t index;
  };

  static constexpr std::chrono::milliseconds first_look{10}, looks_with_notice{250}, looks_without{50}, looks_on_network{100}, looks_for_members{250};

  void pump() noexcept {
    if (job_ || leaving_ || lost_ || paused_) return;
    if (!due_.empty() || look_ || !taken_.empty()) start(false);
  }
  void start(bool leaving) noexcept {
    try {
      auto j = std::make_unique<job>(shared_from_this(), leaving);
      std::size_t due = 0;
      if (!leaving && !due_.empty())
        for (file_request* r = &due_.front(); r; r = due_.next(*r)) ++due;
      j->requests.reserve(due);
      for (; due > 0; --due) {
        j->requests.push_back(take(due_.front()));
        j->requests.back()->where = file_request::place::job;
      }
      j->taken = std::exchange(taken_, {});
      look_ = false;
      said_good_bye_ = leaving;
      const int status = uv_queue_work(core_.native(), &j->request, &file_state::on_work, &file_state::on_done);
      ROLLCALL_ASSERT(status == 0 && "uv_queue_work fails only without a callback");
      static_cast<void>(status);
      job_ = j.release();
      core_.add_handle();
    } catch (std::exception const& e) {
      close(errc::io, e.what());
    }
  }
  static void on_work(uv_work_t* w) noexcept {
    job& j = *static_cast<job*>(w->data);
    file_log& log = j.state->log_;
    try {
      if (j.leaving) return log.leave(j.taken, j.state->failure_, j.state->opened_);
      j.report = log.run(j.requests, j.taken);
    } catch (std::exception const& e) {
      log.forget();
      j.report.how = file_report::status::failed;
      j.report.code = errc::io;
      try {
        j.report.text = e.what();
      } catch (std::exception const&) {}
    }
  }
  static void on_done(uv_work_t* w, int) noexcept {
    const std::unique_ptr<job> j(static_cast<job*>(w->data));
    file_state& self = *j->state;
    const loop_core::turn t(self.core_);
    self.core_.drop_handle();
    self.job_ = nullptr;
    if (j->leaving) return;
    try {
      self.finished(*j);
    } catch (std::exception const& e) {
      for (auto const& q : j->requests)
        if (q && q->owner) std::exchange(q->owner, nullptr)->store_ends(errc::io, e.what(), q->give_up());
      self.close(errc::io, e.what());
    }
    if (self.leaving_) {
      self.start(true);
    } else {
      self.pump();
    }
  }

  void finished(job& j) {
    using enum file_report::status;
    file_report& r = j.report;
    path_ = log_.path();
    for (auto& item : j.taken) taken_.push_back(std::move(item));
    const bool refused = r.how == failed || r.how == damaged || r.how == replaced;
    trouble_ = r.how == not_yet ? r.text : std::string();
    trouble_code_ = r.how == not_yet ? r.code : errc::timed_out;
    std::vector<std::unique_ptr<file_request>> again;
    again.reserve(j.requests.size());
    for (std::unique_ptr<file_request>& q : j.requests) {
      if (refused) q->fail(r.code, r.text, q->changes() ? r.what_happened : effect::none);
      q->where = file_request::place::none;
      if (!q->owner) {
        left(std::move(q));
      } else if (q->done) {
        answer(std::move(q));
      } else if (r.how == not_yet) {
        again.push_back(std::move(q));
      } else {
        wait(std::move(q));
      }
    }
    for (; !again.empty(); again.pop_back()) {
      again.back()->renew();
      again.back()->where = file_request::place::due;
      due_.push_front(*again.back().release());
    }
    if (r.how == damaged || r.how == replaced) return lose(r.code, r.text);
    if (!r.died.empty()) return lose(errc::disconnected, r.died);
    if (!r.notice.empty()) core_.log(log_level::warning, r.notice);
    asks_ = log_.asks_for_members();
    if (log_.joined() && log_.local() && !watched_) watch();
    for (std::string const& key : r.touched) appeared(key);
    rest(r);
  }
  /// A request whose operation has gone. Changes that were not made are not made any more.
  void left(std::unique_ptr<file_request> q) {
    if (q->pops() && q->done && !q->failed && q->number != 0) taken_.emplace_back(std::move(q->keys[0]), std::move(q->bytes));
  }
  static void answer(std::unique_ptr<file_request> q) noexcept {
    file_op& owner = *q->owner;
    owner.answered(std::move(q));
  }
  void wait(std::unique_ptr<file_request> q) {
    q->renew();
    q->where = file_request::place::waiting;
    file_request& r = *q.release();
    waiting_.push_back(r);
    try {
      for (std::size_t i = 0; i < r.keys.size(); ++i) awaited_.emplace(r.keys[i], reference(r, i));
    } catch (std::exception const& e) {
      r.fail(errc::io, e.what());
      answer(take(r));
    }
  }
  /// Takes a request out of its list.
  std::unique_ptr<file_request> take(file_request& r) noexcept {
    r.unlink();
    if (std::exchange(r.where, file_request::place::none) == file_request::place::waiting) {
      for (std::string const& key : r.keys) {
        const auto [from, to] = awaited_.equal_range(key);
        for (auto at = from; at != to; ++at)
          if (at->second.request == &r) {
            awaited_.erase(at);
            break;
          }
      }
    }
    return std::unique_ptr<file_request>(&r);
  }
  void appeared(std::string const& key) {
    std::vector<reference> concerned;
    const auto [from, to] = awaited_.equal_range(key);
    for (auto at = from; at != to; ++at) concerned.push_back(at->second);
    std::size_t items = log_.map().queued(key);
    for (reference const& c : concerned) {
      file_request& q = *c.request;
      if (q.where != file_request::place::waiting) continue;
      if (q.pops()) {
        if (items == 0) continue;
        --items;
        std::unique_ptr<file_request> tries = take(q);
        tries->where = file_request::place::due;
        due_.push_back(*tries.release());
        continue;
      }
      if (q.kind == op_kind::wait) {
        file_step::saw(q, c.index);
      } else {
        file_step::look(log_.map(), q);
      }
      if (q.done) answer(take(q));
    }
  }

  void watch() {
    watched_ = true;
    const auto init = [](uv_loop_t* l, uv_fs_event_t* h) { return uv_fs_event_init(l, h); };
    if (notice_.open(core_, this, init) != 0) return;
    uv_unref(reinterpret_cast<uv_handle_t*>(notice_.get()));
    if (const int status = uv_fs_event_start(notice_.get(), &file_state::on_notice, path_.c_str(), 0); status != 0) {
      core_.log(log_level::debug, path_ + ": no change notice, looking now and then: " + uv_strerror(status));
      notice_.reset();
    }
  }
  static void on_notice(uv_fs_event_t* h, char const*, int, int) noexcept {
    const loop_core::turn t(handle<uv_fs_event_t, file_state>::core_of(h));
    file_state* self = handle<uv_fs_event_t, file_state>::owner_of(h);
    if (!self) return;
    self->noticed_ = true;
    if (self->waiting_.empty() && self->due_.empty()) return;
    self->look_ = true;
    if (!self->locked_out_) self->paused_ = false;
    self->pump();
  }
  /// When to look again by itself.
  void rest(file_report const& r) noexcept {
    core_.remove_timer(*this);
    if (r.changed) pause_ = first_look;
    const bool put_off = r.how == file_report::status::not_yet || (r.how == file_report::status::failed && !taken_.empty());
    paused_ = put_off;
    locked_out_ = r.locked_out;
    if (leaving_ || (!put_off && waiting_.empty() && !asks_)) return;
    duration in = pause_;
    if (!put_off && waiting_.empty()) {
      in = looks_for_members;
    } else if (r.locked_out) {
      in = std::chrono::microseconds(2000 + dice_() % 8000);
    } else {
      const auto most = !log_.local() ? looks_on_network : noticed_ ? looks_with_notice : looks_without;
      pause_ = std::min<duration>(pause_ * 2, most);
    }
    core_.add_timer(*this, core_.now() + in);
  }
  void fire() noexcept {
    paused_ = false;
    look_ = look_ || !waiting_.empty() || asks_;
    pump();
  }
  /// The file is gone, or makes no sense, or a rank is dead: nothing that is asked later is answered.
  void lose(errc code, std::string const& why) {
    why_lost_ = why;
    lost_by_ = code;
    lost_ = true;
    core_.remove_timer(*this);
    notice_.reset();
    over_.set();
    close(code, why_lost_);
  }

  loop_core& core_;
  event over_;
  file_options options_;
  std::string path_;
  file_log log_;  // a job's while there is one
  job* job_ = nullptr;
  list<file_request> due_, waiting_;
  std::unordered_multimap<std::string_view, reference> awaited_;  // by keys of those that wait
  file_log::items taken_;
  handle<uv_fs_event_t, file_state> notice_;
  std::minstd_rand dice_;
  duration pause_ = first_look;
  std::string trouble_, why_lost_, failure_;
  errc trouble_code_ = errc::timed_out, lost_by_ = errc::closed;
  bool look_ = false;    // there may be something new
  bool paused_ = false;  // until the timer fires
  bool locked_out_ = false;
  bool watched_ = false;
  bool noticed_ = false;
  bool opened_ = false;
  bool leaving_ = false;
  bool said_good_bye_ = false;
  bool lost_ = false;
  bool asks_ = false;  // for members that are dead
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
