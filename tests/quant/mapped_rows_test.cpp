// Weights whose bf16 rows are multiplied where they are in mapped files, against the same weights in panels.
// Products have the same bits, also at each lower instruction set (the filter of quant.at_* in
// tests/CMakeLists.txt).
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "shardwise/base/isa.h"
#include "shardwise/quant/mapped_rows.h"
#include "shardwise/quant/product.h"
#include "tests/quant/support.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::mapped_rows_test {
namespace {

using at::Tensor;
using quant::Panels;

constexpr int64_t kPage = 4096, kItemBytes = 2;

/// The rows of a weight as a file has them: at a distance of more than their width, from any byte on. The
/// last row ends where memory that cannot be read begins.
class Rows {
 public:
  Rows(const Tensor& w, int64_t extra_columns)
      : width_(w.size(1)), stride_((w.size(1) + extra_columns) * kItemBytes) {
    const int64_t bytes = w.size(0) * stride_ - extra_columns * kItemBytes;
    readable_ = (bytes + kPage - 1) / kPage * kPage;
    void* pages = ::mmap(nullptr, size_t(readable_ + kPage), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(pages, MAP_FAILED);
    pages_ = static_cast<uint8_t*>(pages);
    EXPECT_EQ(::mprotect(pages_ + readable_, size_t{kPage}, PROT_NONE), 0);
    const auto* from = static_cast<const uint8_t*>(w.const_data_ptr());
    for (int64_t row = 0; row < w.size(0); ++row) {
      uint8_t* to = pages_ + readable_ - bytes + row * stride_;
      std::memcpy(to, from + row * width_ * kItemBytes, size_t(width_ * kItemBytes));
      rows_.push_back(to);
    }
  }
  ~Rows() { ::munmap(pages_, size_t(readable_ + kPage)); }
  Rows(const Rows&) = delete;

  Panels panels() const {
    const auto count = std::ssize(rows_);
    Panels panels = Panels::of({.bits = 16}, count, width_, {0, width_});
    panels.mapped_rows = std::make_shared<const quant::MappedRows>(quant::MappedRows{rows_, {}});
    return panels;
  }

 private:
  int64_t width_, stride_, readable_ = 0;
  uint8_t* pages_ = nullptr;
  std::vector<const uint8_t*> rows_;
};

Panels packed_bf16(const Tensor& w) {
  Panels panels = Panels::of({.bits = 16}, w.size(0), w.size(1), {0, w.size(1)});
  allocate_(panels);
  pack_bf16_rows_(panels, /*begin=*/0, w);
  return panels;
}

Tensor product(const Tensor& x, const Panels& w) {
  Tensor y = at::full({x.size(0), w.rows}, 7, x.options());
  quant::product_out(y, x, w);
  return y;
}

class MappedPackedProduct : public ::testing::TestWithParam<int64_t> {};

TEST_P(MappedPackedProduct, HasTheBitsOfPanels) {
  const int64_t width = GetParam();
  for (const int64_t outputs : {1, 57, 64, 130, 570}) {
    const Tensor w = random_tensor({outputs, width}, /*seed=*/1, at::kBFloat16);
    const Panels panels = packed_bf16(w);
    const Rows dense(w, 0), strided(w, /*extra_columns=*/3);
    const Tensor all = random_tensor({300, width}, /*seed=*/2, at::kBFloat16);
    for (const int64_t rows : {0, 1, 2, 3, 5, 8, 9, 16, 17, 64, 65, 70, 300}) {
      const Tensor x = all.narrow(0, 0, rows), expected = product(x, panels);
      EXPECT_TRUE(same_bits(product(x, dense.panels()), expected)) << rows << " rows, " << outputs;
      EXPECT_TRUE(same_bits(product(x, strided.panels()), expected)) << rows << " rows, " << outputs;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Widths, MappedPackedProduct,
                         ::testing::Values(2, 30, 32, 34, 64, 126, 128, 130, 512, 514, 1376));

TEST(MappedPackedProductOfRows, AcceptsOtherDtypes) {
  const Tensor w = random_tensor({70, 34}, /*seed=*/3, at::kBFloat16);
  const Rows rows(w, 1);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf}) {
    const Tensor x = random_tensor({3, 34}, /*seed=*/4, dtype);
    EXPECT_TRUE(same_bits(product(x, rows.panels()), product(x, packed_bf16(w)))) << dtype;
  }
}

TEST(MappedPackedProductOfRows, HasTheSameBitsForAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  const Rows rows(random_tensor({300, 1376}, /*seed=*/5, at::kBFloat16), 0);
  for (const int64_t count : {1, 9, 70}) {
    const Tensor x = random_tensor({count, 1376}, /*seed=*/6, at::kBFloat16);
    at::set_num_threads(1);
    const Tensor one = product(x, rows.panels());
    at::set_num_threads(2);
    EXPECT_TRUE(same_bits(product(x, rows.panels()), one)) << count;
  }
  at::set_num_threads(threads);
}

TEST(MappedRows, HaveTheValuesOfTheWeight) {
  const Tensor w = random_tensor({130, 41}, /*seed=*/7, at::kBFloat16);
  const Rows rows(w, 2);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    EXPECT_TRUE(same_bits(dequantized(rows.panels(), dtype), w.to(dtype))) << dtype;
}

TEST(MappedRows, AreLookedUpAsAnEmbedding) {
  const Tensor w = random_tensor({6, 40}, /*seed=*/8, at::kBFloat16);  // ids 10 to 15
  Tensor y = at::full({3, 40}, 7, at::kBFloat16);
  quant::embedding_out(y, at::tensor({9, 10, 15}, at::kLong), Rows(w, 1).panels(), /*begin=*/10);
  EXPECT_TRUE(same_bits(y[0], at::full({40}, 0, at::kBFloat16)));
  EXPECT_TRUE(same_bits(y[1], w[0]) && same_bits(y[2], w[5]));
}

TEST(MappedRows, ArePackedOnceAndLetGo) {
  if (base::best_isa() < base::Isa::avx512_bf16) return;  // a load maps no rows
  for (const int64_t width : {2, 30, 64, 514}) {
    for (const int64_t count : {1, 63, 64, 65, 200}) {
      const Tensor w = random_tensor({count, width}, /*seed=*/9, at::kBFloat16);
      const Rows rows(w, 1);
      Panels panels = rows.panels();
      const std::weak_ptr<const quant::MappedRows> mapped = panels.mapped_rows;
      quant::pack_(panels);
      EXPECT_TRUE(same_bits(panels.data, packed_bf16(w).data)) << count << " × " << width;
      EXPECT_TRUE(mapped.expired());
    }
  }
}

}  // namespace
}  // namespace shardwise::testing::mapped_rows_test
