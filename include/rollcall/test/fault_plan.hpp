#pragma once
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "../core/clock.hpp"

namespace rollcall {
inline namespace v0 {
namespace test {

/// Random numbers from one seed (splitmix64): the same on every machine, unlike the distributions of <random>.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  /// 0 .. n-1; 0 for n = 0.
  std::uint64_t below(std::uint64_t n) noexcept { return n == 0 ? 0 : next() % n; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) noexcept { return low + below(high - low + 1); }
  bool chance(unsigned permille) noexcept { return below(1000) < permille; }
  duration up_to(duration d) noexcept { return duration(static_cast<std::int64_t>(below(static_cast<std::uint64_t>(d.count()) + 1))); }

 private:
  std::uint64_t state_;
};

/// What an intentionally broken link does to one byte; a test that does not notice is no test.
enum class corruption : unsigned char { none, drop, duplicate, flip };

/// How one direction of a link in memory behaves. The default is a perfect one: whole, at once, for ever.
class link_faults {
 public:
  static constexpr std::uint64_t never = UINT64_MAX;
  link_faults() noexcept = default;

  std::uint64_t seed = 1;                           ///< of everything that is drawn below
  std::size_t capacity = 64 * 1024;                 ///< bytes under way or unread, at the most
  std::size_t max_piece = SIZE_MAX;                 ///< longest piece that is delivered at once; 1: byte by byte
  bool exact_pieces = false;                        ///< every piece as long as max_piece allows, else of random length
  duration max_delay{0};                            ///< before a piece is delivered
  unsigned delayed_permille = 0;                    ///< how many pieces are delayed
  unsigned short_write_permille = 0;                ///< how many writes take less than there is room for
  std::uint64_t lose_after = never;                 ///< bytes delivered in this direction; then the whole link is lost
  int loss_status[2] = {-ECONNRESET, -ECONNRESET};  ///< what the sender and the receiver of this direction are told: 0 is an orderly end
  std::uint64_t freeze_after = never;               ///< bytes delivered; then nothing for freeze_for, once
  duration freeze_for{0};
  corruption corrupt = corruption::none;
  std::uint64_t corrupt_at = 0;  ///< which byte of those delivered

  link_faults& seeded(std::uint64_t s) noexcept { return seed = s, *this; }
  link_faults& room(std::size_t n) noexcept { return capacity = n, *this; }
  link_faults& pieces(std::size_t n) noexcept { return max_piece = n, exact_pieces = true, *this; }
  link_faults& random_pieces(std::size_t most) noexcept { return max_piece = most, exact_pieces = false, *this; }
  link_faults& delays(duration most, unsigned permille = 1000) noexcept { return max_delay = most, delayed_permille = permille, *this; }
  link_faults& short_writes(unsigned permille) noexcept { return short_write_permille = permille, *this; }
  link_faults& lose(std::uint64_t after, int sender, int receiver) noexcept {
    lose_after = after;
    loss_status[0] = sender;
    loss_status[1] = receiver;
    return *this;
  }
  link_faults& freeze(std::uint64_t after, duration d) noexcept { return freeze_after = after, freeze_for = d, *this; }
  link_faults& break_byte(corruption c, std::uint64_t at) noexcept { return corrupt = c, corrupt_at = at, *this; }
};

/// Draws links from one seed: some are perfect, some deliver byte by byte, some are slow, narrow, or do not last.
class fault_plan {
 public:
  explicit fault_plan(std::uint64_t seed) noexcept : random_(seed) {}

  /// How many links are lost, in thousandths, and after how many bytes at the most in the direction that loses them.
  fault_plan& losses(unsigned permille, std::uint64_t within_bytes) noexcept {
    loss_permille_ = permille;
    loss_within_ = within_bytes;
    return *this;
  }
  fault_plan& freezes(unsigned permille, duration most) noexcept { return freeze_permille_ = permille, freeze_most_ = most, *this; }
  fault_plan& delays(duration most) noexcept { return max_delay_ = most, *this; }
  /// Attempts to dial that fail.
  fault_plan& refusals(unsigned permille) noexcept { return refuse_permille_ = permille, *this; }

  /// One direction of the next link.
  [[nodiscard]] link_faults direction() noexcept {
    link_faults f;
    f.seed = random_.next();
    switch (random_.below(5)) {
      case 0: break;
      case 1: f.pieces(1); break;
      case 2: f.random_pieces(7); break;
      case 3: f.random_pieces(100); break;
      case 4: f.pieces(random_.between(2, 40)); break;
    }
    if (max_delay_ > duration::zero() && random_.chance(800)) {
      const duration most = random_.chance(300) ? max_delay_ : max_delay_ / 20;
      f.delays(most, static_cast<unsigned>(random_.between(10, 1000) * (f.max_piece < 50 ? 1U : 4U) / 4));
    }
    if (random_.chance(300)) f.room(random_.between(1, 64));
    if (random_.chance(300)) f.short_writes(static_cast<unsigned>(random_.between(50, 700)));
    if (random_.chance(loss_permille_)) {
      constexpr int statuses[] = {0, -ECONNRESET, -ETIMEDOUT};
      const int sender = statuses[random_.below(3)];
      f.lose(random_.below(random_.chance(200) ? 60 : loss_within_), sender, statuses[random_.below(3)]);
    }
    if (random_.chance(freeze_permille_)) f.freeze(random_.below(2000), random_.up_to(freeze_most_));
    return f;
  }
  [[nodiscard]] duration delay() noexcept { return random_.up_to(max_delay_); }
  [[nodiscard]] bool refuses() noexcept { return random_.chance(refuse_permille_); }
  [[nodiscard]] random_source& random() noexcept { return random_; }

 private:
  random_source random_;
  unsigned loss_permille_ = 0;
  std::uint64_t loss_within_ = 4000;
  unsigned freeze_permille_ = 0;
  duration freeze_most_ = std::chrono::seconds(1);
  duration max_delay_{0};
  unsigned refuse_permille_ = 0;
};

}  // namespace test
}  // namespace v0
}  // namespace rollcall
