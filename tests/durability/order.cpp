#include "tests/durability/order.h"

#include <fmt/format.h>

namespace shardwise::testing {
namespace {

constexpr Crash kAllLost{Fate::lost, Fate::lost};

std::string parent_and_slash(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1);
}

class OrderCheck {
 public:
  explicit OrderCheck(const Tree& before) : disk_(before) {}

  void apply(const Operation& operation) {
    operation_ = text_of(operation);
    switch (operation.kind) {
      case OperationKind::create:
      case OperationKind::write:
      case OperationKind::resize:
      case OperationKind::symlink:
        if (!is_internal(operation.path)) add("changes a file with a final name in place");
        break;
      case OperationKind::rename:
      case OperationKind::exchange:
        check_rename(operation.path, operation.other);
        break;
      case OperationKind::unlink:
      case OperationKind::rmdir:
        check_removal(operation.path);
        break;
      case OperationKind::mkdir:
        if (is_internal(operation.path)) check_all_durable();
        break;
      case OperationKind::sync:
        break;
    }
    disk_.apply(operation);
  }
  void end() {
    operation_ = "end";
    check_all_durable();
  }
  std::vector<std::string> violations() const { return violations_; }

 private:
  void add(const std::string& what) { violations_.push_back(operation_ + ": " + what); }

  void check_rename(const std::string& from, const std::string& to) {
    if (!is_internal(from)) check_not_latest(from);
    if (is_internal(to)) return;
    if (const auto path = disk_.unsynced(from)) add(*path + " is not synced");
    if (!to.ends_with("latest")) return;
    const std::string target = parent_and_slash(to) + disk_.after(kProcessKill, from).at(from).text;
    if (!disk_.has_durable_name(target)) add("the name " + target + " is not synced");
    if (const auto path = disk_.unsynced(target)) add(*path + ", which it points to, is not synced");
  }

  void check_not_latest(const std::string& path) {
    const std::string link = parent_and_slash(path) + "latest";
    const Tree durable = disk_.after(kAllLost, link);
    if (durable.empty() || parent_and_slash(path) + durable.at(link).text == path)
      add("no other checkpoint is the durable 'latest'");
  }

  void check_removal(const std::string& path) {
    if (!is_internal(path)) return add("removes what has a final name");
    for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
      const auto durable = disk_.durable_name(path.substr(0, end));
      if (durable && is_internal(path.substr(0, end)) && !is_internal(*durable))
        add("a crash could bring it back as " + *durable);
    }
  }

  void check_all_durable() {
    const Tree durable = disk_.after(kAllLost);
    for (const auto& [path, node] : disk_.after(kProcessKill)) {
      if (is_internal(path)) continue;
      const auto found = durable.find(path);
      if (found == durable.end() || found->second != node) add(path + " is not durable");
    }
  }

  Disk disk_;
  std::string operation_;
  std::vector<std::string> violations_;
};

}  // namespace

bool is_internal(const std::string& path) {
  return path.find(".tmp") != std::string::npos || path.ends_with("/.lock");
}

std::vector<std::string> order_violations(const Tree& before, const Operations& operations) {
  OrderCheck check(before);
  for (const Operation& operation : operations) check.apply(operation);
  check.end();
  return check.violations();
}

}  // namespace shardwise::testing
