#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../file_options.hpp"
#include "file_locks.hpp"
#include "file_map.hpp"
#include "file_members.hpp"
#include "file_request.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What came of one look at the file.
class file_report {
 public:
  enum class status : unsigned char {
    done,      // what could be done is
    not_yet,   // nothing, or not the changes: the lock, the file or the end of a record is not there; `text` says which
    failed,    // nothing, and asking again may help: `code`, `text`, `what_happened`
    damaged,   // what is read makes no sense
    replaced,  // it is no longer the file that it was
  };
  void set(status h, errc c, std::string t, effect e = effect::none) {
    how = h;
    code = c;
    text = std::move(t);
    what_happened = e;
  }
  status how = status::done;
  errc code = errc::timed_out;
  effect what_happened = effect::none;
  std::string text;
  bool changed = false;     // there was something new
  bool locked_out = false;  // somebody has the lock
  std::string died;         // a member of this run, and that it is dead
  std::string notice;       // for the log
  std::vector<std::string> touched;
};

/// The file as one client sees it: all that needs system calls. Used by the client's one job in the thread pool, or by nobody.
/// Nothing in here waits for more than 10 ms, but for the end.
class file_log {
 public:
  using batch = std::vector<std::unique_ptr<file_request>>;
  using items = std::vector<std::pair<std::string, std::string>>;  // of queues: key and item

  file_log(std::string path, file_options const& o) : path_(std::move(path)), options_(o), pid_(::getpid()) {}

  /// One open, one lock, one read; then the requests in order; one write. The first one joins.
  /// taken     items that go back to the heads of their queues; none are left where that was done.
  [[nodiscard]] file_report run(batch& requests, items& taken) {
    file_report r;
    if (::getpid() != pid_) return r.set(file_report::status::failed, errc::closed, "this process was forked; its parent is the member"), r;
    bool changes = (!joined_ && options_.member()) || !taken.empty();
    for (auto const& q : requests) changes = changes || q->changes();
    const bool suspects = misses_somebody();
    // Elsewhere only open() asks the server what is new.
    if (on_local_ && requests.empty() && !changes && !suspects && unchanged()) return r;
    if (!joined_) forget();  // others may have begun it anew since the last try
    unique_fd fd;
    struct stat now{};
    if (!enter(fd, now, changes, patience, r)) return r;
    map_.note_touched(joined_);
    if (!refresh(fd.get(), now, r)) return r;
    if (suspects)  // with the lock: whoever was saying good-bye has said it
      if (const std::optional<file_member> m = lost_member()) r.died = m->name() + " is dead: it ended without leaving the run";
    std::string out;
    file_step step(map_, out);
    if (!joined_ && !join(fd.get(), step, r)) return r;
    const bool torn = r.how == file_report::status::not_yet;
    if (!torn)
      for (auto const& [key, item] : taken) step.put(file_format::back, key, item);
    for (auto const& q : requests)
      if ((!torn || !q->changes()) && q->begin()) step.run(*q);
    if (!out.empty() && !append(fd.get(), out, r)) return r;
    if (!std::exchange(joined_, true)) {
      inode_ = now.st_ino;
      device_ = now.st_dev;
    }
    if (!torn) taken.clear();
    if (!out.empty()) compact(fd.get(), r);
    r.touched = map_.take_touched();
    return r;
  }

  /// Says good-bye, and removes the file where that was the last member; what fails is left as it is. Waits for the lock for 1 s at most,
  /// a rank for 5 s: without its good-bye it is dead for the others.
  /// why     the run has failed, where it has; not empty then. For the next who come, if this has a rank.
  /// opened  else its open() was given up: it leaves as if it had never come.
  void leave(items const& taken, std::string_view why, bool opened) {
    using namespace file_format;
    if (!joined_ || ::getpid() != pid_) return;  // after a fork the parent is the member
    if (!options_.member() && taken.empty()) return mark_.leave();
    file_report r;
    unique_fd fd;
    struct stat now{};
    if (!enter(fd, now, true, std::chrono::seconds(options_.rank() >= 0 ? 5 : 1), r) || !refresh(fd.get(), now, r) || r.how != file_report::status::done) return;
    std::string out;
    file_step step(map_, out);
    for (auto const& [key, item] : taken) step.put(back, key, item);
    const bool was_marked = mark_.entered();
    if (options_.member()) {
      std::string attempt = std::to_string(options_.attempt());
      if (opened) count(step, cleanup, 1);
      count(step, refcount, -1);
      if (was_marked) step.put("-", member_key(), {});
      if (opened && options_.rank() >= 0) step.put(file_format::left, std::to_string(options_.rank()), attempt);
      if (opened && options_.rank() >= 0 && !why.empty()) step.put({}, failed, attempt.append(" ").append(why.substr(0, 1024)));
    }
    mark_.leave();
    if (!append(fd.get(), out, r) || !opened || !options_.member() || options_.world_size() < 0) return;
    // Those that never said good-bye are dead, if all of them are ours and have no mark.
    const file_roll roll = look_around(fd.get(), was_marked);
    const auto gone = map_.count(cleanup) + static_cast<std::int64_t>(roll.dead.size());
    if (roll.is_deserted() && (gone >= options_.world_size() || roll.failed_attempt >= options_.attempt())) ::unlink(path_.c_str());
  }

  /// The map is ahead of the file: it is read anew, next time.
  void forget() noexcept {
    map_.clear();
    position_ = 0;
    if (!joined_) mark_.leave();
  }

  [[nodiscard]] bool joined() const noexcept { return joined_; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// Whether it looks now and then for members that are dead, also while nobody waits; known once joined.
  [[nodiscard]] bool asks_for_members() const noexcept {
    return joined_ && mark_.entered() && options_.member() && options_.rank() >= 0 && options_.ends_with_members();
  }
  /// Where changes come with a notice; known once joined.
  [[nodiscard]] bool local() const noexcept { return local_; }
  [[nodiscard]] file_map const& map() const noexcept { return map_; }

 private:
  static constexpr std::chrono::milliseconds patience{10};
  static constexpr std::size_t piece = std::size_t{256} << 10;
  static constexpr int reopenings = 8;
  static constexpr std::chrono::milliseconds between_questions{200};
  static constexpr std::chrono::seconds patience_with_the_busy{1};

  /// Neither longer nor another one than it was read; without a lock, for those that only look.
  [[nodiscard]] bool unchanged() const noexcept {
    struct stat s{};
    return ::stat(path_.c_str(), &s) == 0 && s.st_ino == inode_ && s.st_dev == device_ && s.st_size == position_;
  }

  /// Opens and locks the file that is at the path.
  bool enter(unique_fd& fd, struct stat& now, bool exclusive, std::chrono::microseconds wait, file_report& r) {
    using enum file_report::status;
    for (int opened = 0;; ++opened) {
      const bool creates = !joined_ && options_.create();
      fd.reset(::open(path_.c_str(), (exclusive ? O_RDWR : O_RDONLY) | (creates ? O_CREAT : 0) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644));
      if (!fd && errno == ESTALE && opened < reopenings) continue;
      if (!fd) return opening_failed(r), false;
      const int refused = lock_file(fd.get(), exclusive, wait, wait > patience);
      if (refused == ESTALE && opened < reopenings) continue;
      if (::fstat(fd.get(), &now) != 0) return r.set(failed, errc::io, system_text("cannot look at " + path_, errno)), false;
      if (!joined_ && S_ISDIR(now.st_mode)) return errno = EISDIR, opening_failed(r), false;  // opened to look only
      r.locked_out = refused == EWOULDBLOCK;
      if (refused == EWOULDBLOCK) return r.set(not_yet, errc::timed_out, "the lock on " + path_ + " is held by " + lock_holder(now)), false;
      if (refused != 0) return r.set(failed, errc::io, system_text("cannot lock " + path_, refused) + lock_hint(refused)), false;
      if (!S_ISREG(now.st_mode)) return r.set(failed, errc::invalid, path_ + " is no regular file"), false;
      if (now.st_nlink == 0 && opened < reopenings) continue;  // removed while the lock was waited for
      if (joined_ && (now.st_ino != inode_ || now.st_dev != device_))
        return r.set(replaced, errc::disconnected, path_ + " was replaced"), false;
      return true;
    }
  }
  [[nodiscard]] static char const* lock_hint(int number) noexcept {
    return number == ENOLCK || number == EOPNOTSUPP || number == ENOSYS
               ? "; locking does not work on this file system (is its lock daemon there?)"
               : "";
  }
  void opening_failed(file_report& r) {
    using enum file_report::status;
    const int why = errno;
    if (joined_) {
      if (why == ENOENT || why == ENOTDIR) return r.set(replaced, errc::disconnected, path_ + " was removed");
      return r.set(failed, errc::io, system_text("cannot open " + path_, why));
    }
    if (why == EISDIR) {
      if (options_.run_id().empty())
        return r.set(failed, errc::invalid,
                     path_ + " is a directory; name a file in it, for example " + path_ + "/rollcall, or give a run id, which names one");
      path_ += "/" + run_file_name(options_.run_id());
      return r.set(not_yet, errc::timed_out, path_ + " is not there yet");
    }
    if (why == ENOENT) {
      const std::size_t slash = path_.rfind('/');
      const std::string folder = slash == path_.npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
      struct stat s{};
      if (::stat(folder.c_str(), &s) != 0 && errno == ENOENT)
        return r.set(failed, errc::io, "cannot open " + path_ + ": the directory " + folder + " does not exist (ENOENT)");
      if (!options_.create()) return r.set(not_yet, errc::timed_out, path_ + " is not there yet");
    }
    r.set(failed, errc::io, system_text("cannot open " + path_, why));
  }
  /// Reads what is new. What a record announces is believed only as far as it is there.
  bool refresh(int fd, struct stat const& now, file_report& r) {
    using enum file_report::status;
    if (now.st_size < position_) return r.set(replaced, errc::disconnected, path_ + " is shorter than it was: it was replaced"), false;
    std::string bytes;
    off_t read_to = position_;
    std::size_t wanted = 0;
    while (read_to < now.st_size) {
      const std::size_t had = bytes.size();
      bytes.resize(had + std::min<std::size_t>(std::max(piece, had), static_cast<std::size_t>(now.st_size - read_to)));
      const ssize_t n = ::pread(fd, bytes.data() + had, bytes.size() - had, read_to);
      if (n < 0 && errno != EINTR) return r.set(failed, errc::io, system_text("cannot read " + path_, errno)), false;
      bytes.resize(had + static_cast<std::size_t>(n > 0 ? n : 0));
      if (n == 0) break;
      if (n < 0) continue;
      read_to += n;
      record_reader records(bytes);
      auto s = records.next();
      for (; s == record_reader::status::record; s = records.next()) map_.apply(records.key(), records.value());
      r.changed = r.changed || records.rest().size() < bytes.size();
      position_ += static_cast<off_t>(bytes.size() - records.rest().size());
      if (s == record_reader::status::damaged) {
        r.set(damaged, errc::protocol,
              path_ + " is damaged: at byte " + std::to_string(position_) + " " + records.damage() + "; " +
                  (::access(copy_path().c_str(), F_OK) == 0 ? copy_path() + " may be what it held" : std::string("remove the file")));
        return false;
      }
      wanted = records.wanted();
      bytes.erase(0, bytes.size() - records.rest().size());
    }
    if (!bytes.empty())
      r.set(not_yet, errc::protocol,
            "the last record of " + path_ + ", at byte " + std::to_string(position_) + ", is incomplete: " + std::to_string(bytes.size()) +
                " of " + std::to_string(wanted) + " bytes are there; if its writer is dead, remove the file");
    return true;
  }

  /// Finds out whose file it is, and counts this member in.
  bool join(int fd, file_step& step, file_report& r) {
    using namespace file_format;
    using enum file_report::status;
    if (!locks_exclude())
      return r.set(failed, errc::io, "a lock on " + path_ + " keeps nobody out: locking does not work on this file system"), false;
    const bool local = !on_network(fd), torn = r.how == not_yet;
    const file_roll roll = look_around(fd, local);
    const file_judgement j = judge_file(map_, position_ == 0 && !torn, roll, options_);
    if (j.decision == file_judgement::what::refuse) return r.set(failed, errc::failed, path_ + j.why), false;
    if (j.decision == file_judgement::what::busy) {
      const auto now = std::chrono::steady_clock::now();
      if (busy_until_ == std::chrono::steady_clock::time_point()) busy_until_ = now + patience_with_the_busy;
      return r.set(now < busy_until_ ? not_yet : failed, errc::failed, path_ + j.why), false;
    }
    if (j.decision == file_judgement::what::begin_anew) {
      if (!begin_anew(fd, local && roll.alive.empty(), r)) return false;
      r.notice = path_ + j.why;
    } else if (torn) {
      return false;
    }
    on_local_ = local;
    local_ = local && options_.watch();
    if (!options_.member()) {
      if (local) mark_.enter_to_look(open_for_mark());
      return true;
    }
    // As many as have ever joined: nobody else's.
    number_ = std::clamp<std::int64_t>(map_.count(refcount) + map_.count(cleanup), 0, file_member::most - 1);
    while (map_.other(member_key())) ++number_;
    if (local) mark_.enter(open_for_mark(), number_);
    if (!options_.run_id().empty() && !map_.other(file_format::run)) step.put({}, file_format::run, options_.run_id());
    count(step, refcount, 1);
    if (!mark_.entered()) return true;
    file_member self;
    self.rank = std::max(options_.rank(), -1);
    self.attempt = options_.attempt();
    self.process = pid_;
    step.put({}, member_key(), self.text());
    return true;
  }
  [[nodiscard]] std::string member_key() const { return std::string(file_format::member).append(std::to_string(number_)); }
  [[nodiscard]] unique_fd open_for_mark() const { return unique_fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)); }
  /// marks     there are some, so that who has none is dead.
  [[nodiscard]] file_roll look_around(int fd, bool marks) const {
    return file_roll(map_, [=](std::int64_t number) { return !marks || presence::of_member(fd, number); });
  }
  /// The lowest rank that has no mark although it is said to be there; the run's, or a later attempt's.
  [[nodiscard]] std::optional<file_member> lost_member() const {
    std::optional<file_member> lost;
    map_.for_each_other(file_format::member, [&](std::string_view number, std::string_view value) {
      const std::optional<file_member> m = file_member::read(number, value);
      if (!m || m->rank < 0 || m->attempt < options_.attempt() || m->number == number_ || (lost && lost->rank < m->rank)) return;
      if (!presence::of_member(mark_.fd(), m->number)) lost = m;
    });
    return lost;
  }
  /// The same, now and then, by what was read before.
  [[nodiscard]] bool misses_somebody() {
    const auto now = std::chrono::steady_clock::now();
    if (!asks_for_members() || now < ask_again_) return false;
    if (lost_member()) return true;
    ask_again_ = now + between_questions;
    return false;
  }
  /// Drops what is in the file. In place where that is nobody's, for who waits for the lock with the file open; those that look in, though,
  /// and members of an attempt that is superseded, remember positions, and must see that it is another one.
  bool begin_anew(int fd, bool nobodys, file_report& r) {
    using enum file_report::status;
    if (!nobodys || presence::of_lookers(fd)) {
      if (::unlink(path_.c_str()) != 0) return r.set(failed, errc::io, system_text("cannot remove " + path_, errno)), false;
      forget();
      return r.set(not_yet, errc::timed_out, path_ + " is being made anew"), false;
    }
    if (::ftruncate(fd, 0) != 0) return r.set(failed, errc::io, system_text("cannot empty " + path_, errno)), false;
    map_.clear();
    position_ = 0;
    r.how = done;
    r.text.clear();
    return true;
  }
  /// With the lock held: some file systems grant it to everybody.
  [[nodiscard]] bool locks_exclude() const noexcept {
    const unique_fd second(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    return !second || ::flock(second.get(), LOCK_EX | LOCK_NB) != 0;
  }
  void count(file_step& step, std::string_view what, std::int64_t by) {
    const engine::detail::number_text text(map_.count(what) + by);
    step.put({}, what, text.view());
  }

  /// Writes at the end; where that fails, what was written of it is cut off.
  bool append(int fd, std::string_view out, file_report& r) {
    const int why = write_at(fd, out, position_);
    if (why == 0) {
      position_ += static_cast<off_t>(out.size());
      return true;
    }
    const bool whole = ::ftruncate(fd, position_) == 0;
    r.set(file_report::status::failed, errc::io, system_text("cannot write to " + path_, why), whole ? effect::none : effect::unknown);
    forget();
    return false;
  }

  [[nodiscard]] std::string copy_path() const { return path_ + ".compact"; }
  /// Under the exclusive lock, while nobody else has the file open: others remember positions. In place, for who waits for the lock with
  /// the file open; what lives is put beside it before, for the case that this process dies in between, or the disk.
  void compact(int fd, file_report& r) {
    if (static_cast<std::size_t>(position_) <= options_.compact_from() || static_cast<std::size_t>(position_) / 8 <= map_.live()) return;
    if (map_.count(file_format::refcount) != 1 || !options_.member() || !mark_.entered() || mark_.sees_others()) return;
    std::string all;
    map_.write_all(all);
    const std::string beside = copy_path();
    ::unlink(beside.c_str());
    const unique_fd copy(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (copy && write_at(copy.get(), all, 0) == 0 && ::fsync(copy.get()) == 0) {
      int why = write_at(fd, all, 0);
      if (why == 0 && ::ftruncate(fd, static_cast<off_t>(all.size())) != 0) why = errno;
      if (why != 0)
        return r.set(file_report::status::damaged, errc::io, system_text("cannot compact " + path_, why) + "; what it holds is in " + beside,
                     effect::applied);
      position_ = static_cast<off_t>(all.size());
    }
    if (copy) ::unlink(beside.c_str());
  }

  std::string path_;
  file_options options_;
  file_map map_;
  presence mark_;
  off_t position_ = 0;  // everything before it is in the map
  ino_t inode_ = 0;
  dev_t device_ = 0;
  pid_t pid_;
  std::int64_t number_ = -1;  // of the member that this is
  std::chrono::steady_clock::time_point ask_again_{}, busy_until_{};
  bool joined_ = false;
  bool on_local_ = false;  // the file system
  bool local_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
