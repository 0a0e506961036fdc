// libFuzzer's target for the reader of pickles, built with the address and undefined-behaviour sanitizers by
// tools/fuzz_readers.sh. A file is read or refused, and takes no more memory than its bound.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "pickle.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const ullage::Pickle pickle(std::string_view(reinterpret_cast<const char*>(data), size));
    if (pickle.made_bytes() > pickle.most_made_bytes()) {
      std::fprintf(stderr, "%zu bytes were made of %zu, at most %zu may be\n", pickle.made_bytes(), size,
                   pickle.most_made_bytes());
      std::abort();
    }
  } catch (const ullage::PickleError&) {
    // Refused with a sentence.
  }
  return 0;
}
