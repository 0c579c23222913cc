// Built-in machines, rates, and machines in files.
#include "shardwise/plan/machine.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardwise/plan/machine_file.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::plan::machine_test {
namespace {

using nlohmann::json;

std::vector<const Rate*> rates_of(const Machine& m) {
  std::vector<const Rate*> all;
  for (const OperationRates* rates : {&m.rates_16_bit, &m.rates_32_bit})
    for (const Rate* rate : {&rates->product, &rates->input_gradient, &rates->weight_gradient,
                             &rates->attention, &rates->attention_backward, &rates->elementwise})
      all.push_back(rate);
  return all;
}

TEST(Rate, IsLinearInTheLogarithmOfTheWork) {
  const Rate rate({{10, 100}, {1000, 300}}, "here");
  EXPECT_DOUBLE_EQ(rate.seconds(10), 0.1);
  EXPECT_DOUBLE_EQ(rate.seconds(100), 100 / 200.0);
  EXPECT_DOUBLE_EQ(rate.seconds(1000), 1000 / 300.0);
  EXPECT_DOUBLE_EQ(rate.seconds(3000), 10);  // the largest one's rate
  EXPECT_DOUBLE_EQ(rate.seconds(1), 0.1);    // the smallest one's time
}

TEST(Rate, RefusesPointsThatAreNotAscendingAndPositive) {
  using Points = std::vector<Rate::Point>;
  for (const Points& points :
       {Points{}, {{0, 1}}, {{1, 0}}, {{-1, 1}}, {{1, 1}, {1, 2}}, {{2, 1}, {1, 1}}, {{1, NAN}}})
    EXPECT_THROW(Rate(points, "here"), c10::ValueError) << points.size();
}

TEST(Machine, LargerProductsHaveALargerPartOfThePeakRate) {
  for (const std::string& name : machine_names()) {
    const Machine machine = built_in_machine(name);
    double before = 0;
    for (double flop = 1e6; flop < 1e16; flop *= 1.7) {
      const double fraction =
          flop / machine.rates_16_bit.product.seconds(flop) / machine.rates_16_bit.flop_per_second.value;
      EXPECT_GE(fraction, before) << name << " " << flop;
      EXPECT_LE(fraction, 1) << name;
      before = fraction * (1 - 1e-12);
    }
  }
}

TEST(Machine, EveryFigureHasASource) {
  for (const std::string& name : machine_names()) {
    const Machine m = built_in_machine(name);
    EXPECT_EQ(m.name, name);
    const Link &within = m.within_node, &across = m.across_nodes.value();
    for (const Figure& figure :
         {m.memory_bytes, m.reserved_bytes, m.memory_bytes_per_second, m.update_bytes_per_second,
          m.seconds_per_operation, m.rates_16_bit.flop_per_second, m.rates_32_bit.flop_per_second,
          within.bytes_per_second, within.efficiency, within.seconds_per_call, within.seconds_per_hop,
          within.processor_share, across.bytes_per_second, across.efficiency, across.seconds_per_call,
          across.seconds_per_hop, across.processor_share}) {
      EXPECT_GT(figure.value, 0) << name;
      EXPECT_FALSE(figure.source.empty()) << name;
    }
    for (const Rate* rate : rates_of(m)) EXPECT_FALSE(rate->source().empty()) << name;
  }
}

TEST(Machine, RefusesUnknownNames) {
  EXPECT_THROW(built_in_machine("h1000"), c10::ValueError);
  EXPECT_THROW(built_in_machine(""), c10::ValueError);
}

/// A machine whose every field differs from its default.
Machine whole_machine() {
  Machine m = built_in_machine("b200");
  m.shares_memory = true;
  m.wgrad_operand_bytes = 4;
  const auto rates = [](double first) {
    return ReadRates{Rate({{1, first}, {2, first + 1}}, ""), Rate({{1, first + 2}}, "")};
  };
  m.inference = InferenceRates{
      rates(10), rates(20), rates(30), {rates(40), rates(50)}, Rate({{1, 9}, {2, 8}}, ""), 7, 6, 5};
  m.collectives = MeasuredCollectives{3, Rate({{1, 2}}, ""), Rate({{3, 4}, {5, 6}}, ""), Rate({{7, 8}}, "")};
  return m;
}

TEST(MachineFile, HasEveryFigure) {
  const test::TemporaryDirectory scratch;
  std::vector<Machine> machines = {whole_machine()};
  for (const std::string& name : machine_names()) machines.push_back(built_in_machine(name));
  for (const Machine& m : machines) {
    const std::string text = machine_text(m);
    const Machine read = read_machine(scratch.put("machine.json", text));
    EXPECT_EQ(machine_text(read), text);
    EXPECT_EQ(read.memory_bytes.source, m.memory_bytes.source);
    EXPECT_EQ(read.usable_bytes(), m.usable_bytes());
    EXPECT_EQ(read.shares_memory, m.shares_memory);
    EXPECT_EQ(read.wgrad_operand_bytes, m.wgrad_operand_bytes);
    for (size_t i = 0; i < rates_of(m).size(); ++i)
      for (const double work : {1e3, 1e8, 1e10, 1e14})
        EXPECT_DOUBLE_EQ(rates_of(read)[i]->seconds(work), rates_of(m)[i]->seconds(work));
  }
}

TEST(MachineFile, NeedsNoNetworkNorAnyLinkForOneDevice) {
  const test::TemporaryDirectory scratch;
  json object = json::parse(machine_text(built_in_machine("h100")));
  object.erase("across_nodes");
  EXPECT_FALSE(read_machine(scratch.put("machine.json", object.dump())).across_nodes);
  object.erase("within_node");
  object["devices_per_node"] = 1;
  EXPECT_EQ(read_machine(scratch.put("machine.json", object.dump())).devices_per_node, 1);
}

TEST(MachineFile, NamesTheFieldAndTheRuleOfWhatItRefuses) {
  const test::TemporaryDirectory scratch;
  const json good = json::parse(machine_text(whole_machine()));
  const auto error = [&](const std::string& text) {
    return test::error_text<c10::ValueError>([&] { read_machine(scratch.put("machine.json", text)); });
  };
  const auto refused = [&](const char* pointer, const json& value, const std::string& rule) {
    json object = good;
    object[json::json_pointer(pointer)] = value;
    const std::string text = error(object.dump());
    EXPECT_NE(text.find(rule), std::string::npos) << pointer << ": " << text;
    const std::string field = std::string(pointer).substr(std::string(pointer).rfind('/') + 1);
    EXPECT_NE(text.find(field), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  };
  EXPECT_NE(error("[]").find("a JSON object"), std::string::npos);
  EXPECT_NE(error("{").find("machine.json"), std::string::npos);
  EXPECT_NE(error("{}").find("name must be given"), std::string::npos) << error("{}");
  EXPECT_THROW(read_machine(scratch / "none.json"), c10::ValueError);
  refused("/memory_bytes", 0, "above 0");
  refused("/memory_bytes", "much", "a number");
  refused("/memory_bytes", 1e31, "at most 1e30");
  refused("/reserved_bytes", -1, "from 0 to 1e30");
  refused("/devices_per_node", 0, "from 1");
  refused("/shares_memory", 1, "true or false");
  refused("/memory_bytes_per_second", nullptr, "must be given");
  refused("/rates_16_bit", 3, "an object");
  refused("/rates_16_bit/flop_per_second", -1, "above 0");
  for (const json& points : {json(7), json::array(), json{{1}}, json{{1, 2, 3}}, json{{1, 0}},
                             json{{2, 1}, {1, 1}}, json{{"a", 1}}})
    refused("/rates_32_bit/attention", points, "a list of [work, work per second]");
  refused("/within_node/bytes_per_second", 0, "above 0");
  refused("/across_nodes/seconds_per_hop", -1e-6, "from 0");
  refused("/collectives/ranks", 1, "from 2");
  refused("/collectives/all_gather", json::array(), "a list of [work, work per second]");
}

}  // namespace
}  // namespace shardwise::plan::machine_test
