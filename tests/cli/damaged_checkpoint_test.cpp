// Damaged checkpoints, read by ranks as processes: generate, eval and train (--init, --resume) reject them
// with one line, change no file and leave no process.
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "tests/checkpoint/stored_model.h"
#include "tests/cli/bad_input.h"
#include "tests/launch/program.h"

namespace shardwise::cli::damaged_checkpoint_test {
namespace {

using nlohmann::json;
using testing::Program;
using testing::StoredTensors;

constexpr double kLimit = 120;  // seconds, on a busy machine

const std::string kNorm = "model.norm.weight", kDown = "model.layers.1.mlp.down_proj.weight";
constexpr size_t kOfRank1 = 30;  // a column of kDown on rank 1 of 2, which has columns 19 to 36

/// A change of a file, and the parts that the error line must have.
struct Damage {
  const char* name;
  std::function<void(const std::string& file)> make;
  std::vector<std::string> named;
};

void write(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

void truncate(const std::string& file) {
  fs::resize_file(file, fs::file_size(file) - 4);
}

void change_header(const std::string& file, const std::function<std::string(const std::string&)>& change) {
  const std::string bytes = test::contents(file);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::string header = change(bytes.substr(sizeof length, length));
  const uint64_t changed = header.size();
  std::string first8(sizeof changed, '\0');
  std::memcpy(first8.data(), &changed, sizeof changed);
  write(file, first8 + header + bytes.substr(sizeof length + length));
}

std::function<void(const std::string&)> with_tensors(const std::function<void(StoredTensors&)>& change) {
  return [change](const std::string& file) {
    StoredTensors tensors = testing::read_safetensors(file);
    change(tensors);
    write(file, testing::safetensors_of(tensors));
  };
}

std::function<void(const std::string&)> with_number(const std::string& tensor, size_t place, float number) {
  return with_tensors([=](StoredTensors& tensors) {
    std::memcpy(tensors.at(tensor).bytes.data() + place * sizeof number, &number, sizeof number);
  });
}

/// Makes kNorm overlap the tensor before it.
void overlap(const std::string& file) {
  change_header(file, [](const std::string& header) {
    json entries = json::parse(header);
    for (json& offset : entries.at(kNorm).at("data_offsets")) offset = offset.get<int64_t>() - 4;
    return entries.dump();
  });
}

void name_twice(const std::string& file) {
  change_header(file, [](const std::string& header) {
    return "{" + json(kNorm).dump() + ":" + json::parse(header).at(kNorm).dump() + "," + header.substr(1);
  });
}

/// Writes kNorm to both files of an index, which names it once.
void put_into_two_files(const std::string& file) {
  const std::string directory = fs::path(file).parent_path(), embedding = "model.embed_tokens.weight";
  StoredTensors first = testing::read_safetensors(file), second;
  second[embedding] = first.extract(embedding).mapped();
  second[kNorm] = first.at(kNorm);
  json index{{"weight_map", {{embedding, "second.safetensors"}}}};
  for (const auto& [name, tensor] : first) index["weight_map"][name] = "first.safetensors";
  fs::remove(file);
  write(directory + "/first.safetensors", testing::safetensors_of(first));
  write(directory + "/second.safetensors", testing::safetensors_of(second));
  write(directory + "/model.safetensors.index.json", index.dump());
}

const std::vector<Damage> kDamagedWeights{
    {"truncated", truncate, {"model.safetensors", "the file is truncated"}},
    {"overlapping", overlap, {kNorm, "must begin at the end of the previous tensor"}},
    {"mis-typed",
     with_tensors([](StoredTensors& tensors) { tensors.at(kNorm).dtype = "I32"; }),
     {kNorm + " must be F32, BF16, F16 or F64; got I32"}},
    {"mis-shaped",
     with_tensors([](StoredTensors& tensors) {
       tensors.at(kNorm).shape = {12, 2};
     }),
     {kNorm + " must have the shape [24]; got [12, 2]"}},
    {"missing",
     with_tensors([](StoredTensors& tensors) { tensors.erase(kNorm); }),
     {"must contain the", kNorm}},
    {"twice in the header", name_twice, {kNorm, "must not be duplicated"}},
    {"in two files", put_into_two_files, {"weight_map must list every tensor", kNorm, "second.safetensors"}},
    {"NaN, on the second rank",
     with_number(kDown, kOfRank1, std::nanf("")),
     {"model.safetensors: " + kDown + " must be finite; got nan"}},
    {"infinite, on every rank",
     with_number(kNorm, 0, -std::numeric_limits<float>::infinity()),
     {"model.safetensors: " + kNorm + " must be finite; got -inf"}},
};

const std::vector<Damage> kDamagedState{
    {"truncated", truncate, {"optimizer.safetensors", "the file is truncated"}},
    {"mis-typed",
     with_tensors([](StoredTensors& tensors) { tensors.at(kNorm + ".exp_avg").dtype = "I32"; }),
     {kNorm + ".exp_avg must be F32 or F64; got I32"}},
    {"missing",
     with_tensors([](StoredTensors& tensors) { tensors.erase(kNorm + ".exp_avg_sq"); }),
     {"must contain the tensor", kNorm + ".exp_avg_sq"}},
    {"with more tokens than a counter holds",
     with_tensors([](StoredTensors& tensors) {
       const int64_t sequences = int64_t{1} << 62;
       std::memcpy(tensors.at("progress.sequences").bytes.data(), &sequences, sizeof sequences);
     }),
     {"progress.sequences x progress.seq_len must be at most", "got 4611686018427387904 x 11"}},
    {"NaN, on the second rank",
     with_number(kDown + ".exp_avg", kOfRank1, std::nanf("")),
     {"optimizer.safetensors: " + kDown + ".exp_avg must be finite; got nan"}},
};

class DamagedCheckpoint : public BadInput {
 protected:
  DamagedCheckpoint() : sound_(checkpoint() + "/step-2") {}

  /// Copies the intact checkpoint, damages one of its files and returns the directory.
  std::string damaged(const std::string& file, const Damage& damage) const {
    const std::string directory = scratch_ / "damaged";
    fs::remove_all(directory);
    fs::copy(sound_, directory, fs::copy_options::recursive);
    damage.make(directory + "/" + file);
    return directory;
  }

  Arguments training_from(const std::string& flag, const std::string& directory) const {
    Arguments arguments = training({{flag, directory}, {"--steps", "4"}});
    arguments.erase("--save");
    return arguments;
  }

  std::map<std::string, Arguments> readers_of(const std::string& directory) const {
    return {{"generate",
             {{"--model", directory}, {"--prompt", "line"}, {"--max-new-tokens", "2"}, {"--tp", "2"}}},
            {"eval", {{"--model", directory}, {"--text", scratch_ / "text"}, {"--tp", "2"}}},
            {"train", training_from("--init", directory)}};
  }

  static std::vector<std::string> program(const std::string& command, const Arguments& arguments) {
    std::vector<std::string> argv = argv_of(command, arguments);
    argv[0] = SHARDWISE_PROGRAM;
    return argv;
  }

  /// Returns the lines of standard error without those of train's progress, `train: …`, and its table of
  /// replicas, and the planned memory that generate prints first.
  static std::vector<std::string> error_lines(const Program& program) {
    std::vector<std::string> lines;
    std::istringstream errors(program.errors());
    for (std::string line; std::getline(errors, line);) {
      const bool is_of_table =
          line.starts_with(" ") || line.starts_with("all replicas") || line.starts_with("each replica");
      if (!is_of_table && !line.starts_with("train: ") && !line.starts_with("generate: planned "))
        lines.push_back(line);
    }
    return lines;
  }

  void expect_refused_by_ranks(const std::string& command, const Arguments& arguments,
                               const Damage& damage) const {
    SCOPED_TRACE(command + ", " + damage.name);
    const auto before = listing(scratch_);
    Program run(program(command, arguments), {.environment = {mark_}});
    EXPECT_EQ(testing::exit_code(run.wait(kLimit)), 2) << run.errors();
    EXPECT_EQ(run.output(), "");
    const std::vector<std::string> lines = error_lines(run);
    ASSERT_EQ(lines.size(), 1U) << run.errors();
    EXPECT_TRUE(lines[0].starts_with("shardwise: ")) << lines[0];
    for (const std::string& part : damage.named) EXPECT_PRED2(contains, lines[0], part);
    EXPECT_TRUE(testing::processes_with(mark_).empty());
    EXPECT_EQ(listing(scratch_), before);
  }

  const std::string sound_;
  const std::string mark_ = "SHARDWISE_TEST_MARK=" + scratch_.path();
};

/// The baseline of the tests below: the intact checkpoint loads.
TEST_F(DamagedCheckpoint, LoadsWhenIntact) {
  for (const auto& [command, arguments] : readers_of(sound_)) {
    Program run(program(command, arguments));
    EXPECT_EQ(testing::exit_code(run.wait(kLimit)), 0) << run.errors();
  }
  Program resumed(program("train", training_from("--resume", sound_)));
  EXPECT_EQ(testing::exit_code(resumed.wait(kLimit)), 0) << resumed.errors();
}

TEST_F(DamagedCheckpoint, IsRejectedByEveryCommandThatReadsWeights) {
  for (const Damage& damage : kDamagedWeights) {
    const std::string directory = damaged("model.safetensors", damage);
    for (const auto& [command, arguments] : readers_of(directory)) {
      expect_refused_by_ranks(command, arguments, damage);
    }
  }
}

TEST_F(DamagedCheckpoint, IsNotResumed) {
  for (const Damage& damage : kDamagedState) {
    const std::string directory = damaged("optimizer.safetensors", damage);
    expect_refused_by_ranks("train", training_from("--resume", directory), damage);
  }
}

// Only some ranks read the damaged rows: one replica loads the weights, each its own states, and each stage
// its layers. The others wait for them.
TEST_F(DamagedCheckpoint, IsRejectedOnEveryMesh) {
  const std::vector<Arguments> meshes{{{"--tp", "2"}, {"--dp", "2"}},
                                      {{"--tp", "1"}, {"--dp", "2"}, {"--zero", "3"}},
                                      {{"--tp", "1"}, {"--pp", "2"}},
                                      {{"--tp", "2"}, {"--pp", "2"}, {"--shared-weights", "off"}},
                                      {{"--tp", "1"}, {"--dp", "2"}, {"--pp", "2"}}};
  constexpr size_t kLastRow = 23;  // of the last replica, on the last stage
  const Damage of_weight{
      "NaN", with_number(kNorm, kLastRow, std::nanf("")), {kNorm + " must be finite; got nan"}};
  const Damage of_state{"NaN of a state",
                        with_number(kNorm + ".exp_avg", kLastRow, std::nanf("")),
                        {kNorm + ".exp_avg must be finite; got nan"}};
  for (const Arguments& mesh : meshes) {
    const auto on_mesh = [&](Arguments arguments) {
      for (const auto& [flag, value] : mesh) arguments[flag] = value;
      arguments["--grad-accum"] = "4";  // enough not to be warned
      return arguments;
    };
    const std::string weights = damaged("model.safetensors", of_weight);
    expect_refused_by_ranks("train", on_mesh(training_from("--init", weights)), of_weight);
    const std::string states = damaged("optimizer.safetensors", of_state);
    expect_refused_by_ranks("train", on_mesh(training_from("--resume", states)), of_state);
  }
}

/// Returns the environment of a rank of two, as mpirun sets it: the ranks exit independently.
Program::Options by_mpirun(int rank, const std::string& job) {
  const std::string number = std::to_string(rank);
  return {.environment = {"OMPI_COMM_WORLD_RANK=" + number, "OMPI_COMM_WORLD_SIZE=2",
                          "OMPI_COMM_WORLD_LOCAL_RANK=" + number, "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                          "SHARDWISE_JOB=" + job}};
}

// mpirun kills the other ranks once a rank has exited with an error, so rank 0 must print the error before
// that.
TEST_F(DamagedCheckpoint, IsReportedBeforeAnyRankExits) {
  const std::string directory = damaged("model.safetensors", kDamagedWeights.back());
  for (const auto& [command, arguments] : readers_of(directory)) {
    Program first(program(command, arguments), by_mpirun(0, scratch_.path()));
    Program second(program(command, arguments), by_mpirun(1, scratch_.path()));
    EXPECT_EQ(testing::exit_code(second.wait(kLimit)), 2) << second.errors();
    first.send(SIGKILL);
    first.wait(kLimit);
    ASSERT_EQ(error_lines(first).size(), 1U) << first.errors();
    EXPECT_PRED2(contains, error_lines(first)[0], kNorm + " must be finite; got -inf");
    EXPECT_TRUE(error_lines(second).empty()) << second.errors();
  }
}

TEST_F(DamagedCheckpoint, LeavesAnExistingLogUnchanged) {
  const std::string log = scratch_.put("log", "of another run\n");
  for (const Damage& damage : {kDamagedWeights.front(), kDamagedWeights.back()}) {
    Arguments arguments = training_from("--init", damaged("model.safetensors", damage));
    arguments["--log"] = log;
    expect_refused_by_ranks("train", arguments, damage);
    EXPECT_EQ(test::contents(log), "of another run\n");
  }
  Arguments arguments = training_from("--init", sound_);
  arguments["--log"] = log;
  Program run(program("train", arguments));
  EXPECT_EQ(testing::exit_code(run.wait(kLimit)), 0) << run.errors();
  const std::string lines = test::contents(log);
  EXPECT_TRUE(lines.starts_with("{")) << lines;
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1 + 4) << lines;  // planned memory, steps
}

/// A finite weight whose logits overflow: every rank reads it, and the first step fails.
TEST_F(DamagedCheckpoint, LogHasThePlannedMemoryOfARunWhoseFirstStepFails) {
  const Damage overflow{"overflow", with_number(kNorm, 0, std::numeric_limits<float>::max()), {}};
  const std::string directory = damaged("model.safetensors", overflow), log = scratch_ / "log";
  std::string of_earlier_runs;
  for (const char* flag : {"--init", "--resume"}) {
    Arguments arguments = training_from(flag, directory);
    arguments["--log"] = log;
    Program run(program("train", arguments));
    EXPECT_EQ(testing::exit_code(run.wait(kLimit)), 1) << run.errors();
    EXPECT_PRED2(contains, run.errors(), "loss and gradient must be finite");
    const std::string lines = test::contents(log);
    ASSERT_TRUE(lines.starts_with(of_earlier_runs)) << lines;  // a resumed run appends
    const std::string line = lines.substr(of_earlier_runs.size());
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
    EXPECT_EQ(json::parse(line).at("expected_memory").size(), 2U) << line;
    of_earlier_runs = lines;
  }
}

}  // namespace
}  // namespace shardwise::cli::damaged_checkpoint_test
