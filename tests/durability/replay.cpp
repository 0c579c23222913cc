#include "tests/durability/replay.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/durability/order.h"

namespace shardwise::testing {
namespace {

constexpr size_t kPage = 4096;  // a signal may end a write between two pages

/// Splits writes of several pages in two.
Operations split_writes(const Operations& operations) {
  Operations split;
  for (const Operation& operation : operations) {
    split.push_back(operation);
    if (operation.data.size() <= kPage) continue;
    const size_t half = operation.data.size() / 2;
    Operation rest = operation;
    split.back().data.resize(half);
    rest.data.erase(0, half);
    rest.offset += static_cast<int64_t>(half);
    split.push_back(rest);
  }
  return split;
}

bool is_rename(const Operation& operation) {
  return operation.kind == OperationKind::rename || operation.kind == OperationKind::exchange;
}

/// Returns the final names that are in `directory`, by whole path.
std::set<std::string> final_names(const Tree& tree, const std::string& directory) {
  std::set<std::string> names;
  for (const auto& [path, node] : tree) {
    const std::string prefix = directory.empty() ? "" : directory + "/";
    if (!path.starts_with(prefix) || path.size() == prefix.size() || is_internal(path)) continue;
    names.insert(path.substr(0, path.find('/', prefix.size())));
  }
  return names;
}

std::string latest_in(const Tree& tree, const std::string& directory) {
  const auto link = tree.find(path_in(directory, "latest"));
  return link == tree.end() ? "" : path_in(directory, link->second.text);
}

}  // namespace

Replay::Replay(Tree before, const Operations& operations, std::string directory)
    : before_(std::move(before)), operations_(split_writes(operations)), directory_(std::move(directory)) {
  for (const std::string& path : final_names(before_, directory_))
    versions_.push_back({path, subtree(before_, path)});
  targets_.push_back(latest_in(before_, directory_));
  size_t saved = 1;
  Disk disk(before_);
  for (const Operation& operation : operations_) {
    // A save has ended when the next one makes its directory.
    if (operation.kind == OperationKind::mkdir && is_internal(operation.path)) saved = targets_.size();
    saved_.push_back(saved);
    collect(disk, operation);
    disk.apply(operation);
  }
  saved_.push_back(targets_.size());
  at_end_ = final_names(disk.after(kProcessKill), directory_);
}

void Replay::collect(const Disk& disk, const Operation& operation) {
  if (!is_rename(operation) || is_internal(operation.other)) return;
  const Tree tree = subtree(disk.after(kProcessKill, operation.path), operation.path);
  versions_.push_back({operation.other, tree});
  if (operation.other == path_in(directory_, "latest"))
    targets_.push_back(path_in(directory_, tree.at("").text));
}

bool Replay::is_version(const std::string& path, const Tree& tree) const {
  return std::any_of(versions_.rbegin(), versions_.rend(),
                     [&](const Version& version) { return version.path == path && version.tree == tree; });
}

void Replay::expect_complete(const CrashState& state, size_t saved) const {
  const std::set<std::string> names = final_names(state.tree, directory_);
  for (const std::string& path : names)
    EXPECT_TRUE(is_version(path, subtree(state.tree, path))) << path << " is incomplete";
  if (state.operations == operations_.size()) {
    EXPECT_EQ(names, at_end_);  // all of it is durable by then
  }
  const bool is_new = std::find(targets_.begin() + static_cast<int64_t>(saved) - 1, targets_.end(),
                                state.latest) != targets_.end();
  EXPECT_TRUE(is_new) << "latest is " << state.latest << "; " << targets_.at(saved - 1) << " had been saved";
  if (!state.latest.empty()) {
    EXPECT_TRUE(names.contains(state.latest)) << state.latest << " is missing";
  }
}

size_t Replay::for_each_state(const std::vector<Crash>& crashes,
                              const std::function<void(const CrashState&)>& check) const {
  Disk disk(before_);
  size_t states = 0;
  for (size_t made = 0; made <= operations_.size() && !::testing::Test::HasFailure(); ++made) {
    const bool is_boundary = made == 0 || operations_[made - 1].kind != OperationKind::write;
    if (made > 0) disk.apply(operations_[made - 1]);
    for (const Crash& crash : crashes) {
      SCOPED_TRACE(fmt::format("crash after {} operations, the last: {}; contents {}, names {}, seed {}",
                               made, made > 0 ? text_of(operations_[made - 1]) : "none",
                               static_cast<int>(crash.contents), static_cast<int>(crash.names), crash.seed));
      CrashState state{made, is_boundary, crash, disk.after(crash), ""};
      state.latest = latest_in(state.tree, directory_);
      expect_complete(state, saved_[made]);
      check(state);
      ++states;
    }
  }
  return states;
}

}  // namespace shardwise::testing
