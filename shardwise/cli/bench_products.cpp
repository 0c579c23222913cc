// `shardwise bench products`: flags, table and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/error.h"
#include "shardwise/base/isa.h"
#include "shardwise/bench/products.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/quantization_flags.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"
#include "shardwise/cli/tune_products.h"
#include "shardwise/config/parameters.h"
#include "shardwise/kernels/product_library.h"

namespace shardwise::cli {
namespace {

using bench::ProductBench, bench::RowsMeasured, bench::WeightFormat, bench::WeightMeasured,
    bench::WeightShape;

constexpr int64_t kMostRows = 1 << 14;
constexpr const char* kName = "bench products";
constexpr const char* kFormats = "bf16,int8,int4";
constexpr const char* kRows = "1,2,4,8,16,64,512";
constexpr const char* kTunedRows = "256,512,2048";  // those of training

struct ProductsOptions {
  int64_t tp = 2;
  std::string preset = "llama-3.2-1b";
  std::optional<std::string> weights, formats, rows;
  std::optional<int64_t> group_size;
  std::optional<std::string> activations;
  double seconds = 2;
  bool tune = false, json = false;
};

void add_flags(Flags& flags, ProductsOptions& o) {
  add_tp_flag(flags, o.tp);
  flags.value("--preset NAME", o.preset, fmt::format("the model whose shapes to use [{}]", o.preset));
  flags.value("--weights LIST", o.weights, "the weights to measure, such as qkv_proj,lm_head [all]");
  flags.value("--formats LIST", o.formats, fmt::format("of fp32, bf16, int8, int4 [{}]", kFormats));
  flags.value("--group-size N", o.group_size,
              "input features per scale: 32, 64 or 128 [128; int8: a scale per row]");
  flags.value("--activations NAME", o.activations, kActivationsHelp);
  flags.value("--rows LIST", o.rows,
              fmt::format("numbers of rows to multiply [{}; with --tune {}]", kRows, kTunedRows));
  flags.value("--seconds S", o.seconds,
              "time per weight and format, with --tune and number of rows; at least five repetitions [2]");
  flags.on_off(
      "--tune", o.tune,
      "instead time fp32 products of a training step with each library, and save for later runs which "
      "is fastest");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

/// Returns rank 0's shards, the largest, of the weights of one layer and of the head.
std::vector<WeightShape> shapes_of(const config::Config& config, int64_t tp) {
  std::vector<WeightShape> shapes;
  std::optional<WeightShape> embedding;
  const config::ParameterTable table(config, config::make_layout(config, static_cast<int>(tp)));
  for (const config::ParameterInfo& info : table) {
    if (info.shape.size() != 2) continue;
    const std::vector<int64_t> local = info.rule.local_shape(info.shape, /*rank=*/0);
    const WeightShape shape{config::module_name(info.name), local[0], local[1]};
    if (shape.name == "embed_tokens") embedding = shape;
    const bool is_of_layer_0 = info.name.starts_with("model.layers.0.");
    if (is_of_layer_0 || shape.name == "lm_head") shapes.push_back(shape);
  }
  if (config.tie_word_embeddings) shapes.push_back({"lm_head", embedding->outputs, embedding->inputs});
  return shapes;
}

/// Errors: c10::ValueError if `names` has one that no weight has.
std::vector<WeightShape> selected(const std::vector<WeightShape>& shapes,
                                  const std::vector<std::string>& names) {
  std::vector<WeightShape> some;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(shapes, name, &WeightShape::name);
    std::vector<std::string> known;
    for (const WeightShape& shape : shapes) known.push_back(shape.name);
    TORCH_CHECK_VALUE(found != shapes.end(), "bench products: --weights must list some of ",
                      fmt::to_string(fmt::join(known, ", ")), "; got '", base::shortened(name), "' [SW0707]");
    some.push_back(*found);
  }
  return some;
}

WeightFormat format_of(const std::string& name, const ProductsOptions& o) {
  check_choice(kName, "--formats", name, {"fp32", "bf16", "int8", "int4"});
  if (name == "fp32") return {name, at::kFloat};
  if (name == "bf16") return {name, at::kBFloat16};
  std::optional q = quantization_of(kName, name == "int8" ? 8 : 4, o.group_size);
  set_activations_(q, kName, o.activations.value_or("precise"));
  return {
      name, at::kBFloat16,
      quant::Format{.bits = q->bits, .group_size = q->group_size, .int8_activations = q->int8_activations}};
}

/// Errors: c10::ValueError naming the flag and its rule.
ProductBench bench_of(const ProductsOptions& o) {
  check_range(kName, "--tp", o.tp, 1, kMaxBenchRanks);
  check_seconds(kName, o.seconds);
  const config::Config config = config::preset(o.preset);
  config::check_ranks(kName, config, o.tp);
  ProductBench bench{
      .shapes = shapes_of(config, o.tp),
      .formats = {},
      .rows = integers_of(kName, "--rows", o.rows.value_or(o.tune ? kTunedRows : kRows), 1, kMostRows),
      .seconds = o.seconds};
  if (o.weights) bench.shapes = selected(bench.shapes, parts_of(*o.weights));
  if (o.tune) return bench;
  for (const std::string& name : parts_of(o.formats.value_or(kFormats)))
    bench.formats.push_back(format_of(name, o));
  return bench;
}

/// Errors: c10::ValueError naming the flag and its rule.
void check_tuning(const ProductsOptions& o) {
  if (!o.tune) return;
  TORCH_CHECK_VALUE(
      !o.formats && !o.group_size && !o.activations,
      "bench products: --tune needs neither --formats nor --group-size nor --activations, because "
      "only fp32 products have a choice of libraries; got ",
      o.formats      ? "--formats"
      : o.group_size ? "--group-size"
                     : "--activations",
      " [SW0751]");
}

/// Rates of all ranks together, in 10⁹ per second.
struct Rates {
  double read, arithmetic;                  // what the probes reach
  double product_read, product_arithmetic;  // what a product reaches

  Rates(int64_t tp, const WeightMeasured& weight, const RowsMeasured& of) {
    const auto ranks = static_cast<double>(tp);
    const auto rate = [=](double count, const bench::Measured& m) {
      return ranks * count / m.raw.median_us / 1e3;
    };
    const auto bytes = static_cast<double>(weight.bytes);
    const double elements = static_cast<double>(weight.shape.outputs * weight.shape.inputs);
    read = rate(bytes, weight.read);
    arithmetic = rate(static_cast<double>(weight.arithmetic_operations), weight.arithmetic);
    product_read = rate(bytes, of.product);
    product_arithmetic = rate(2 * static_cast<double>(of.rows) * elements, of.product);
  }
};

std::string to_text(const ProductsOptions& o, const std::vector<WeightMeasured>& measured) {
  std::vector<Row> rows{{"weight", "format", "rows", "ms", "GB/s", "of read", "GFLOP/s", "of peak", "code"}};
  for (const WeightMeasured& weight : measured) {
    const Rates probes(o.tp, weight, weight.rows.front());
    rows.push_back({fmt::format("{} {}x{}", weight.shape.name, weight.shape.outputs, weight.shape.inputs),
                    weight.format, "", "", fmt::format("{:.1f}", probes.read), "",
                    fmt::format("{:.0f}", probes.arithmetic), "", "limits: reading, " + weight.instruction});
    for (const RowsMeasured& of : weight.rows) {
      const Rates rates(o.tp, weight, of);
      rows.push_back({"", "", std::to_string(of.rows), fmt::format("{:.3f}", of.product.raw.median_us / 1e3),
                      fmt::format("{:.1f}", rates.product_read),
                      fmt::format("{:.0f}%", 100 * rates.product_read / rates.read),
                      fmt::format("{:.0f}", rates.product_arithmetic),
                      fmt::format("{:.0f}%", 100 * rates.product_arithmetic / rates.arithmetic), of.code});
    }
  }
  return fmt::format("{}, {} ranks, {}, {}; medians on the slowest rank, rates of all ranks together\n",
                     o.preset, o.tp, base::name_of(base::best_isa()), base::cpu_name()) +
         table(rows);
}

nlohmann::ordered_json to_json(const WeightMeasured& weight) {
  nlohmann::ordered_json json{{"weight", weight.shape.name},
                              {"outputs", weight.shape.outputs},
                              {"inputs", weight.shape.inputs},
                              {"format", weight.format},
                              {"bytes", weight.bytes},
                              {"repetitions", weight.read.repetitions},
                              {"read", to_json(weight.read.raw)},
                              {"arithmetic", to_json(weight.arithmetic.raw)},
                              {"arithmetic_operations", weight.arithmetic_operations},
                              {"instruction", weight.instruction},
                              {"products", nlohmann::ordered_json::array()}};
  for (const RowsMeasured& of : weight.rows)
    json["products"].push_back({{"rows", of.rows}, {"code", of.code}, {"time", to_json(of.product.raw)}});
  return json;
}

std::string to_json(const ProductsOptions& o, const std::vector<WeightMeasured>& measured) {
  nlohmann::ordered_json json{{"cpu", base::cpu_name()},
                              {"isa", base::name_of(base::best_isa())},
                              {"preset", o.preset},
                              {"tp", o.tp},
                              {"weights", nlohmann::ordered_json::array()}};
  for (const WeightMeasured& weight : measured) json["weights"].push_back(to_json(weight));
  return json_line(json);
}

}  // namespace

int bench_products_command(const Call& call) {
  ProductsOptions o;
  RankOptions ranks;
  Flags flags(kName, "Times products of a model's weights, in every format and for several numbers of rows.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate(kName, ranks);
  check_tuning(o);
  const ProductBench measurement = bench_of(o);
  if (o.tune) prepare_measured_file(kName, "--tune", kernels::product_choice_file());
  return run_on_ranks({launch_context_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    if (o.tune)
      return tune_products({o.preset, measurement.shapes, measurement.rows, o.seconds, o.json}, group);
    std::vector<WeightMeasured> measured;
    {
      ProgressLine line;
      const size_t weights = measurement.shapes.size() * measurement.formats.size();
      measured = bench::measure_products(
          measurement, group, [&](size_t done, int64_t repetition, int64_t repetitions) {
            line.show(fmt::format("{}: weight {} of {}, repetition {} of {}", kName, done + 1, weights,
                                  repetition, repetitions));
          });
    }
    if (group.rank() == 0) print(o.json ? to_json(o, measured) : to_text(o, measured));
  });
}

}  // namespace shardwise::cli
