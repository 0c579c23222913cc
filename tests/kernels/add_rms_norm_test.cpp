// The fused op is bitwise equal to the unfused ops, for every number of partial sums.
#include "shardwise/kernels/add_rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "shardwise/kernels/add_rms_norm_isa.h"
#include "shardwise/kernels/rms_norm.h"
#include "shardwise/kernels/rms_norm_isa.h"
#include "tests/kernels/support.h"
#include "tests/support/instruction_set.h"

namespace shardwise::kernels::add_rms_norm_test {
namespace {

constexpr double kEps = 1e-5;

struct Sum {
  at::Tensor x, weight, bias;
  std::vector<at::Tensor> partials;

  Sum(int64_t rows, int64_t h, int count, bool has_bias, at::ScalarType dtype)
      : x(random_tensor({rows, h}, 1, dtype)), weight(random_tensor({h}, 2, dtype)) {
    if (has_bias) bias = random_tensor({h}, 3, dtype);
    for (int rank = 0; rank < count; ++rank)
      partials.push_back(random_tensor({rows, h}, uint64_t(10 + rank), dtype));
  }

  std::vector<const void*> data() const {
    std::vector<const void*> data;
    for (const at::Tensor& partial : partials) data.push_back(partial.const_data_ptr());
    return data;
  }
  /// The PyTorch reference, rounded after the sum and after each addition.
  at::Tensor residual() const {
    const at::ScalarType dtype = x.scalar_type(), wide = dtype == at::kDouble ? dtype : at::kFloat;
    at::Tensor sum = partials[0].to(wide);
    for (size_t rank = 1; rank < partials.size(); ++rank) sum = sum + partials[rank].to(wide);
    const at::Tensor y = bias.defined() ? sum.to(dtype) + bias : sum.to(dtype);
    return x + y;
  }
};

struct Result {
  at::Tensor residual, norm;
};

Result run(const Sum& sum, const at::Tensor& x, int64_t first_row) {
  Result result{at::empty(x.sizes(), x.options()), at::empty(x.sizes(), x.options())};
  const std::vector<const void*> data = sum.data();
  add_rms_norm_out(result.residual, result.norm, x, {data, first_row}, {sum.bias, sum.weight, kEps});
  return result;
}

TEST(AddRmsNorm, EqualsTheUnfusedOpsBitwise) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int count : {1, 2, 3, 5}) {
      for (const int64_t h : {1, 33, 64, 515, 2048}) {
        for (const bool has_bias : {false, true}) {
          const Sum sum(7, h, count, has_bias, dtype);
          const Result result = run(sum, sum.x, /*first_row=*/0);
          EXPECT_TRUE(same_bits(result.residual, sum.residual())) << dtype << " " << count << " " << h;
          EXPECT_TRUE(same_bits(result.norm, rms_norm(result.residual, sum.weight, kEps)))
              << dtype << " " << count << " " << h;
        }
      }
    }
  }
}

TEST(AddRmsNorm, AcceptsARangeOfRowsOfThePartials) {
  const Sum sum(9, 33, 3, /*has_bias=*/true, at::kBFloat16);
  const Result full = run(sum, sum.x, 0);
  for (const int64_t rows : {0, 1, 4}) {
    const Result part = run(sum, sum.x.narrow(0, 5, rows), /*first_row=*/5);
    EXPECT_TRUE(same_bits(part.residual, full.residual.narrow(0, 5, rows).contiguous()));
    EXPECT_TRUE(same_bits(part.norm, full.norm.narrow(0, 5, rows).contiguous()));
  }
}

class AddRmsNormLoops : public testing::EveryIsa {};
SHARDWISE_EVERY_ISA(AddRmsNormLoops);

TEST_P(AddRmsNormLoops, EqualRmsNormBitwise) {
  const Sum sum(3, 515, 2, /*has_bias=*/true, at::kFloat);
  const std::vector<const void*> data = sum.data();
  const float* partials[] = {static_cast<const float*>(data[0]), static_cast<const float*>(data[1])};
  const Isa isa = GetParam();
  at::Tensor residual = at::empty_like(sum.x), norm = at::empty_like(sum.x), expected = at::empty_like(sum.x);
  at::Tensor rstd = at::empty({3}, at::kFloat);
  add_rms_norm_loops<float>(isa).forward(
      {residual.mutable_data_ptr<float>(), norm.mutable_data_ptr<float>(), partials, 2,
       sum.x.const_data_ptr<float>(), sum.bias.const_data_ptr<float>(), sum.weight.const_data_ptr<float>(),
       kEps, 515},
      0, 3);
  rms_norm_loops<float>(isa).forward(expected.mutable_data_ptr<float>(), rstd.mutable_data_ptr<float>(),
                                     residual.const_data_ptr<float>(), sum.weight.const_data_ptr<float>(),
                                     kEps, 3, 515);
  EXPECT_TRUE(same_bits(residual, sum.residual()));
  EXPECT_TRUE(same_bits(norm, expected));
}

TEST(AddRmsNorm, IsBitwiseIndependentOfThreadCount) {
  const Sum sum(263, 515, 2, /*has_bias=*/true, at::kFloat);
  const Result serial = [&] {
    const Threads threads(1);
    return run(sum, sum.x, 0);
  }();
  const Threads threads(3);
  const Result threaded = run(sum, sum.x, 0);
  EXPECT_TRUE(same_bits(threaded.residual, serial.residual));
  EXPECT_TRUE(same_bits(threaded.norm, serial.norm));
}

TEST(AddRmsNorm, RejectsMismatchedShapes) {
  const Sum sum(2, 4, 1, /*has_bias=*/true, at::kFloat);
  Sum none = sum, long_bias = sum, wide = sum;
  none.partials.clear();
  long_bias.bias = random_tensor({5}, 1, at::kFloat);
  wide.weight = random_tensor({4}, 1, at::kDouble);
  for (const Sum& wrong : {none, long_bias, wide}) EXPECT_THROW(run(wrong, sum.x, 0), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::add_rms_norm_test
