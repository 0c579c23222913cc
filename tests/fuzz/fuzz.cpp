// fuzz SEEDS INPUTS [FIRST]: shows every reader INPUTS changed seeds, the same ones every time. Each must be
// read soundly or refused by a c10::ValueError of one short line. The input that a reader fails on stays in
// the scratch directory, also when a sanitizer ends the program; it is then kept as a seed, for seeds are
// read unchanged first.
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
  std::vector<std::string> valid;   // what may be changed
  std::vector<std::string> broken;  // inputs that were once taken wrongly: read as they are
};

/// The files of a target's directory: `broken-*`, what the index names (copied), and all others.
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

/// Whether the reader took the input; throws std::logic_error where it neither reads it soundly nor refuses
/// it well.
bool takes(const Target& target, const path& scratch, const std::string& input) {
  std::ofstream(scratch / target.file, std::ios::binary) << input;
  try {
    target.read(scratch / target.file);
    return true;
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find('\n') != std::string::npos || text.size() > kLongestMessage) {
      throw std::logic_error("refused an input in more than one short line: " + text);
    }
    return false;
  }
}

/// How many of the seeds and of `inputs` changed ones were taken.
void run(const Target& target, const path& seeds, const path& scratch, uint64_t inputs, uint64_t first) {
  const Corpus corpus = load(seeds, target, scratch);
  for (const std::string& seed : corpus.broken) takes(target, scratch, seed);
  for (const std::string& seed : corpus.valid) {
    if (!takes(target, scratch, seed)) throw std::logic_error("refused a seed: " + seed.substr(0, 200));
  }
  uint64_t taken = 0;
  for (uint64_t i = first; i < first + inputs; ++i) {
    Mutator mutator(i);
    const std::string& seed = corpus.valid[i % corpus.valid.size()];
    const std::string& other = corpus.valid[i / corpus.valid.size() % corpus.valid.size()];
    taken += takes(target, scratch, (mutator.*target.mutate)(seed, other));
  }
  std::printf("covered: %s: %zu seeds and %lu inputs, %lu read, %lu refused\n", target.name.c_str(),
              corpus.valid.size() + corpus.broken.size(), inputs, taken, inputs - taken);
  if (taken == 0 || taken == inputs) throw std::logic_error("saw inputs of one kind only: change the seeds");
}

/// Every target in a directory of its own; the first failure's directory stays.
bool run_all(const path& seeds, uint64_t inputs, uint64_t first) {
  test::TemporaryDirectory scratch;
  std::printf("fuzz: inputs lie in %s\n", scratch.path().c_str());
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
