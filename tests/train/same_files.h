// Compares the files of two checkpoints byte for byte.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace shardwise::testing {

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void expect_same_files(const std::filesystem::path& directory, const std::filesystem::path& expected) {
  for (const char* name : {"config.json", "model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(contents(directory / name) == contents(expected / name)) << name;
}

}  // namespace shardwise::testing
