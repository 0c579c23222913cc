#include "shardwise/cli/ordered_json.h"

#include <c10/util/Exception.h>

#include "shardwise/base/json.h"

namespace shardwise::cli {

using text::OrderedJson;

namespace {

/// Finds a number that is read as a float only because it has more than 64 bits.
class WholeNumbers : public nlohmann::json_sax<OrderedJson> {
 public:
  explicit WholeNumbers(std::string where) : where_(std::move(where)) {}

  bool number_float(double, const std::string& text) override {
    const bool is_whole = text.find_first_of(".eE") == std::string::npos;
    TORCH_CHECK_VALUE(!is_whole, where_, ": whole numbers must have at most 64 bits; got ", text);
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
  base::parse_json(text, where);  // for its errors
  WholeNumbers numbers(where);
  OrderedJson::sax_parse(text, &numbers);
  return OrderedJson::parse(text);
}

}  // namespace shardwise::cli
