// The `decoder` of tokenizer.json: tokens back to text, as they come.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

class DecoderStep;

/// Steps, in order: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip.
class TokenDecoder {
 public:
  /// Errors: c10::ValueError naming the field of a step, or of an order of steps, that is not known.
  explicit TokenDecoder(const JsonPart& json) { add(json); }

  /// One stream; must not outlive the decoder.
  class Stream {
   public:
    explicit Stream(const TokenDecoder& decoder);
    ~Stream();
    /// The text that has become certain.
    std::string push(const std::string& token);
    std::string finish();

   private:
    void pass(size_t step, std::string token, std::string& text);
    std::vector<std::unique_ptr<DecoderStep>> steps_;
  };

 private:
  void add(const JsonPart& json);
  void add_strip(const JsonPart& json);

  std::vector<std::function<std::unique_ptr<DecoderStep>()>> makers_;
  bool is_fused_ = false, is_closed_ = false;
};

}  // namespace shardwise::text
