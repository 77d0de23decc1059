// The stores of which net/stores_*.cpp ask what all have in common: all the code of theirs that those cases need is made here, once.
#include "../support/hall_types.hpp"

namespace net_test {

namespace {

template <class Hall>
std::unique_ptr<hall> make(rc::loop& l) {
  return std::make_unique<erased_hall<Hall>>(l);
}

}  // namespace

std::vector<kind_of_store> const& all_kinds() {
  static const std::vector<kind_of_store> all{
      {"tcp", &make<tcp_hall>},
      {"hash", &make<hash_hall>},
      {"blocking", &make<blocking_hall>},
      {"file, with change notice", &make<watched>},
      {"file, polled", &make<polled>},
      {"prefix of tcp", &make<prefixed<tcp_hall>>},
      {"prefix of hash", &make<prefixed<hash_hall>>},
      {"prefix of file", &make<prefixed<watched>>},
      {"prefix of a prefix of hash", &make<prefixed<prefixed<hash_hall>>>},
      {"prefix of an any_store", &make<prefixed<erased<hash_hall>>>},
  };
  return all;
}

}  // namespace net_test
