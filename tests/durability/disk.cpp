#include "tests/durability/disk.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "shardwise/base/hash.h"
#include "tests/durability/recording.h"
#include "tests/support/temporary.h"

namespace shardwise::testing {

namespace fs = std::filesystem;

namespace {

/// A random number for one change; the multiplications spread the hash's low bits.
uint64_t random_of(const Crash& crash, uint64_t item, uint64_t change) {
  uint64_t hash = base::mix(base::mix(base::mix(base::kHashBegin, crash.seed), item), change);
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 33);
}

std::string last_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

std::string path_in(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : directory + "/" + name;
}

Tree tree_at(const std::string& directory) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string path = entry.path().lexically_relative(directory);
    if (entry.is_symlink()) {
      tree[path] = {Node::Type::link, fs::read_symlink(entry.path())};
    } else if (entry.is_directory()) {
      tree[path] = {Node::Type::directory};
    } else {
      tree[path] = {Node::Type::file, test::contents(entry.path())};
    }
  }
  return tree;
}

void put_tree(const Tree& tree, const std::string& directory) {
  fs::create_directories(directory);
  for (const auto& [path, node] : tree) {  // a directory comes before what is in it
    const std::string whole = path_in(directory, path);
    if (node.type == Node::Type::directory) fs::create_directory(whole);
    if (node.type == Node::Type::link) fs::create_symlink(node.text, whole);
    if (node.type == Node::Type::file) std::ofstream(whole, std::ios::binary) << node.text;
  }
}

Tree subtree(const Tree& tree, const std::string& path) {
  Tree below;
  for (auto it = tree.lower_bound(path); it != tree.end() && it->first.starts_with(path); ++it) {
    if (it->first == path) below[""] = it->second;
    if (it->first.starts_with(path + "/")) below[it->first.substr(path.size() + 1)] = it->second;
  }
  return below;
}

Disk::Disk(const Tree& tree) : root_(make(Node::Type::directory)) {
  for (const auto& [path, node] : tree) {
    const ItemPtr item = make(node.type, node.text);
    item->durable_text = node.text;
    parent_of(path)->names[last_of(path)] = parent_of(path)->durable_names[last_of(path)] = item;
  }
}

Disk::ItemPtr Disk::make(Node::Type type, std::string text) {
  return std::make_shared<Item>(Item{++items_, type, std::move(text)});
}

Disk::ItemPtr Disk::find(const std::string& path) const {
  ItemPtr item = root_;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const auto found = item->names.find(path.substr(begin, end - begin));
    if (found == item->names.end()) throw std::logic_error("there is no " + path);
    item = found->second;
    begin = end + 1;
  }
  return item;
}

Disk::ItemPtr Disk::parent_of(const std::string& path) const {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? root_ : find(path.substr(0, slash));
}

void Disk::change_names(const std::string& path, Naming naming) {
  const ItemPtr directory = parent_of(path);
  for (const auto& [name, item] : naming) {
    if (item) directory->names[name] = item;
    if (!item && directory->names.erase(name) == 0) throw std::logic_error("there is no " + path);
  }
  directory->pending_names.push_back(std::move(naming));
}

void Disk::write(std::string& text, const Bytes& change) {
  if (change.is_resize) return text.resize(change.offset);
  text.resize(std::max(text.size(), change.offset + change.bytes.size()));
  text.replace(change.offset, change.bytes.size(), change.bytes);
}

void Disk::change_bytes(const std::string& path, Bytes bytes) {
  const ItemPtr file = find(path);
  write(file->text, bytes);
  file->pending_bytes.push_back(std::move(bytes));
}

void Disk::sync(Item& item) {
  item.durable_text = item.text;
  item.durable_names = item.names;
  item.pending_bytes.clear();
  item.pending_names.clear();
}

/// Renames; `left_behind` gets the old name.
void Disk::move(const Operation& operation, const ItemPtr& left_behind) {
  const std::string &from = operation.path, &to = operation.other;
  const std::pair old_name{last_of(from), left_behind}, new_name{last_of(to), find(from)};
  if (parent_of(from) == parent_of(to)) return change_names(from, {old_name, new_name});
  change_names(to, {new_name});
  change_names(from, {old_name});
}

void Disk::apply(const Operation& operation) try {
  const std::string& path = operation.path;
  const std::string name = last_of(path);
  switch (operation.kind) {
    case OperationKind::create:
      return change_names(path, {{name, make(Node::Type::file)}});
    case OperationKind::symlink:
      return change_names(path, {{name, make(Node::Type::link, operation.other)}});
    case OperationKind::mkdir:
      return change_names(path, {{name, make(Node::Type::directory)}});
    case OperationKind::unlink:
    case OperationKind::rmdir:
      return change_names(path, {{name, nullptr}});
    case OperationKind::write:
      return change_bytes(path, {operation.offset, operation.data, false});
    case OperationKind::resize:
      return change_bytes(path, {operation.offset, "", true});
    case OperationKind::sync:
      return sync(*find(path));
    case OperationKind::rename:
      return move(operation, nullptr);
    case OperationKind::exchange:
      return move(operation, find(operation.other));
  }
} catch (const std::logic_error& error) {
  throw std::logic_error(text_of(operation) + ": " + error.what());
}

std::string Disk::text_after(const Item& item, const Crash& crash) {
  if (item.type == Node::Type::link || crash.contents == Fate::kept) return item.text;
  std::string text = item.durable_text;
  if (crash.contents == Fate::lost) return text;
  for (size_t i = 0; i < item.pending_bytes.size(); ++i) {
    Bytes change = item.pending_bytes[i];
    const uint64_t random = random_of(crash, item.id, i);
    if (crash.contents == Fate::zeroed) {
      std::fill(change.bytes.begin(), change.bytes.end(), '\0');
    } else if (random % 3 == 0) {
      continue;
    } else if (random % 3 == 1) {
      change.bytes.resize(random / 3 % (change.bytes.size() + 1));
    }
    write(text, change);
  }
  return text;
}

Disk::Names Disk::names_after(const Item& item, const Crash& crash) {
  if (crash.names == Fate::kept) return item.names;
  Names names = item.durable_names;
  if (crash.names == Fate::lost) return names;
  for (size_t i = 0; i < item.pending_names.size(); ++i) {
    if (random_of(crash, item.id, i) % 2 == 0) continue;
    for (const auto& [name, named] : item.pending_names[i]) {
      names.erase(name);
      if (named) names[name] = named;
    }
  }
  return names;
}

void Disk::add(Tree& tree, const std::string& path, const Item& item, const Crash& crash) {
  if (!path.empty()) tree[path] = {item.type, text_after(item, crash)};
  for (const auto& [name, below] : names_after(item, crash)) add(tree, path_in(path, name), *below, crash);
}

Tree Disk::after(const Crash& crash, const std::string& path) const {
  Tree tree;
  const Item* item = root_.get();
  Names names;  // keeps the items on the way alive
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    names = names_after(*item, crash);
    const auto found = names.find(path.substr(begin, end - begin));
    if (found == names.end()) return tree;
    item = found->second.get();
    begin = end + 1;
  }
  add(tree, path, *item, crash);
  return tree;
}

std::optional<std::string> Disk::unsynced(const std::string& path) const {
  const ItemPtr item = find(path);
  if (!item->pending_bytes.empty() || !item->pending_names.empty()) return path;
  for (const auto& [name, below] : item->names) {
    if (auto found = unsynced(path_in(path, name))) return found;
  }
  return std::nullopt;
}

bool Disk::has_durable_name(const std::string& path) const {
  return durable_name(path) == path;
}

std::optional<std::string> Disk::durable_name(const std::string& path) const {
  const ItemPtr item = find(path);
  for (const auto& [name, durable] : parent_of(path)->durable_names) {
    if (durable == item) return path.substr(0, path.size() - last_of(path).size()) + name;
  }
  return std::nullopt;
}

}  // namespace shardwise::testing
