#include "shardwise/text/token_decoder.h"

#include "shardwise/text/byte_fallback.h"
#include "shardwise/text/byte_level.h"
#include "shardwise/text/metaspace.h"
#include "shardwise/text/normalizer.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

/// One decoder step on a stream of tokens. Emits text as soon as no later token can change it.
class DecoderStep {
 public:
  using Sink = std::function<void(std::string)>;
  virtual ~DecoderStep() = default;
  virtual void push(std::string token, const Sink& out) = 0;
  virtual void finish(const Sink& out) {}
};

namespace {

class ByteLevelStep : public DecoderStep {
 public:
  void push(std::string token, const Sink& out) override {
    out(stream_.push(bytes_of_token(token).value_or(token)));
  }
  void finish(const Sink& out) override { out(stream_.finish()); }

 private:
  Utf8Stream stream_;
};

class ReplaceStep : public DecoderStep {
 public:
  /// `limit` outlives this.
  ReplaceStep(TextStep replace, const GrowthLimit& limit) : replace_(std::move(replace)), limit_(limit) {}
  void push(std::string token, const Sink& out) override {
    replace_(token, limit_);
    out(std::move(token));
  }

 private:
  TextStep replace_;
  const GrowthLimit& limit_;
};

/// Decodes runs of tokens <0x00> to <0xFF>: to characters if the whole run is valid UTF-8, else to one U+FFFD
/// per byte. Holds back a run until it ends.
class ByteFallbackStep : public DecoderStep {
 public:
  void push(std::string token, const Sink& out) override {
    if (const auto byte = byte_of_fallback_token(token)) {
      run_ += static_cast<char>(*byte);
      return;
    }
    finish(out);
    out(std::move(token));
  }

  void finish(const Sink& out) override {
    if (is_utf8(run_)) {
      if (!run_.empty()) out(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) out(std::string(kReplacement));
    }
    run_.clear();
  }

 private:
  std::string run_;
};

/// Removes up to `count` leading copies of `content` from every token, or from the text if it is fused.
class StripStep : public DecoderStep {
 public:
  StripStep(std::string content, int64_t count, bool is_fused)
      : content_(std::move(content)), count_(count), left_(count), is_fused_(is_fused) {}

  void push(std::string token, const Sink& out) override {
    if (!is_fused_) left_ = count_;
    size_t at = 0;
    while (left_ > 0 && token.compare(at, content_.size(), content_) == 0) at += content_.size(), --left_;
    if (at < token.size()) left_ = 0;
    out(token.substr(at));
  }

 private:
  std::string content_;
  int64_t count_, left_;
  bool is_fused_;
};

/// Replaces metaspaces by spaces, and removes those of the first token, which the tokenizer prepended.
class MetaspaceStep : public DecoderStep {
 public:
  MetaspaceStep(std::string mark, bool skips_first) : replacement_(std::move(mark)), skips_(skips_first) {}

  void push(std::string token, const Sink& out) override {
    std::string text;
    for (size_t at = 0; at < token.size();) {
      if (token.compare(at, replacement_.size(), replacement_) == 0) {
        if (!skips_) text += ' ';
        at += replacement_.size();
      } else {
        text += token[at++];
      }
    }
    skips_ = false;
    out(std::move(text));
  }

 private:
  std::string replacement_;
  bool skips_;
};

}  // namespace

TokenDecoder::Stream::Stream(const TokenDecoder& decoder) {
  for (const auto& make : decoder.makers_) steps_.push_back(make(limit_));
}

TokenDecoder::Stream::~Stream() = default;

void TokenDecoder::Stream::pass(size_t step, std::string token, std::string& text) {
  if (step == steps_.size()) {
    text += token;
    limit_.check(text.size());
    return;
  }
  steps_[step]->push(std::move(token), [&](std::string next) { pass(step + 1, std::move(next), text); });
}

std::string TokenDecoder::Stream::push(const std::string& token) {
  limit_.add_input(token.size());
  std::string text;
  pass(0, token, text);
  limit_.add_output(text.size());
  return text;
}

std::string TokenDecoder::Stream::finish() {
  std::string text;
  for (size_t step = 0; step < steps_.size(); ++step) {
    steps_[step]->finish([&](std::string next) { pass(step + 1, std::move(next), text); });
  }
  limit_.add_output(text.size());
  return text;
}

void TokenDecoder::add_strip(const JsonPart& json) {
  json.allow({"type", "content", "start", "stop"});
  if (json.fields.integer("stop") != 0) throw_invalid(json.label("stop"), "0", json.at("stop"));
  const std::string content = json.character("content");
  const int64_t start = json.fields.integer("start");
  makers_.emplace_back([=, is_fused = is_fused_](const GrowthLimit&) {
    return std::make_unique<StripStep>(content, start, is_fused);
  });
}

void TokenDecoder::add(const JsonPart& json) {
  const std::string type = json.type();
  if (is_complete_ || (is_fused_ && type != "Strip" && type != "Sequence")) {
    throw_invalid(json.label("type"), "omitted at this position", type);
  }
  if (type == "Sequence") {
    json.allow({"type", "decoders"});
    for (const JsonPart& part : json.parts("decoders")) add(part);
  } else if (type == "ByteLevel") {
    json.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    makers_.emplace_back([](const GrowthLimit&) { return std::make_unique<ByteLevelStep>(); });
    is_complete_ = true;  // ByteLevel fuses its tokens
  } else if (type == "Metaspace") {
    makers_.emplace_back([metaspace = read_metaspace(json)](const GrowthLimit&) {
      return std::make_unique<MetaspaceStep>(metaspace.replacement,
                                             metaspace.prepend_scheme != PrependScheme::never);
    });
  } else if (type == "Replace") {
    makers_.emplace_back([replace = replacement_step(json)](const GrowthLimit& limit) {
      return std::make_unique<ReplaceStep>(replace, limit);
    });
  } else if (type == "ByteFallback") {
    json.allow({"type"});
    makers_.emplace_back([](const GrowthLimit&) { return std::make_unique<ByteFallbackStep>(); });
  } else if (type == "Fuse") {
    json.allow({"type"});
    is_fused_ = true;  // text still streams; later steps handle fused text
  } else if (type == "Strip") {
    add_strip(json);
  } else {
    throw_invalid(json.label("type"), "Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse or Strip",
                  type);
  }
}

}  // namespace shardwise::text
