#include "shardwise/cli/tune_products.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/bench/product_libraries.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

using bench::LibrariesMeasured;

/// Shows progress on the progress line, which is erased at the end.
std::vector<LibrariesMeasured> measure_with_progress(const ProductTuning& tuning, const comm::Group& group) {
  ProgressLine line;
  const size_t pairs = tuning.shapes.size() * tuning.rows.size();
  return bench::measure_libraries(
      tuning.shapes, tuning.rows, tuning.seconds, group,
      [&](size_t done, int64_t repetition, int64_t repetitions) {
        line.show(fmt::format("bench products: product {} of {}, repetition {} of {}", done + 1, pairs,
                              repetition, repetitions));
      });
}

void save(const std::vector<LibrariesMeasured>& measured) {
  std::vector<kernels::MeasuredProduct> products;
  for (const LibrariesMeasured& of : measured) products.push_back({of.shape, of.fastest()});
  kernels::save_product_choice(products);
}

std::string to_text(const ProductTuning& tuning, int64_t ranks,
                    const std::vector<LibrariesMeasured>& measured) {
  Row heading{"weight", "product", "m x n x k"};
  for (const auto library : kernels::product_libraries()) heading.push_back(name(library) + " ms");
  heading.emplace_back("fastest");
  std::vector<Row> rows{heading};
  for (const LibrariesMeasured& of : measured) {
    const auto& [form, m, n, k] = of.shape;
    Row row{of.weight, name(form), fmt::format("{}x{}x{}", m, n, k)};
    for (const bench::Measured& library : of.libraries)
      row.push_back(fmt::format("{:.3f}", library.raw.median_us / 1e3));
    row.push_back(name(of.fastest()));
    rows.push_back(row);
  }
  return fmt::format("{}, {} ranks, fp32, {}; medians on the slowest rank\n{}saved for later runs in {}\n",
                     tuning.preset, ranks, base::cpu_name(), table(rows), kernels::product_choice_file());
}

std::string to_json(const ProductTuning& tuning, int64_t ranks,
                    const std::vector<LibrariesMeasured>& measured) {
  nlohmann::ordered_json json{{"cpu", base::cpu_name()},
                              {"preset", tuning.preset},
                              {"tp", ranks},
                              {"file", kernels::product_choice_file()},
                              {"products", nlohmann::ordered_json::array()}};
  for (const LibrariesMeasured& of : measured) {
    nlohmann::ordered_json libraries;
    for (const bench::Measured& library : of.libraries) libraries[library.name] = to_json(library.raw);
    json["products"].push_back({{"weight", of.weight},
                                {"product", name(of.shape.form)},
                                {"m", of.shape.m},
                                {"n", of.shape.n},
                                {"k", of.shape.k},
                                {"libraries", libraries},
                                {"fastest", name(of.fastest())}});
  }
  return json_line(json);
}

}  // namespace

void tune_products(const ProductTuning& tuning, const comm::Group& group) {
  const std::vector<LibrariesMeasured> measured = measure_with_progress(tuning, group);
  if (group.rank() != 0) return;
  save(measured);
  print(tuning.json ? to_json(tuning, group.size(), measured) : to_text(tuning, group.size(), measured));
}

}  // namespace shardwise::cli
