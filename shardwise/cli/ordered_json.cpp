#include "shardwise/cli/ordered_json.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/base/json.h"

namespace shardwise::cli {

using text::OrderedJson;

namespace {

/// Finds integers that would be read as floats because they have more than 64 bits.
class IntegerCheck : public nlohmann::json_sax<OrderedJson> {
 public:
  explicit IntegerCheck(std::string where) : where_(std::move(where)) {}

  bool number_float(double, const std::string& text) override {
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    TORCH_CHECK_VALUE(!is_integer, where_, ": integers must have at most 64 bits; got ",
                      base::shortened(text), " [SW0217]");
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(OrderedJson::binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  std::string where_;
};

}  // namespace

OrderedJson parse_ordered(const std::string& text, const std::string& where) {
  base::parse_json(text, where);  // throws if the text is not JSON
  IntegerCheck check(where);
  OrderedJson::sax_parse(text, &check);
  return OrderedJson::parse(text);
}

}  // namespace shardwise::cli
