// `shardwise plan --learn`: a machine corrected by the reports of runs on it.
#include "tests/cli/saved_machines.h"

namespace shardwise::cli::plan_learn_test {
namespace {

class PlanLearn : public SavedMachines {
 protected:
  PlanLearn() : machine_(save(2, /*seconds_per_call=*/1e-4)) {
    cache_.put("machine.json", plan::machine_text(machine_));
  }
  /// Writes a report with these times.
  std::string report(const std::string& name, double compute, double communication, double measured) const {
    return report(name, {{"tp", 2},
                         {"planned_step_seconds", compute + communication},
                         {"planned_compute_seconds", compute},
                         {"planned_communication_seconds", communication},
                         {"planned_machine", "synthetic"},
                         {"measured_step_seconds", measured}});
  }
  std::string report(const std::string& name, const json& run) const {
    return scratch_.put(name, json{{"run", run}}.dump());
  }
  Words learn(const Words& reports, const Words& more = {}) const {
    Words words{"plan", "--learn"};
    words.insert(words.end(), reports.begin(), reports.end());
    words.insert(words.end(), {"--machine", cache_ / "machine.json", "-o", out_});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  const plan::Machine machine_;
  const std::string out_ = scratch_ / "learned.json";
};

TEST_F(PlanLearn, WritesTheCorrectedMachine) {
  const Words reports{report("a", 1, 0.5, 1 * 2 + 0.5 * 3), report("b", 2, 0.1, 2 * 2 + 0.1 * 3)};
  const Outcome outcome = call(learn(reports, {"--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json found = json::parse(outcome.output);
  EXPECT_EQ(found["runs"], 2);
  EXPECT_NEAR(found["compute"].get<double>(), 2, 1e-9);
  EXPECT_NEAR(found["communication"].get<double>(), 3, 1e-9);
  EXPECT_GT(found["mean_error_before"], 0.5);
  EXPECT_NEAR(found["mean_error_after"].get<double>(), 0, 1e-9);
  EXPECT_EQ(found["machine"], out_);
  const plan::Machine learned = plan::read_machine(out_);
  EXPECT_NEAR(learned.rates_32_bit.product.at(1) / machine_.rates_32_bit.product.at(1), 0.5, 1e-9);
  EXPECT_NEAR(learned.within_node.seconds_per_call.value, 3e-4, 1e-12);
  EXPECT_EQ(learned.memory_bytes.source,
            "synthetic; learned from 2 runs: compute x 2.000, communication x 3.000");
  EXPECT_EQ(
      call(learn(reports)).output,
      "plan: of 2 runs, compute takes 2.000 times its planned time and communication 3.000 times; mean error "
      "54.2 % before, 0.0 % after; wrote " +
          out_ + "\n");
}

TEST_F(PlanLearn, ReadsTheReportOfARun) {
  const std::string file = scratch_ / "report.json";
  run(training({"train", "--model-config", scratch_ / "config.json", "--tp", "2", "--report", file}, "4"));
  const json run_of = json::parse(test::contents(file))["run"];
  const Outcome outcome = call(learn({file}, {"--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json found = json::parse(outcome.output);
  EXPECT_NEAR(found["compute"].get<double>() * run_of["planned_step_seconds"].get<double>(),
              run_of["measured_step_seconds"].get<double>(), 1e-9);
  EXPECT_EQ(found["compute"], found["communication"]);
}

TEST_F(PlanLearn, RefusesBadInput) {
  const std::string good = report("good", 1, 0.5, 2);
  const json run = json::parse(test::contents(good))["run"];
  const auto with = [&](const char* field, const json& value) {
    json changed = run;
    changed[field] = value;
    return learn({good, report("bad", changed)});
  };
  expect_refused(with("tp", 1), {"--learn must have runs of the machine's 2 ranks", "got 1 in "});
  expect_refused(with("planned_machine", "other"), {"planned for the machine 'synthetic'", "'other' in "});
  expect_refused(with("planned_step_seconds", nullptr), {"runs with a planned time"});
  expect_refused(with("measured_step_seconds", nullptr),
                 {"runs with a planned time and three steps or more"});
  expect_refused(with("planned_compute_seconds", 0), {"run.planned_compute_seconds", "above 0"});
  expect_refused(with("planned_communication_seconds", -1), {"planned_communication_seconds", "0 or more"});
  expect_refused(with("measured_step_seconds", "long"), {"measured_step_seconds", "a number"});
  expect_refused(learn({scratch_.put("empty", "{}")}), {"--learn must have files of train --report"});
  expect_refused(learn({scratch_ / "none"}), {"none"});
  expect_refused(learn({good}, {"--ranks", "2"}), {"no other flags", "got --ranks"});
  expect_refused(learn({good}, {"--out", good}), {"--out"});
  expect_refused({"plan", "--learn", good, "--out", out_}, {"a file of --machine"});
  expect_refused({"plan", "--learn", good, "--machine", cache_ / "machine.json"}, {"a file of --out"});
  expect_refused({"plan", "--model", "tiny", "--ranks", "1", "--out", out_},
                 {"reports of runs", "got none beside --out"});
  EXPECT_FALSE(fs::exists(out_));
}

}  // namespace
}  // namespace shardwise::cli::plan_learn_test
