// The `decoder` of tokenizer.json: converts a stream of tokens to text.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/growth_limit.h"
#include "shardwise/text/json_fields.h"

namespace shardwise::text {

class DecoderStep;

/// A sequence of steps: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip.
class TokenDecoder {
 public:
  /// Throws c10::ValueError naming the field if a step or an order of steps is not supported.
  explicit TokenDecoder(const JsonPart& json) { add(json); }

  /// The decoding state of one stream of tokens; must not outlive the decoder.
  class Stream {
   public:
    explicit Stream(const TokenDecoder& decoder);
    Stream(const Stream&) = delete;  // the steps keep a reference to its limit
    ~Stream();
    /// Adds a token and returns the text that no later token can change. Errors: those of GrowthLimit.
    std::string push(const std::string& token);
    /// Returns the remaining text at the end of the stream. Errors: those of GrowthLimit.
    std::string finish();

   private:
    void pass(size_t step, std::string token, std::string& text);
    GrowthLimit limit_;
    std::vector<std::unique_ptr<DecoderStep>> steps_;
  };

 private:
  void add(const JsonPart& json);
  void add_strip(const JsonPart& json);

  std::vector<std::function<std::unique_ptr<DecoderStep>(const GrowthLimit&)>> makers_;
  bool is_fused_ = false, is_complete_ = false;
};

}  // namespace shardwise::text
