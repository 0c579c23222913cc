#include "tests/cli/chain.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/directories.h"
#include "tests/comm/process_resources.h"
#include "tests/support/deadline.h"

namespace shardwise::testing {

namespace fs = std::filesystem;

namespace {

bool names_a_socket_of(pid_t launcher) {
  const std::string sockets = test::contents("/proc/net/unix");
  return sockets.find("/launch/" + std::to_string(launcher) + "/") != std::string::npos;
}

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  std::error_code not_there_yet;
  for (const auto& entry : fs::directory_iterator(directory, not_there_yet))
    names.insert(entry.path().filename());
  return names;
}

std::set<std::string> without(std::set<std::string> names, const std::set<std::string>& known) {
  std::erase_if(names, [&](const std::string& name) { return known.contains(name); });
  return names;
}

size_t lines_in(const std::string& file) {
  const std::string text = test::contents(file);
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

void wait_for_checkpoint(const std::string& directory, const Program& program) {
  const std::string config = directory + "/latest/config.json";
  for (const base::Stopwatch watch; !fs::exists(config) && watch.seconds() < scaled_s(kStartLimit);)
    usleep(1000);
  ASSERT_TRUE(fs::exists(config)) << program.errors();
}

std::set<std::string> half_written(const std::string& directory) {
  std::set<std::string> names = names_in(directory);
  std::erase_if(names, [](const std::string& name) {
    return name == ".lock" || name == "latest" || name.starts_with("step-");
  });
  return names;
}

Chain::Chain(int tp, int save_every, std::vector<std::string> flags, const config::Config& config)
    : tp_(tp),
      save_every_(save_every),
      flags_(std::move(flags)),
      mark_("SHARDWISE_TEST_MARK=" + scratch_.path()) {
  small_options(scratch_);
  scratch_.put("config.json", config::to_json(config));
}

std::vector<std::string> Chain::argv(const std::vector<std::string>& more) const {
  std::vector<std::string> flags = {"--warmup", "10", "--tp", std::to_string(tp_)};
  flags.insert(flags.end(), flags_.begin(), flags_.end());
  flags.insert(flags.end(), more.begin(), more.end());
  return training_command(scratch_, kEndless, flags);
}

// A rank that dies between the end of the first save and the creation of the `latest` link leaves no link.
std::vector<std::string> Chain::resuming() const {
  const std::string saved = scratch_ / "saved";
  const auto is_step = [](const std::string& name) { return name.starts_with("step-"); };
  if (std::ranges::none_of(names_in(saved), is_step)) return {};
  return {"--resume", saved};
}

void Chain::start() {
  ++starts_;
  stale_ = half_written(scratch_ / "saved");
  named_memory_ = testing::named_memory();
  std::vector<std::string> more{"--save", scratch_ / "saved", "--save-every", std::to_string(save_every_),
                                "--log",  log(starts_)};
  for (const std::string& word : resuming()) more.push_back(word);
  program_ =
      std::make_unique<Program>(argv(more), Program::Options{.environment = {mark_, "SHARDWISE_THREADS=1"}});
}

void Chain::wait_for_steps(size_t steps) const {
  const base::Stopwatch watch;
  while (lines_in(log(starts_)) < steps && watch.seconds() < scaled_s(kStartLimit)) usleep(1000);
  ASSERT_GE(lines_in(log(starts_)), steps) << "start " << starts_ << ": " << program_->errors();
}

bool Chain::is_saving() const {
  return !without(half_written(scratch_ / "saved"), stale_).empty();
}

bool Chain::send(pid_t pid, int signal) {
  fault_hit_save_ = is_saving();
  return send_to(pid, signal);
}

Ending Chain::end(double limit_s) {
  const base::Stopwatch since_fault;
  Ending ending;
  ending.status = program_->wait(limit_s);
  // A process that exits has no environment to find it by before it closes its sockets.
  const auto has_left = [&] { return processes_with(mark_).empty() && !names_a_socket_of(program_->pid()); };
  while (!has_left() && since_fault.seconds() < scaled_s(limit_s)) usleep(2000);
  ending.seconds = since_fault.seconds();
  ending.errors = program_->errors();
  ending.hit_save = fault_hit_save_;
  expect_within(ending.seconds, limit_s);
  EXPECT_TRUE(processes_with(mark_).empty()) << ending.errors;
  EXPECT_FALSE(names_a_socket_of(program_->pid())) << ending.errors;
  EXPECT_EQ(without(testing::named_memory(), named_memory_), std::set<std::string>()) << ending.errors;
  return ending;
}

std::map<int64_t, double> Chain::losses_of(const std::string& log) const {
  std::map<int64_t, double> losses;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("step"))
      losses[record["step"]] = record["loss"];  // the first record has the planned memory
  }
  return losses;
}

void Chain::run_to_step(int64_t last, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = argv({"--stop-after", std::to_string(last)});
  arguments.insert(arguments.end(), more.begin(), more.end());
  Program program(arguments, {.environment = {mark_, "SHARDWISE_THREADS=1"}});
  EXPECT_EQ(program.wait(/*limit_s=*/600), 0) << program.errors();
}

void Chain::expect_newest_checkpoint() const {
  const std::vector<std::string> resumed = resuming();
  const auto losses = losses_of(log(starts_));
  const int64_t last_logged =
      losses.empty() ? 0 : losses.rbegin()->first;  // a step is logged before its save
  if (resumed.empty()) {
    EXPECT_LE(last_logged, 1) << "there is no checkpoint";
    return;
  }
  const fs::path newest = checkpoint::resolve(resumed.back());
  checkpoint::check(newest, /*needs_state=*/true);
  const model::DecoderWeights weights(config::load_config(newest), comm::Group(), at::kFloat);
  checkpoint::load_weights(newest, weights);
  const int64_t step = std::stoll(newest.filename().string().substr(checkpoint::step_name(0).size() - 1));
  EXPECT_GE(step, last_logged - 1) << newest;
}

size_t Chain::expect_undisturbed_curve() {
  int64_t last = 0;
  for (int start = 1; start <= starts_; ++start) {
    for (const auto& [step, loss] : losses_of(log(start))) last = std::max(last, step);
  }
  ++last;
  ++starts_;
  std::vector<std::string> more{"--save", scratch_ / "saved", "--log", log(starts_)};
  for (const std::string& word : resuming()) more.push_back(word);
  run_to_step(last, more);
  EXPECT_EQ(half_written(scratch_ / "saved"), std::set<std::string>());
  run_to_step(last, {"--log", scratch_ / "undisturbed"});
  const auto expected = losses_of(scratch_ / "undisturbed");
  size_t compared = 0;
  for (int start = 1; start <= starts_; ++start) {
    for (const auto& [step, loss] : losses_of(log(start))) {
      EXPECT_EQ(loss, expected.at(step)) << "start " << start << ", step " << step;
      ++compared;
    }
  }
  return compared;
}

}  // namespace shardwise::testing
