// `shardwise profile products`: flags, table and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/isa.h"
#include "shardwise/bench/products.h"
#include "shardwise/bench/square_products.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile.h"
#include "shardwise/cli/profile_ranks.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/table.h"
#include "shardwise/plan/operation_time.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kProfileProducts = "profile products";
constexpr int64_t kMostSize = 1 << 14;

struct ProductProfileOptions {
  ProfileRanks ranks{"1"};
  std::string sizes = "64:4096", rows = "1,2,4,8,16,64,256,1024", dtype = "bf16";
  int64_t hidden = 1024;
  bool json = false;

  int64_t element_bytes() const { return dtype == "fp32" ? 4 : 2; }
  /// FLOP of [rows, h] by [h, 4h].
  double rows_flop(int64_t rows_count) const {
    return 2.0 * static_cast<double>(rows_count) * 4.0 * static_cast<double>(hidden * hidden);
  }
};

void add_flags(Flags& flags, ProductProfileOptions& o) {
  flags.value(
      "--sizes LIST", o.sizes,
      fmt::format("of square matrices: a list, or the first and the last, doubled between [{}]", o.sizes));
  flags.value("--rows LIST", o.rows, fmt::format("of [rows, h] by [h, 4h] [{}]", o.rows));
  flags.value("--hidden N", o.hidden, fmt::format("h [{}]", o.hidden));
  flags.value("--dtype NAME", o.dtype, fmt::format("fp32 or bf16 [{}]", o.dtype));
  flags.on_off("--json", o.json, "print one JSON object instead of tables");
  add_ranks_flags(flags, o.ranks);
}

/// Returns the sizes of "64:4096" or of "64,100".
std::vector<int64_t> sizes_of(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return integers_of(kProfileProducts, "--sizes", text, 1, kMostSize);
  const auto one = [&](const std::string& part, int64_t least) {
    int64_t size = 0;
    read_value(std::string(kProfileProducts) + ": --sizes", part, size);
    check_range(kProfileProducts, "--sizes", size, least, kMostSize);
    return size;
  };
  const int64_t first = one(text.substr(0, colon), 1), last = one(text.substr(colon + 1), first);
  std::vector<int64_t> sizes;
  for (int64_t size = first; size <= last; size *= 2) sizes.push_back(size);
  return sizes;
}

/// A product and what limits it, for one rank.
struct ProductRow {
  bool is_square;
  int64_t size;  // n, or rows
  double flop, flop_per_second, roof;
  std::string code = "";  // that computed it
};

/// The products of one number of ranks, all of which compute at once.
struct ProductTeam {
  int64_t ranks;
  bool is_oversubscribed;
  double peak, bytes_per_second;  // of arithmetic, and of reading memory, at best
  std::string peak_source;
  std::vector<ProductRow> rows;
};

double square_flop(int64_t n) {
  return 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
}

ProductTeam team_of(const ProductProfileOptions& o, const bench::RankTeam& team,
                    const bench::SquaresMeasured& squares, const bench::WeightMeasured& weight) {
  const auto per_second = [](double work, const bench::Measured& m) { return work / m.raw.median_us * 1e6; };
  const auto at_best = [](double work, const bench::Measured& m) { return work / m.raw.best_us * 1e6; };
  const double peak = at_best(static_cast<double>(squares.arithmetic_operations), squares.arithmetic),
               read = at_best(static_cast<double>(weight.bytes), weight.read);
  ProductTeam found{team.ranks, team.is_oversubscribed, peak, read, squares.instruction, {}};
  for (const auto& [n, product] : squares.sizes) {
    const double flop = square_flop(n);
    found.rows.push_back({true, n, flop, per_second(flop, product), peak, "not packed"});
  }
  for (const bench::RowsMeasured& one : weight.rows) {
    const double flop = o.rows_flop(one.rows);
    const double by_memory = at_best(flop, weight.read);
    found.rows.push_back(
        {false, one.rows, flop, per_second(flop, one.product), std::min(peak, by_memory), one.code});
  }
  return found;
}

/// A product of [rows, in] and [out, in] on a described machine.
ProductRow modeled_row(bool is_square, int64_t rows, int64_t in, int64_t out, const plan::Machine& machine,
                       int64_t element_bytes) {
  const double flop = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  const int64_t bytes = (rows * in + in * out + rows * out) * element_bytes;
  const plan::Operation product{.name = "product",
                                .kind = plan::Operation::Kind::product,
                                .forward = {flop, bytes},
                                .input_gradient = {},
                                .weight_gradient = {},
                                .recomputed = {}};
  const double seconds = plan::OperationTime(machine, element_bytes).forward(product);
  const double by_memory = flop / static_cast<double>(bytes) * machine.memory_bytes_per_second.value;
  const double peak = machine.rates(element_bytes).flop_per_second.value;
  return {is_square, rows, flop, flop / seconds, std::min(peak, by_memory)};
}

ProductTeam modeled_team(const ProductProfileOptions& o, const plan::Machine& machine,
                         const std::vector<int64_t>& sizes, const std::vector<int64_t>& rows) {
  const plan::Figure& peak = machine.rates(o.element_bytes()).flop_per_second;
  ProductTeam team{1, false, peak.value, machine.memory_bytes_per_second.value, peak.source, {}};
  for (const int64_t n : sizes) team.rows.push_back(modeled_row(true, n, n, n, machine, o.element_bytes()));
  for (const int64_t count : rows)
    team.rows.push_back(modeled_row(false, count, o.hidden, 4 * o.hidden, machine, o.element_bytes()));
  return team;
}

std::string to_text(const ProductProfileOptions& o, const ProductTeam& team) {
  std::vector<Row> cells{{"product", "GFLOP/s", "roof", "of roof"}};
  const bool has_code = !team.rows.front().code.empty();
  if (has_code) cells[0].emplace_back("code");
  for (const ProductRow& row : team.rows) {
    const std::string shape = row.is_square ? fmt::format("{0} x {0} x {0}", row.size)
                                            : fmt::format("{} x {} x {}", row.size, o.hidden, 4 * o.hidden);
    Row& line = cells.emplace_back(Row{shape, fmt::format("{:.1f}", row.flop_per_second / 1e9),
                                       fmt::format("{:.1f}", row.roof / 1e9),
                                       fmt::format("{:.0f} %", 100 * row.flop_per_second / row.roof)});
    if (has_code) line.push_back(row.code);
  }
  return fmt::format("{} rank{}{}: arithmetic {:.1f} GFLOP/s ({}), memory {:.1f} GB/s, each\n", team.ranks,
                     team.ranks == 1 ? "" : "s at once", team.is_oversubscribed ? ", oversubscribed" : "",
                     team.peak / 1e9, team.peak_source, team.bytes_per_second / 1e9) +
         table(cells);
}

ordered_json to_json(const ProductTeam& team) {
  ordered_json json{{"ranks", team.ranks},
                    {"oversubscribed", team.is_oversubscribed},
                    {"peak_flop_per_second", team.peak},
                    {"peak_source", team.peak_source},
                    {"memory_bytes_per_second", team.bytes_per_second},
                    {"squares", ordered_json::array()},
                    {"rows", ordered_json::array()}};
  for (const ProductRow& row : team.rows) {
    ordered_json one{{row.is_square ? "n" : "rows", row.size},
                     {"flop", row.flop},
                     {"flop_per_second", row.flop_per_second},
                     {"roof_flop_per_second", row.roof}};
    if (!row.code.empty()) one["code"] = row.code;
    json[row.is_square ? "squares" : "rows"].push_back(one);
  }
  return json;
}

/// `machine`: nullopt if the teams are measured.
std::string report(const ProductProfileOptions& o, const std::vector<ProductTeam>& teams,
                   const std::optional<std::string>& machine) {
  if (!o.json) {
    std::string text = machine
                           ? fmt::format("{}, {}: {}, {}\n", kProfileProducts, kByModel, *machine, o.dtype)
                           : fmt::format("{}: {}, {}, {}; medians on the slowest rank\n", kProfileProducts,
                                         o.dtype, base::name_of(base::best_isa()), base::cpu_name());
    for (const ProductTeam& team : teams) text += to_text(o, team);
    return text;
  }
  ordered_json json{{"command", kProfileProducts}, {"measured", !machine}};
  if (machine) {
    json["machine"] = *machine;
    json["note"] = kByModel;
  } else {
    json["cpu"] = base::cpu_name();
    json["isa"] = base::name_of(base::best_isa());
  }
  json["dtype"] = o.dtype;
  json["hidden"] = o.hidden;
  json["teams"] = ordered_json::array();
  for (const ProductTeam& team : teams) json["teams"].push_back(to_json(team));
  return json_line(json);
}

ProductTeam measure_team(const ProductProfileOptions& o, const bench::RankTeam& team,
                         const std::vector<int64_t>& sizes, const std::vector<int64_t>& rows) {
  ProgressLine line;
  const auto show = [&](const char* what, int64_t done, int64_t repetitions) {
    line.show(fmt::format("{}: {} ranks, {}, repetition {} of {}", kProfileProducts, team.ranks, what, done,
                          repetitions));
  };
  const at::ScalarType dtype = o.dtype == "fp32" ? at::kFloat : at::kBFloat16;
  const bench::SquaresMeasured squares =
      bench::measure_squares(dtype, sizes, o.ranks.seconds_each(), *team.group,
                             [&](int64_t done, int64_t all) { show("squares", done, all); });
  const bench::ProductBench bench{
      {{"rows", 4 * o.hidden, o.hidden}}, {{o.dtype, dtype}}, rows, o.ranks.seconds_each()};
  const bench::WeightMeasured weight =
      bench::measure_products(bench, *team.group, [&](size_t, int64_t done, int64_t all) {
        show("rows", done, all);
      }).front();
  return team_of(o, team, squares, weight);
}

}  // namespace

int profile_products_command(const Call& call) {
  ProductProfileOptions o;
  Flags flags(
      kProfileProducts,
      "Times matrix products over the size of square matrices and over rows, next to arithmetic in registers "
      "and to reading memory.");
  add_flags(flags, o);
  if (!flags.parse(call.arguments)) return 0;
  check_choice(kProfileProducts, "--dtype", o.dtype, {"fp32", "bf16"});
  check_range(kProfileProducts, "--hidden", o.hidden, 1, kMostSize);
  const std::vector<int64_t> sizes = sizes_of(o.sizes),
                             rows = integers_of(kProfileProducts, "--rows", o.rows, 1, kMostSize);
  if (const auto machine = machine_of(kProfileProducts, o.ranks)) {
    check_no_ranks(kProfileProducts, o.ranks);
    print(report(o, {modeled_team(o, *machine, sizes, rows)}, machine->name));
    return 0;
  }
  const std::vector<int64_t> ranks = ranks_of(kProfileProducts, o.ranks, kMostSize, std::nullopt);
  return run_on_teams(call, o.ranks, ranks,
                      [&](const std::vector<bench::RankTeam>& teams, const comm::Group& world) {
                        std::vector<ProductTeam> found;
                        for (const bench::RankTeam& team : teams) {
                          if (team.group) found.push_back(measure_team(o, team, sizes, rows));
                          world.barrier();
                        }
                        if (world.rank() == 0) print(report(o, found, std::nullopt));
                      });
}

}  // namespace shardwise::cli
