// A model of a file system that loses power: what a tree of files may look like after a crash.
//
// The model promises what POSIX does and no more. fsync of a file makes its contents durable and not its
// name; fsync of a directory makes the names in it durable. Whatever is not synced may be there or not, each
// change by itself; only a rename within one directory is atomic.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/durability/operation.h"

namespace shardwise::testing {

/// What a crash does to changes that were not synced.
enum class Fate {
  kept,    // all of them reach the disk
  lost,    // none does
  zeroed,  // files have their new size and zeros instead of their new bytes
  mixed,   // each by a random number: kept, lost or, for bytes, only the first part of them kept
};
struct Crash {
  Fate contents, names;
  uint64_t seed = 0;  // of mixed
};
/// A killed process: the kernel keeps everything.
inline constexpr Crash kProcessKill{Fate::kept, Fate::kept};

/// A file, a directory or a link of a tree.
struct Node {
  enum class Type { file, directory, link } type;
  std::string text = {};  // a file's contents or a link's target
  bool operator==(const Node&) const = default;
};
/// A tree by path, relative to its root, which it does not contain.
using Tree = std::map<std::string, Node>;

/// Returns the path of a name in a directory; "" is the root.
std::string path_in(const std::string& directory, const std::string& name);
/// Returns the tree of a real directory, and creates one.
Tree tree_at(const std::string& directory);
void put_tree(const Tree& tree, const std::string& directory);
/// Returns what is at `path` and below it; "" is the path of what is at `path`.
Tree subtree(const Tree& tree, const std::string& path);

class Disk {
 public:
  /// A disk on which all of `tree` is durable.
  explicit Disk(const Tree& tree = {});

  /// Errors: std::logic_error if the operation is impossible, which the recorder has then missed some before.
  void apply(const Operation& operation);

  /// Returns the tree after a crash, or only what is at `path` and below, by whole paths.
  Tree after(const Crash& crash, const std::string& path = "") const;
  /// Returns the first path at or below `path` whose contents, or a name in which, are not durable; nothing
  /// if all are.
  std::optional<std::string> unsynced(const std::string& path) const;
  /// Returns whether the name itself is durable and refers to what it does now.
  bool has_durable_name(const std::string& path) const;
  /// Returns the durable name of the tree's file or directory at `path`, in the same directory; a rename that
  /// is not synced leaves the old one.
  std::optional<std::string> durable_name(const std::string& path) const;

 private:
  struct Item;
  using ItemPtr = std::shared_ptr<Item>;
  using Names = std::map<std::string, ItemPtr>;
  struct Bytes {
    int64_t offset;
    std::string bytes;
    bool is_resize;
  };
  using Naming = std::vector<std::pair<std::string, ItemPtr>>;  // null: the name is removed
  struct Item {
    uint64_t id;
    Node::Type type;
    std::string text, durable_text = {};
    std::vector<Bytes> pending_bytes = {};
    Names names = {}, durable_names = {};
    std::vector<Naming> pending_names = {};
  };

  ItemPtr make(Node::Type type, std::string text = {});
  ItemPtr find(const std::string& path) const;
  ItemPtr parent_of(const std::string& path) const;
  void change_names(const std::string& path, Naming naming);
  void change_bytes(const std::string& path, Bytes bytes);
  void sync(Item& item);
  void move(const Operation& operation, const ItemPtr& left_behind);
  static void write(std::string& text, const Bytes& bytes);
  static std::string text_after(const Item& item, const Crash& crash);
  static Names names_after(const Item& item, const Crash& crash);
  static void add(Tree& tree, const std::string& path, const Item& item, const Crash& crash);

  uint64_t items_ = 0;
  ItemPtr root_;
};

}  // namespace shardwise::testing
