// The choice of a matrix library: nearest measured shape, the saved file and what is wrong with damaged ones.
#include "shardwise/kernels/product_library.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "shardwise/base/files.h"
#include "shardwise/base/isa.h"
#include "tests/support/environment.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::kernels::product_library_test {
namespace {

namespace fs = std::filesystem;
using enum ProductForm;
using enum ProductLibrary;

ProductLibrary default_library() {
  return base::best_isa() >= base::Isa::avx512 ? onednn : torch_mm;
}

ProductLibrary other_library() {
  return default_library() == onednn ? torch_mm : onednn;
}

void expect_shape(const ProductShape& shape, ProductForm form) {
  EXPECT_EQ(name(shape.form), name(form));
  EXPECT_EQ(std::tuple(shape.m, shape.n, shape.k), std::tuple(2, 3, 4));
}

TEST(ProductShape, FollowsHowTheOperandsLie) {
  expect_shape(product_shape(at::empty({2, 4}), at::empty({3, 4}).t()), forward);
  expect_shape(product_shape(at::empty({2, 4}), at::empty({4, 3})), input_gradient);
  expect_shape(product_shape(at::empty({4, 2}).t(), at::empty({4, 3})), weight_gradient);
}

TEST(ProductChoice, WithoutMeasurementsIsTheDefault) {
  for (const ProductForm form : kProductForms)
    EXPECT_EQ(ProductChoice().of({form, 512, 512, 512}), default_library());
}

TEST(ProductChoice, IsTheLibraryOfTheNearestShapeOfTheForm) {
  const ProductChoice choice({{{forward, 512, 1024, 64}, torch_mm},
                              {{forward, 512, 1024, 1024}, onednn},
                              {{weight_gradient, 512, 1024, 64}, onednn}});
  EXPECT_EQ(choice.of({forward, 512, 1024, 64}), torch_mm);
  EXPECT_EQ(choice.of({forward, 512, 1024, 255}), torch_mm) << "a ratio of 3.98, against 4.02";
  EXPECT_EQ(choice.of({forward, 512, 1024, 257}), onednn);
  EXPECT_EQ(choice.of({forward, 1 << 20, 1 << 20, 100}), torch_mm);
  EXPECT_EQ(choice.of({weight_gradient, 512, 1024, 64}), onednn);
  EXPECT_EQ(choice.of({input_gradient, 512, 1024, 64}), default_library()) << "none of this form";
}

TEST(MeasuredProducts, AreReadAsWritten) {
  const std::string text = "forward 512 1024 64 torch.mm\nweight_gradient 7 8 9 oneDNN\n";
  const std::vector<MeasuredProduct> measured = measured_products(text, "file");
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(measured[1].shape.n, 8);
  EXPECT_EQ(to_text(measured), text);
}

TEST(MeasuredProducts, RefuseOtherLines) {
  for (const char* line : {"", "\n", "forward 512 1024 64\n", "forward 512 1024 64 MKL\n",
                           "backward 1 1 1 oneDNN\n", "forward 0 1 1 oneDNN\n", "forward 1 -1 1 oneDNN\n",
                           "forward 1 1 1x oneDNN\n", "forward 1  1 1 oneDNN\n", "forward 1 1 1 oneDNN \n",
                           "forward 99999999999999999999 1 1 oneDNN\n", "forward 1 1 1 oneDNN\n\n"}) {
    const std::string error = test::error_text([&] { (void)measured_products(line, "some/file"); });
    EXPECT_NE(error.find("some/file: each line must be the product's form, m, n, k and library"),
              std::string::npos)
        << line << error;
  }
}

/// Sets up an empty cache directory.
class SavedProductChoice : public ::testing::Test {
 protected:
  SavedProductChoice() { environment_.set("XDG_CACHE_HOME", directory_.path()); }

  const test::TemporaryDirectory directory_;
  testing::Environment environment_;
};

TEST_F(SavedProductChoice, IsUsedLater) {
  EXPECT_FALSE(saved_product_choice().is_measured());
  save_product_choice({{{forward, 512, 1024, 64}, other_library()}});
  EXPECT_TRUE(saved_product_choice().is_measured());
  EXPECT_EQ(saved_product_choice().of({forward, 1, 1, 1}), other_library());
  save_product_choice({{{forward, 512, 1024, 64}, default_library()}});
  EXPECT_EQ(saved_product_choice().of({forward, 1, 1, 1}), default_library());
}

TEST_F(SavedProductChoice, IsRejectedWithAWarningWhenDamaged) {
  save_product_choice({{{forward, 512, 1024, 64}, other_library()}});
  const std::string good = base::read_text(product_choice_file());
  for (const std::string& text : {std::string(), "x" + good, good + "x", good + std::string(1 << 16, '\n')}) {
    base::write_text(product_choice_file(), text);
    ::testing::internal::CaptureStderr();
    const ProductChoice choice = saved_product_choice();
    const std::string line = ::testing::internal::GetCapturedStderr();
    EXPECT_FALSE(choice.is_measured());
    EXPECT_NE(line.find(product_choice_file() + ": "), std::string::npos) << line;
    EXPECT_NE(line.find("the default library is used"), std::string::npos) << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  }
}

TEST_F(SavedProductChoice, HasNoFileWithoutADirectory) {
  EXPECT_EQ(fs::path(product_choice_file()).parent_path(), directory_ / "shardwise");
  environment_.set("XDG_CACHE_HOME", std::nullopt);
  environment_.set("HOME", std::nullopt);
  EXPECT_EQ(product_choice_file(), "");
  EXPECT_FALSE(saved_product_choice().is_measured());
}

}  // namespace
}  // namespace shardwise::kernels::product_library_test
