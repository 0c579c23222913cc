#include "shardwise/plan/machine_file.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "shardwise/base/json.h"

namespace shardwise::plan {
namespace {

using base::Fields;
using nlohmann::json;
using nlohmann::ordered_json;

/// The fields of a machine's JSON object, all of whose figures have one source.
class MachineFields {
 public:
  MachineFields(const json& object, const std::string& where, std::string source)
      : fields_(object, where), source_(std::move(source)) {}

  int64_t count(const char* name, int64_t least, int64_t absent) const {
    int64_t value = absent;
    fields_.or_integer(name, value);
    if (value < least || value > kMost)
      base::throw_invalid(fields_.label(name), "an integer from " + std::to_string(least) + " to 2^40",
                          json(value));
    return value;
  }
  /// A required figure above zero.
  Figure positive(const char* name) const {
    return {checked(name, fields_.number(name), /*above=*/true), source_};
  }
  /// A figure of zero or more; zero if it is absent.
  Figure or_zero(const char* name) const {
    double value = 0;
    fields_.or_number(name, value);
    return {checked(name, value, /*above=*/false), source_};
  }
  double or_one(const char* name) const {
    double value = 1;
    fields_.or_number(name, value);
    return checked(name, value, /*above=*/true);
  }
  Algorithm algorithm() const {
    std::string name = name_of(Algorithm::ring);
    fields_.or_text("algorithm", name);
    try {
      return algorithm_of(name);
    } catch (const c10::ValueError&) {
      base::throw_invalid(fields_.label("algorithm"), "ring, two-shot or tree", json(name));
    }
  }
  /// A list of [work, rate].
  Rate rate(const char* name) const {
    std::vector<Rate::Point> points;
    const json& list = fields_.at(name);
    for (const json& point : list.is_array() ? list : json::array()) {
      const bool is_pair =
          point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number();
      if (!is_pair) base::throw_invalid(fields_.label(name), kPoints, point);
      points.push_back({point[0].get<double>(), point[1].get<double>()});
    }
    try {
      return Rate(std::move(points), source_);
    } catch (const c10::ValueError&) {
      base::throw_invalid(fields_.label(name), kPoints, list);
    }
  }
  const json& object(const char* name) const {
    const json& value = fields_.at(name);
    if (!value.is_object()) base::throw_invalid(fields_.label(name), "an object", value);
    return value;
  }
  MachineFields nested(const char* name) const { return {object(name), fields_.label(name) + ".", source_}; }
  const Fields& fields() const { return fields_; }
  const std::string& source() const { return source_; }

 private:
  static constexpr int64_t kMost = int64_t{1} << 40;
  static constexpr const char* kPoints = "a list of [work, work per second] above zero, by ascending work";

  double checked(const char* name, double value, bool above) const {
    if (!std::isfinite(value) || value < 0 || (above && value == 0) || value > 1e30)
      base::throw_invalid(fields_.label(name), above ? "above 0 and at most 1e30" : "from 0 to 1e30",
                          json(value));
    return value;
  }

  Fields fields_;
  std::string source_;
};

ReadRates read_rates_of(const MachineFields& fields) {
  return {fields.rate("from_memory"), fields.rate("from_cache")};
}

CachedAttentionRates cached_attention_of(const MachineFields& fields) {
  return {read_rates_of(fields.nested("one_query")), read_rates_of(fields.nested("shared"))};
}

InferenceRates inference_of(const MachineFields& fields) {
  return {.bf16 = read_rates_of(fields.nested("bf16")),
          .int8 = read_rates_of(fields.nested("int8")),
          .int4 = read_rates_of(fields.nested("int4")),
          .cached_attention = cached_attention_of(fields.nested("cached_attention")),
          .reading = fields.rate("reading"),
          .seconds_per_product = fields.or_zero("seconds_per_product").value,
          .seconds_per_block = fields.or_zero("seconds_per_block").value,
          .seconds_per_text = fields.or_zero("seconds_per_text").value};
}

OperationRates rates_of(const MachineFields& fields) {
  return {.flop_per_second = fields.positive("flop_per_second"),
          .product = fields.rate("product"),
          .input_gradient = fields.rate("input_gradient"),
          .weight_gradient = fields.rate("weight_gradient"),
          .attention = fields.rate("attention"),
          .attention_backward = fields.rate("attention_backward"),
          .elementwise = fields.rate("elementwise")};
}

Link link_of(const MachineFields& fields) {
  return {.bytes_per_second = fields.positive("bytes_per_second"),
          .efficiency = {fields.or_one("efficiency"), fields.source()},
          .seconds_per_call = fields.or_zero("seconds_per_call"),
          .seconds_per_hop = fields.or_zero("seconds_per_hop"),
          .processor_share = fields.or_zero("processor_share")};
}

ordered_json to_json(const Rate& rate) {
  ordered_json list = ordered_json::array();
  for (const auto& [work, per_second] : rate.points()) list.push_back({work, per_second});
  return list;
}

ordered_json to_json(const ReadRates& rates) {
  return {{"from_memory", to_json(rates.from_memory)}, {"from_cache", to_json(rates.from_cache)}};
}

ordered_json to_json(const InferenceRates& rates) {
  return {{"bf16", to_json(rates.bf16)},
          {"int8", to_json(rates.int8)},
          {"int4", to_json(rates.int4)},
          {"cached_attention",
           {{"one_query", to_json(rates.cached_attention.one_query)},
            {"shared", to_json(rates.cached_attention.shared)}}},
          {"reading", to_json(rates.reading)},
          {"seconds_per_product", rates.seconds_per_product},
          {"seconds_per_block", rates.seconds_per_block},
          {"seconds_per_text", rates.seconds_per_text}};
}

ordered_json to_json(const OperationRates& rates) {
  return {{"flop_per_second", rates.flop_per_second.value},
          {"product", to_json(rates.product)},
          {"input_gradient", to_json(rates.input_gradient)},
          {"weight_gradient", to_json(rates.weight_gradient)},
          {"attention", to_json(rates.attention)},
          {"attention_backward", to_json(rates.attention_backward)},
          {"elementwise", to_json(rates.elementwise)}};
}

ordered_json to_json(const Link& link) {
  return {{"bytes_per_second", link.bytes_per_second.value},
          {"efficiency", link.efficiency.value},
          {"seconds_per_call", link.seconds_per_call.value},
          {"seconds_per_hop", link.seconds_per_hop.value},
          {"processor_share", link.processor_share.value}};
}

Machine machine_of(const json& object, const std::string& path) {
  const std::string where = path + ": ";
  if (!object.is_object()) base::throw_invalid(where + "the file", "a JSON object", object);
  const json* const given = Fields(object, where).find("source");
  const std::string source = given && given->is_string() ? given->get<std::string>() : path;
  const MachineFields fields(object, where, source);
  Machine machine;
  machine.name = fields.fields().text("name");
  machine.devices_per_node = fields.count("devices_per_node", /*least=*/1, /*absent=*/1);
  fields.fields().or_flag("shares_memory", machine.shares_memory);
  machine.wgrad_operand_bytes = fields.count("wgrad_operand_bytes", /*least=*/0, /*absent=*/0);
  machine.memory_bytes = fields.positive("memory_bytes");
  machine.reserved_bytes = fields.or_zero("reserved_bytes");
  machine.memory_bytes_per_second = fields.positive("memory_bytes_per_second");
  machine.update_bytes_per_second = fields.positive("update_bytes_per_second");
  machine.seconds_per_operation = fields.or_zero("seconds_per_operation");
  machine.rates_16_bit = rates_of(fields.nested("rates_16_bit"));
  machine.rates_32_bit = rates_of(fields.nested("rates_32_bit"));
  machine.algorithm = fields.algorithm();
  if (machine.devices_per_node > 1) machine.within_node = link_of(fields.nested("within_node"));
  if (fields.fields().find("across_nodes")) machine.across_nodes = link_of(fields.nested("across_nodes"));
  if (fields.fields().find("inference")) machine.inference = inference_of(fields.nested("inference"));
  if (fields.fields().find("collectives")) {
    const MachineFields measured = fields.nested("collectives");
    machine.collectives = {measured.count("ranks", /*least=*/2, /*absent=*/machine.devices_per_node),
                           measured.rate("all_reduce"), measured.rate("all_gather"),
                           measured.rate("reduce_scatter")};
  }
  return machine;
}

}  // namespace

Machine parse_machine(const std::string& text, const std::string& where) {
  return machine_of(base::parse_json(text, where), where);
}

Machine read_machine(const std::string& path) {
  return machine_of(base::read_json(path), path);
}

std::string machine_text(const Machine& machine) {
  ordered_json object{{"name", machine.name},
                      {"source", machine.memory_bytes.source},
                      {"devices_per_node", machine.devices_per_node},
                      {"shares_memory", machine.shares_memory},
                      {"wgrad_operand_bytes", machine.wgrad_operand_bytes},
                      {"memory_bytes", machine.memory_bytes.value},
                      {"reserved_bytes", machine.reserved_bytes.value},
                      {"memory_bytes_per_second", machine.memory_bytes_per_second.value},
                      {"update_bytes_per_second", machine.update_bytes_per_second.value},
                      {"seconds_per_operation", machine.seconds_per_operation.value},
                      {"rates_16_bit", to_json(machine.rates_16_bit)},
                      {"rates_32_bit", to_json(machine.rates_32_bit)}};
  object["algorithm"] = name_of(machine.algorithm);
  if (machine.devices_per_node > 1) object["within_node"] = to_json(machine.within_node);
  if (machine.across_nodes) object["across_nodes"] = to_json(*machine.across_nodes);
  if (machine.inference) object["inference"] = to_json(*machine.inference);
  if (const auto& measured = machine.collectives)
    object["collectives"] = {{"ranks", measured->ranks},
                             {"all_reduce", to_json(measured->all_reduce)},
                             {"all_gather", to_json(measured->all_gather)},
                             {"reduce_scatter", to_json(measured->reduce_scatter)}};
  return object.dump(2) + "\n";
}

}  // namespace shardwise::plan
