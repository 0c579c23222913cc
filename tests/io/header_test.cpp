#include "shardwise/io/header.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/error_text.h"

namespace shardwise::io::header_test {
namespace {

using test::contains, test::error_text;

/// Parses the header of a file with `data_bytes` bytes of data.
FileLayout parse(const std::string& json, int64_t data_bytes) {
  return parse_header(json, 8 + static_cast<int64_t>(json.size()) + data_bytes, "f");
}

std::string refusal(const std::string& json, int64_t data_bytes) {
  return error_text([&] { parse(json, data_bytes); });
}

/// Formats one tensor's entry.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Dtype, NamesRoundTripAndSizesMatch) {
  const std::vector<std::pair<std::string, int64_t>> known = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},  {"I32", 4},     {"I16", 2},    {"I8", 1},
      {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, bytes] : known) {
    EXPECT_EQ(dtype_name(dtype_from_name(name, "t")), name);
    EXPECT_EQ(itemsize(dtype_from_name(name, "t")), bytes);
  }
  EXPECT_PRED2(contains, error_text([] { dtype_from_name("f32", "t"); }), "got \"f32\"");
}

TEST(ParseHeader, SortsTensorsByOffset) {
  const std::string json = R"({"__metadata__":{"format":"pt"},"z":)" + entry("F32", "[2,3]", "[0,24]") +
                           R"(,"a":)" + entry("U8", "[]", "[24,25]") + R"(,"e":)" +
                           entry("BF16", "[0,7]", "[25,25]") + "}  ";
  const FileLayout layout = parse(json, 25);
  const int64_t data = 8 + static_cast<int64_t>(json.size());
  EXPECT_EQ(layout.header_bytes, data);
  EXPECT_EQ(layout.total_bytes, data + 25);
  EXPECT_EQ(layout.metadata, (Metadata{{"format", "pt"}}));
  const std::vector<TensorInfo> tensors = {{"z", Dtype::F32, {2, 3}, data, data + 24},
                                           {"a", Dtype::U8, {}, data + 24, data + 25},
                                           {"e", Dtype::BF16, {0, 7}, data + 25, data + 25}};
  EXPECT_EQ(layout.tensors, tensors);
  EXPECT_EQ(&layout.find("a"), &layout.tensors[1]);
  EXPECT_PRED2(contains, error_text([&] { layout.find("b"); }), "\"b\"");
}

TEST(ParseHeader, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(parse("{}", 0).tensors.empty());
}

TEST(ParseHeader, RejectsInvalidHeaders) {
  for (const char* json : {"", "[]", "3", "null", "{\"a\":1}", "{\"a\":[]}", "{\"a\":{}}",
                           "{\"__metadata__\":1}", "{\"__metadata__\":{\"a\":1}}"}) {
    EXPECT_TRUE(refusal(json, 0).starts_with("f: ")) << json;
  }
}

TEST(ParseHeader, RejectsWrongTypes) {
  const auto refused = [](const std::string& one) { return refusal(R"({"a":)" + one + "}", 4); };
  EXPECT_PRED2(contains, refused(entry("F33", "[1]", "[0,4]")), "tensor \"a\": dtype must be one of");
  EXPECT_PRED2(contains, refused(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})"), "must have a dtype");
  EXPECT_PRED2(contains, refused(R"({"dtype":"F32","data_offsets":[0,4]})"), "must have a shape");
  EXPECT_PRED2(contains, refused(R"({"dtype":"F32","shape":[1]})"), "must have a data_offsets");
  EXPECT_PRED2(contains, refused(entry("F32", "1", "[0,4]")), "must have a shape");
  EXPECT_PRED2(contains, refused(entry("F32", "[-1]", "[0,4]")), "got -1");
  EXPECT_PRED2(contains, refused(entry("F32", "[1.0]", "[0,4]")), "got 1.0");
  EXPECT_PRED2(contains, refused(entry("F32", "[true]", "[0,4]")), "got true");
  EXPECT_PRED2(contains, refused(entry("F32", "[1]", "[0]")), "must have two values");
  EXPECT_PRED2(contains, refused(entry("F32", "[1]", "[0,4,8]")), "must have two values");
  EXPECT_PRED2(contains, refused(entry("F32", "[1]", "[\"0\",4]")), "got \"0\"");
  EXPECT_PRED2(contains, refused(entry("F32", "[1]", "[4,0]")), "must span");
}

TEST(ParseHeader, RejectsShapesThatDoNotMatchTheirBytes) {
  EXPECT_PRED2(contains, refusal(R"({"a":)" + entry("F32", "[2,3]", "[0,12]") + "}", 12),
               "24 bytes; got [0,12]");
  EXPECT_PRED2(contains, refusal(R"({"a":)" + entry("F32", "[0]", "[0,4]") + "}", 4), "0 bytes; got [0,4]");
}

TEST(ParseHeader, RejectsSizesThatOverflow) {
  const std::string half = "[4294967296,4294967296,";
  for (const std::string& shape :
       {half + "1]", half + "0]", "[0," + half.substr(1) + "1]", std::string("[9223372036854775807]")}) {
    EXPECT_PRED2(contains, refusal(R"({"a":)" + entry("F32", shape, "[0,0]") + "}", 0), "63 bits");
  }
  EXPECT_PRED2(contains, refusal(R"({"a":)" + entry("U8", "[9223372036854775808]", "[0,0]") + "}", 0),
               "2^63 - 1");
  EXPECT_PRED2(contains, refusal(R"({"a":)" + entry("U8", "[1]", "[18446744073709551615,0]") + "}", 1),
               "2^63 - 1");
  EXPECT_PRED2(contains,
               refusal(R"({"a":)" + entry("U8", "[1]", "[9223372036854775806,9223372036854775807]") + "}", 1),
               "must begin at the end");
}

TEST(ParseHeader, RejectsOverlapsGapsAndTruncation) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":)" + entry("U8", "[4]", first) + R"(,"b":)" + entry("U8", "[4]", second) + "}";
  };
  EXPECT_EQ(parse(two("[4,8]", "[0,4]"), 8).tensors[0].name, "b");
  EXPECT_PRED2(contains, refusal(two("[0,4]", "[2,6]"), 6),
               "\"b\": must begin at the end of the previous tensor, 4");
  EXPECT_PRED2(contains, refusal(two("[0,4]", "[0,4]"), 4), "must begin at the end");
  EXPECT_PRED2(contains, refusal(two("[0,4]", "[5,9]"), 9), "got 5");
  EXPECT_PRED2(contains, refusal(two("[1,5]", "[5,9]"), 9), "tensor, 0; got 1");
  EXPECT_PRED2(contains, refusal(two("[0,4]", "[4,8]"), 7), "truncated");
  EXPECT_PRED2(contains, refusal(two("[0,4]", "[4,8]"), 9), "9 bytes; got 8");
  EXPECT_PRED2(contains, refusal("{}", 1), "1 bytes; got 0");
}

TEST(ParseHeader, RejectsDuplicateTensors) {
  const std::string one = entry("U8", "[4]", "[0,4]");
  EXPECT_PRED2(contains, refusal(R"({"a":)" + one + R"(,"a":)" + one + "}", 4),
               "\"a\" must not be duplicated");
}

TEST(HeaderLength, IsLittleEndianAndWithinTheFile) {
  const unsigned char bytes[8] = {0x34, 0x12, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(header_length(bytes, 8 + 0x1234, "f"), 0x1234);
  EXPECT_PRED2(contains, error_text([&] { header_length(bytes, 7 + 0x1234, "f"); }), "truncated");
}

TEST(HeaderLength, RejectsHugeLengths) {
  const unsigned char largest[8] = {255, 255, 255, 255, 255, 255, 255, 255};
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_PRED2(contains, error_text([&] { header_length(largest, huge, "f"); }), "at most 67108864 bytes");
  const unsigned char most[8] = {0, 0, 0, 4}, above[8] = {1, 0, 0, 4};  // 64 MiB, and a byte more
  EXPECT_EQ(header_length(most, huge, "f"), 64 << 20);
  EXPECT_PRED2(contains, error_text([&] { header_length(above, huge, "f"); }), "got 67108865");
}

TEST(PlanFile, AlignsTensorsByPlacingWideElementsFirst) {
  const FileLayout layout = plan_file({{"bytes", Dtype::U8, {3}},
                                       {"half", Dtype::BF16, {5}},
                                       {"wide", Dtype::F64, {1}},
                                       {"word", Dtype::F32, {2, 3}},
                                       {"word2", Dtype::I32, {1}}});
  std::vector<std::string> names;
  for (const TensorInfo& tensor : layout.tensors) {
    names.push_back(tensor.name);
    EXPECT_EQ(tensor.begin % itemsize(tensor.dtype), 0) << tensor.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"wide", "word", "word2", "half", "bytes"}));
  EXPECT_EQ(layout.header_bytes % 8, 0);
  EXPECT_EQ(layout.total_bytes, layout.header_bytes + 8 + 24 + 4 + 10 + 3);
}

TEST(PlanFile, RoundTripsThroughParseHeader) {
  const FileLayout layout =
      plan_file({{"a.weight", Dtype::F32, {3, 2}}, {"step", Dtype::I64, {}}, {"e", Dtype::F16, {0}}},
                {{"format", "pt"}, {"quote", "\"\n"}});
  const std::string text = header_text(layout);
  ASSERT_EQ(static_cast<int64_t>(text.size()), layout.header_bytes);
  const FileLayout read = parse_header(text.substr(8), layout.total_bytes, "f");
  EXPECT_EQ(read.tensors, layout.tensors);
  EXPECT_EQ(read.metadata, layout.metadata);
  unsigned char first8[8];
  std::copy_n(text.begin(), 8, first8);
  EXPECT_EQ(header_length(first8, layout.total_bytes, "f"), layout.header_bytes - 8);
}

TEST(PlanFile, RejectsInvalidSpecs) {
  const auto refused = [](const std::vector<TensorSpec>& specs, const Metadata& metadata = {}) {
    return error_text([&] { plan_file(specs, metadata); });
  };
  const int64_t huge = int64_t{1} << 62;
  EXPECT_PRED2(contains, refused({{"a", Dtype::U8, {1}}, {"a", Dtype::F32, {1}}}), "got it twice");
  EXPECT_PRED2(contains, refused({{"__metadata__", Dtype::U8, {1}}}), "got it twice");
  EXPECT_PRED2(contains, refused({{"a", Dtype::U8, {-1}}}), "got -1");
  EXPECT_PRED2(contains, refused({{"a", Dtype::F32, {huge}}}), "63 bits");
  EXPECT_PRED2(contains, refused({{"a", Dtype::U8, {huge}}, {"b", Dtype::U8, {huge}}}), "63 bits");
  EXPECT_PRED2(contains, refused({{"\xff", Dtype::U8, {1}}}), "UTF-8");
  EXPECT_PRED2(contains, refused({}, {{"a", "\xff"}}), "UTF-8");
}

}  // namespace
}  // namespace shardwise::io::header_test
