// `shardwise generate`: continues a prompt from a checkpoint, byte by byte, in the simplest form.
#include <cmath>
#include <nlohmann/json.hpp>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/infer/generate.h"
#include "shardwise/text/tokenizer.h"
#include "shardwise/train/job.h"

namespace shardwise::cli {
namespace {

struct GenerateOptions {
  std::optional<std::string> model, prompt;
  int64_t max_new_tokens = 100;
  double temperature = 0;
  uint64_t seed = 0;
  int64_t tp = 1;
  bool json = false;
};

/// A request whose every input has been checked.
struct Request {
  std::filesystem::path folder;
  model::Config config;
  std::vector<int64_t> prompt;
  int64_t max_new_tokens;
  infer::Sampling sampling;
};

void add_flags(Flags& flags, GenerateOptions& o, RankOptions& ranks) {
  flags.value("--model DIR", o.model, "folder of a checkpoint: DIR, DIR/step-N, or Hugging Face's");
  flags.value("--prompt TEXT", o.prompt, "text to continue");
  flags.value("--max-new-tokens N", o.max_new_tokens, "bytes to add at most [100]");
  flags.value("--temperature X", o.temperature, "0: always the likeliest; 1: as the model says [0]");
  flags.value("--seed N", o.seed, "of the choices above temperature 0 [0]");
  flags.value("--tp,--tensor-parallel-size,--tp-size N", o.tp,
              "tensor-parallel ranks, started by this program [1]");
  add_timeout_flag(flags, ranks);
  flags.on_off("--json", o.json, "one JSON object with prompt and text instead of the text as it comes");
}

void check_values(const GenerateOptions& o) {
  TORCH_CHECK_VALUE(o.model, "generate: --model names the folder of a checkpoint; got none");
  TORCH_CHECK_VALUE(o.prompt, "generate: --prompt gives the text to continue; got none");
  TORCH_CHECK_VALUE(o.max_new_tokens >= 1, "generate: --max-new-tokens must be at least 1; got ",
                    o.max_new_tokens);
  TORCH_CHECK_VALUE(o.temperature >= 0, "generate: --temperature must be 0 or more; got ", o.temperature);
  TORCH_CHECK_VALUE(o.tp >= 1, "generate: --tp must be at least 1; got ", o.tp);
}

void check_length(const GenerateOptions& o, const Request& request) {
  const model::Config& config = request.config;
  const int64_t room = config.max_position_embeddings - static_cast<int64_t>(request.prompt.size());
  TORCH_CHECK_VALUE(
      o.max_new_tokens <= room, "generate: prompt and new tokens must fit in max_position_embeddings, ",
      config.max_position_embeddings, "; got ", request.prompt.size(), " and ", o.max_new_tokens);
}

Request make_request(const GenerateOptions& o) {
  check_values(o);
  Request request{.folder = checkpoint::resolve(*o.model),
                  .config = {},
                  .prompt = text::BytesTokenizer().encode(*o.prompt),
                  .max_new_tokens = o.max_new_tokens,
                  .sampling = {.temperature = o.temperature, .seed = o.seed}};
  checkpoint::check(request.folder, /*needs_state=*/false);
  request.config = model::load_config(request.folder);
  train::check_fits("generate", request.config, o.tp);
  check_length(o, request);
  return request;
}

std::string byte_of(int64_t id) {
  TORCH_CHECK(id < text::BytesTokenizer::kVocabSize, "generate: the model chose token ", id,
              ", which is no byte: it was trained with another tokenizer");
  return text::BytesTokenizer().decode({id});
}

/// The continuation; `on_byte` sees it as it comes.
std::string generate(const Request& request, const comm::Group& group,
                     const std::function<void(const std::string&)>& on_byte) {
  // fp16 is for storage: its products are slow on CPUs and overflow early.
  const at::ScalarType dtype = request.config.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  model::DecoderWeights weights(request.config, group, dtype);
  checkpoint::load_weights(request.folder, weights);
  std::string text;
  infer::generate(weights, request.prompt, request.max_new_tokens, request.sampling, [&](int64_t id) {
    text += byte_of(id);
    on_byte(text.substr(text.size() - 1));
  });
  return text;
}

void generate_rank(const Request& request, const GenerateOptions& o, const comm::Group& group) {
  const bool streams = group.rank() == 0 && !o.json;
  if (streams) print(*o.prompt);
  const std::string text = generate(request, group, [&](const std::string& byte) {
    if (streams) print(byte);
  });
  if (streams) print("\n");
  if (!o.json || group.rank() > 0) return;
  // A text may end within a character; JSON holds whole ones.
  const nlohmann::ordered_json result{{"prompt", *o.prompt}, {"text", text}};
  print(result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

int generate_command(const Call& call) {
  GenerateOptions options;
  RankOptions ranks;
  Flags flags("generate", "Continues a prompt from a checkpoint, one whole forward for each byte.");
  add_flags(flags, options, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("generate", ranks);
  const Request request = make_request(options);
  return run_on_ranks({place_for(options.tp), options.tp, ranks, call.argv},
                      [&](const comm::Group& group) { generate_rank(request, options, group); });
}

}  // namespace shardwise::cli
