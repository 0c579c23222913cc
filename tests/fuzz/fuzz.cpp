// fuzz TARGET [OPTION OF LIBFUZZER | DIRECTORY]...: lets libFuzzer search for inputs that break one reader,
// starting from the inputs in the directories. fuzz replay [TARGET]...: reads the inputs in seeds/, which is
// what `make test` does.
//
// A reader must parse each input correctly or reject it with an error of one short line that has a code.
// Valid seeds must be accepted; found-* are inputs that reach other code, broken-* are those on which a
// reader once failed.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/target.h"
#include "tests/support/temporary.h"

// Of libFuzzer, which has no header for programs.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace shardwise::fuzz {
namespace {

using std::filesystem::path;

const path kDirectory = SHARDWISE_FUZZ_DIRECTORY;  // of seeds/ and files/

std::vector<path> files_in(const path& directory) {
  std::vector<path> files;
  if (!std::filesystem::exists(directory)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) files.push_back(entry);
  std::sort(files.begin(), files.end());  // the same order on every file system
  return files;
}

bool is_valid_seed(const path& file) {
  const std::string name = file.filename();
  return !name.starts_with("found-") && !name.starts_with("broken-");
}

/// A reader with a directory in which it finds its input.
class Reader {
 public:
  explicit Reader(Target target) : target_(std::move(target)) {
    for (const path& file : files_in(kDirectory / "files" / target_.name))
      std::filesystem::copy(file, directory_ / file.filename());
    for (const path& file : files_in(kDirectory / "seeds" / target_.name)) {
      if (is_valid_seed(file)) seeds_.push_back(test::contents(file));
    }
  }

  /// Returns the error with which the reader rejects the input, or "". Throws std::logic_error if it neither
  /// parses the input correctly nor rejects it with a proper error.
  std::string rejection(const std::string& input) const {
    const std::string file = directory_ / target_.file;
    std::ofstream(file, std::ios::binary) << input;
    try {
      target_.read(file);
      return "";
    } catch (const c10::Error& error) {
      check_rejection(error);
      return error.what_without_backtrace();
    }
  }

  /// Returns the input with edits that keep most of its structure; bytes without structure get raw edits.
  std::string mutated(const std::string& input, unsigned seed) const {
    Mutator mutator(seed);
    const std::string& other = seeds_.empty() ? input : seeds_[seed % seeds_.size()];
    try {
      return (mutator.*target_.mutate)(input, other);
    } catch (const std::exception&) {
      return mutator.raw(input, other);
    }
  }

 private:
  Target target_;
  test::TemporaryDirectory directory_;
  std::vector<std::string> seeds_;
};

/// Reads the empty input and all seeds of one target, and prints how many there are.
void replay(const Target& target) {
  const Reader reader(target);
  size_t inputs = 1, accepted = reader.rejection("").empty();
  for (const path& file : files_in(kDirectory / "seeds" / target.name)) {
    const std::string rejection = reader.rejection(test::contents(file));
    if (is_valid_seed(file) && !rejection.empty())
      throw std::logic_error("rejected the seed " + file.string() + ": " + rejection);
    ++inputs;
    accepted += rejection.empty();
  }
  std::printf("covered: %s: %zu inputs replayed, %zu accepted\n", target.name.c_str(), inputs, accepted);
  if (accepted == 0) throw std::logic_error("there must be a seed that is accepted");
}

int replay_all(const std::vector<std::string>& names) try {
  for (const std::string& name : names) target(name);  // throws for an unknown one
  for (const Target& target : targets()) {
    if (names.empty() || std::find(names.begin(), names.end(), target.name) != names.end()) replay(target);
  }
  return 0;
} catch (const std::exception& error) {
  std::printf("fuzz: %s\n", error.what());
  return 1;
}

/// The reader of this process, which LLVMFuzzerInitialize chooses: libFuzzer passes no state to its
/// callbacks.
const Reader& reader() {
  const char* name = std::getenv("SHARDWISE_FUZZ_TARGET");
  static const Reader& chosen = *new Reader(target(name == nullptr ? "" : name));
  return chosen;
}

}  // namespace
}  // namespace shardwise::fuzz

using namespace shardwise::fuzz;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string first = *argc > 1 ? (*argv)[1] : "";
  if (first == "list") {
    for (const Target& target : targets()) std::puts(target.name.c_str());
    std::exit(0);
  }
  if (first == "replay") std::exit(replay_all({*argv + 2, *argv + *argc}));
  if (first.empty() || first[0] != '-') {  // libFuzzer starts itself again without this argument
    setenv("SHARDWISE_FUZZ_TARGET", first.c_str(), 1);
    (*argv)[1] = (*argv)[0];
    ++*argv;
    --*argc;
  }
  try {
    reader();
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "fuzz: %s\n", error.what());
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) try {
  reader().rejection({reinterpret_cast<const char*>(data), size});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "fuzz: %s\n", error.what());
  std::abort();
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string mutated = reader().mutated({reinterpret_cast<const char*>(data), size}, seed / 2);
  const size_t length = std::min(mutated.size(), max_size);
  std::copy_n(mutated.begin(), length, data);
  return length;
}
