// fuzz SEEDS INPUTS [FIRST]: runs every reader on INPUTS mutated seeds, deterministically. A reader must
// parse each input correctly or reject it with a c10::ValueError of one short line. An input on which a
// reader fails stays in the scratch directory, also if a sanitizer aborts the program. Add it to the seeds:
// the seeds themselves are read first.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "shardwise/base/error.h"
#include "tests/fuzz/target.h"
#include "tests/support/temporary.h"

namespace shardwise::fuzz {
namespace {

using std::filesystem::path;

constexpr size_t kLongestMessage = 1000;

struct Corpus {
  std::vector<std::string> valid;   // valid inputs, which are mutated
  std::vector<std::string> broken;  // inputs on which a reader once failed, read without mutation
};

/// The files of a target's directory: `broken-*`, files that an index lists (copied), and all others.
Corpus load(const path& seeds, const Target& target, const path& scratch) {
  Corpus corpus;
  std::vector<path> files;
  for (const auto& entry : std::filesystem::directory_iterator(seeds / target.name)) files.push_back(entry);
  std::sort(files.begin(), files.end());  // the same order on every file system
  for (const path& file : files) {
    const std::string name = file.filename();
    if (name.starts_with("broken-")) {
      corpus.broken.push_back(test::contents(file));
    } else if (file.extension() == path(target.file).extension()) {
      corpus.valid.push_back(test::contents(file));
    } else {
      std::filesystem::copy_file(file, scratch / name);
    }
  }
  return corpus;
}

/// Returns true if the reader accepts the input. Throws std::logic_error if it neither parses the input
/// correctly nor rejects it with a proper error.
bool accepts(const Target& target, const path& scratch, const std::string& input) {
  std::ofstream(scratch / target.file, std::ios::binary) << input;
  try {
    target.read(scratch / target.file);
    return true;
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find('\n') != std::string::npos || text.size() > kLongestMessage) {
      throw std::logic_error("rejected an input with an error of more than one short line: " + text);
    }
    return false;
  }
}

/// Reads the seeds and `inputs` mutated seeds, and prints how many were accepted.
void run(const Target& target, const path& seeds, const path& scratch, uint64_t inputs, uint64_t first) {
  const Corpus corpus = load(seeds, target, scratch);
  for (const std::string& seed : corpus.broken) accepts(target, scratch, seed);
  for (const std::string& seed : corpus.valid) {
    if (!accepts(target, scratch, seed)) throw std::logic_error("rejected a seed: " + seed.substr(0, 200));
  }
  uint64_t accepted = 0;
  for (uint64_t i = first; i < first + inputs; ++i) {
    Mutator mutator(i);
    const std::string& seed = corpus.valid[i % corpus.valid.size()];
    const std::string& other = corpus.valid[i / corpus.valid.size() % corpus.valid.size()];
    accepted += accepts(target, scratch, (mutator.*target.mutate)(seed, other));
  }
  std::printf("covered: %s: %zu seeds and %lu inputs, %lu accepted, %lu rejected\n", target.name.c_str(),
              corpus.valid.size() + corpus.broken.size(), inputs, accepted, inputs - accepted);
  if (accepted == 0 || accepted == inputs)
    throw std::logic_error("all inputs were accepted or all rejected: change the seeds");
}

/// Runs every target in a separate directory. The directory of the first failure is not removed.
bool run_all(const path& seeds, uint64_t inputs, uint64_t first) {
  test::TemporaryDirectory scratch;
  std::printf("fuzz: inputs are in %s\n", scratch.path().c_str());
  for (const Target& target : targets()) {
    const path directory = scratch / target.name;
    std::filesystem::create_directories(directory);
    try {
      run(target, seeds, directory, inputs, first);
    } catch (const std::exception& error) {
      scratch.keep();
      std::printf("%s: %s\nthe input is %s\n", target.name.c_str(), error.what(),
                  (directory / target.file).c_str());
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace shardwise::fuzz

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fputs("fuzz: SEEDS INPUTS [FIRST] must be given\n", stderr);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const uint64_t inputs = std::strtoull(argv[2], nullptr, 10);
  const uint64_t first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  return shardwise::fuzz::run_all(argv[1], inputs, first) ? 0 : 1;
}
