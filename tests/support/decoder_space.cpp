#include "tests/support/decoder_space.h"

#include <algorithm>
#include <functional>
#include <random>

namespace shardwise::testing {
namespace {

struct Value {
  const char* name;
  std::function<void(Case&)> set;
};
struct Dimension {
  const char* name;
  std::vector<Value> values;
};

// Returns a dimension that sets one field of the problem.
template <typename Field>
Dimension of_problem(const char* name, Field Problem::*field,
                     const std::vector<std::pair<const char*, Field>>& values) {
  Dimension dimension{name, {}};
  for (const auto& [value_name, value] : values) {
    dimension.values.push_back({value_name, [field, value = value](Case& c) { c.problem.*field = value; }});
  }
  return dimension;
}

// `ranks` comes first: some values depend on it.
std::vector<Dimension> split_dimensions() {
  const auto ranks = [](int t) { return [t](Case& c) { c.ranks = t; }; };
  const auto stream = [](Stream s) { return [s](Case& c) { c.run.stream = s; }; };
  const auto path = [](Path p) { return [p](Case& c) { c.run.path = p; }; };
  return {
      {"ranks", {{"1", ranks(1)}, {"2", ranks(2)}, {"3", ranks(3)}, {"4", ranks(4)}}},
      {"stream", {{"TP", stream(Stream::tp)}, {"TP+SP", stream(Stream::tp_sp)}}},
      {"path",
       {{"in place", path(Path::symmetric)},
        {"gathered", path(Path::gathered)},
        {"gathered again", path(Path::regathered)},
        {"in place, no overlap", path(Path::symmetric_no_overlap)},
        {"gathered again, no overlap", path(Path::regathered_no_overlap)}}},
      {"batch", {{"full", [](Case&) {}}, {"split", [](Case& c) { c.run.split_batch = true; }}}},
      of_problem<Heads>("heads", &Problem::heads,
                        {{"MHA", {"MHA", 4, 4}},
                         {"GQA", {"GQA", 8, 4}},
                         {"few KV heads", {"few KV heads", 4, 2}},
                         {"MQA", {"MQA", 5, 1}},
                         {"6 over 3", {"6 over 3", 6, 3}},
                         {"10 over 2", {"10 over 2", 10, 2}}}),
      of_problem<int64_t>("vocab", &Problem::vocab, {{"17", 17}, {"127", 127}, {"31123", 31123}}),
      {"sequence",
       {{"divisible", [](Case& c) { c.problem.sequence = 12; }},
        {"not divisible", [](Case& c) { c.problem.sequence = 7; }},
        {"shorter than ranks", [](Case& c) { c.problem.sequence = c.ranks - 1; }}}},
      {"ffn",
       {{"32", [](Case& c) { c.problem.ffn = 32; }},
        {"101", [](Case& c) { c.problem.ffn = 101; }},
        {"less than ranks", [](Case& c) { c.problem.ffn = c.ranks - 1; }}}},
      of_problem<double>("dropout", &Problem::dropout, {{"0", 0}, {"0.1", 0.1}}),
      of_problem<bool>("head", &Problem::is_tied, {{"own", false}, {"tied", true}}),
  };
}

std::vector<Dimension> model_dimensions() {
  const auto window = [](std::optional<int64_t> size, std::vector<bool> slides) {
    return [size, slides](Case& c) { c.problem.window = size, c.problem.slides = slides; };
  };
  return {
      of_problem<config::Norm>("norm", &Problem::norm,
                               {{"RMSNorm", config::Norm::rms}, {"LayerNorm", config::Norm::layer}}),
      of_problem<config::Activation>("activation", &Problem::activation,
                                     {{"SwiGLU", config::Activation::silu_gated},
                                      {"GELU by tanh", config::Activation::gelu_tanh},
                                      {"GELU", config::Activation::gelu}}),
      {"positions",
       {{"rotary", [](Case&) {}},
        {"in part rotary", [](Case& c) { c.problem.partial_rotary_factor = 0.7; }},  // 4 elements of 6
        {"learned", [](Case& c) { c.problem.positions = config::Positions::learned; }}}},
      of_problem<Biases>("biases", &Problem::biases,
                         {{"none", Biases::none}, {"qkv", Biases::qkv}, {"all", Biases::all}}),
      of_problem<bool>("q/k norm", &Problem::has_qk_norm, {{"no", false}, {"yes", true}}),
      {"window",
       {{"none", window({}, {})}, {"3", window(3, {})}, {"3 in the upper layer", window(3, {false, true})}}},
  };
}

bool is_norm_or_embedding(const std::string& name) {
  return name.find("norm") != std::string::npos || name.find("embed") != std::string::npos;
}
bool is_projection(const std::string& name) {
  return name.find("proj") != std::string::npos || name.find("lm_head") != std::string::npos;
}

std::vector<Dimension> step_dimensions() {
  const auto recompute = [](base::Recompute r) { return [r](Case& c) { c.run.recompute = r; }; };
  return {
      of_problem<bool>("padding", &Problem::is_padded, {{"no", false}, {"yes", true}}),
      of_problem<double>("attention dropout", &Problem::attention_dropout, {{"0", 0}, {"0.2", 0.2}}),
      of_problem<double>("label smoothing", &Problem::label_smoothing, {{"0", 0}, {"0.1", 0.1}}),
      of_problem<double>("z-loss", &Problem::z_loss, {{"0", 0}, {"0.01", 0.01}}),
      {"recomputation",
       {{"none", recompute(base::Recompute::none)},
        {"selective", recompute(base::Recompute::selective)},
        {"full", recompute(base::Recompute::full)}}},
      of_problem<Frozen>("frozen", &Problem::frozen,
                         {{"nothing", {}},
                          {"norms and embedding", {"norms and embedding", is_norm_or_embedding}},
                          {"projections", {"projections", is_projection}}}),
  };
}

const std::vector<Dimension>& dimensions() {
  static const std::vector<Dimension> all = [] {
    std::vector<Dimension> joined = split_dimensions();
    for (const auto& more : {model_dimensions(), step_dimensions()})
      joined.insert(joined.end(), more.begin(), more.end());
    return joined;
  }();
  return all;
}

Space space_of(const std::vector<Dimension>& dimensions) {
  Space space;
  for (const Dimension& dimension : dimensions) {
    std::vector<std::string> names;
    for (const Value& value : dimension.values) names.push_back(value.name);
    space.add(dimension.name, names);
  }
  return space;
}

// Excludes a value from all combinations.
void exclude_(Space& space, const Space::Choice& choice) {
  space.exclude(choice, choice);
}

}  // namespace

Space decoder_space(Tables tables) {
  Space space = space_of(dimensions());
  space.exclude({"ranks", "1"}, {"sequence", "not divisible"});
  space.exclude({"ranks", "1"}, {"sequence", "shorter than ranks"});
  space.exclude({"ranks", "1"}, {"ffn", "less than ranks"});
  for (const Space::Choice& other : {Space::Choice{"stream", "TP+SP"},
                                     {"dropout", "0.1"},
                                     {"attention dropout", "0.2"},
                                     {"recomputation", "full"}})
    space.exclude({"batch", "split"}, other);
  if (tables == Tables::small) exclude_(space, {"vocab", "31123"});
  if (tables == Tables::large) exclude_(space, {"vocab", "17"}), exclude_(space, {"vocab", "127"});
  return space;
}

Case case_of(const Combination& combination, const Space& space) {
  Case c;
  for (size_t d = 0; d < combination.size(); ++d) dimensions()[d].values.at(combination[d]).set(c);
  c.name = space.name(combination);
  return c;
}

const std::vector<FamilyChoices>& family_choices() {
  static const std::vector<FamilyChoices> all = {
      {"Llama",
       {{"norm", "RMSNorm"},
        {"activation", "SwiGLU"},
        {"positions", "rotary"},
        {"biases", "none"},
        {"q/k norm", "no"},
        {"window", "none"}}},
      {"Mistral",
       {{"norm", "RMSNorm"},
        {"activation", "SwiGLU"},
        {"positions", "rotary"},
        {"biases", "none"},
        {"q/k norm", "no"},
        {"window", "3"}}},
      {"Qwen 2",
       {{"norm", "RMSNorm"},
        {"activation", "SwiGLU"},
        {"positions", "rotary"},
        {"biases", "qkv"},
        {"q/k norm", "no"},
        {"window", "3 in the upper layer"}}},
      {"Phi-3",
       {{"norm", "RMSNorm"},
        {"activation", "SwiGLU"},
        {"positions", "in part rotary"},
        {"biases", "none"},
        {"q/k norm", "no"},
        {"window", "none"}}},
      {"Qwen 3",
       {{"norm", "RMSNorm"},
        {"activation", "SwiGLU"},
        {"positions", "rotary"},
        {"biases", "none"},
        {"q/k norm", "yes"},
        {"window", "none"}}},
      {"GPT-2",
       {{"norm", "LayerNorm"},
        {"activation", "GELU by tanh"},
        {"positions", "learned"},
        {"biases", "all"},
        {"q/k norm", "no"},
        {"window", "none"}}},
  };
  return all;
}

Space family_space(const FamilyChoices& family, Tables tables) {
  Space space = decoder_space(tables);
  for (const Dimension& dimension : model_dimensions()) {
    for (const Value& value : dimension.values) {
      const auto is_fixed = [&](const Space::Choice& choice) {
        return choice.dimension == dimension.name && choice.value == value.name;
      };
      if (std::ranges::none_of(family.fixed, is_fixed)) exclude_(space, {dimension.name, value.name});
    }
  }
  return space;
}

std::vector<Combination> all_splits(const FamilyChoices& family, const Space& space) {
  const std::vector<Combination> steps = covering(space_of(step_dimensions()), /*strength=*/2, /*seed=*/1);
  const size_t rest = steps[0].size();
  Combination fixed = space.partial(family.fixed);
  std::copy(steps[0].begin(), steps[0].end(), fixed.end() - rest);
  std::vector<Combination> splits = space.all(fixed);
  std::mt19937_64 random(1);
  for (Combination& combination : splits) {
    do {
      const Combination& step = steps[random() % steps.size()];
      std::copy(step.begin(), step.end(), combination.end() - rest);
    } while (!space.allows(combination));
  }
  return splits;
}

std::vector<Combination> in_every_mode(const Combination& combination, const Space& space) {
  const Combination modes = space.partial({{"recomputation", "none"}, {"frozen", "nothing"}});
  Combination open = combination;
  for (size_t d = 0; d < open.size(); ++d) {
    if (modes[d] != kUnset) open[d] = kUnset;
  }
  return space.all(open);
}

}  // namespace shardwise::testing
