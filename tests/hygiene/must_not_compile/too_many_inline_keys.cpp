// expect: too many keys in one braced list
#include <rollcall/core/bytes.hpp>

void wait(rollcall::keys which);

void caller() {
  wait({"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"});
  wait({"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"});  // mistake
}
