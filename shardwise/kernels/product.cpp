#include "shardwise/kernels/product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/few_rows_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/kernels/widened_product.h"

// Exported by libtorch_cpu 2.11 without a header: result = alpha·mat1·mat2 + beta·result, strides respected.
namespace at::native {
TORCH_API void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                             float alpha);
}

namespace shardwise::kernels {

using at::Tensor;

namespace {

/// Below this many multiplications, oneDNN's setup costs more than it saves.
constexpr int64_t kMinOneDnnProducts = int64_t{1} << 20;

void check_product(const Tensor& y, const Tensor& a, const Tensor& b) {
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && y.is_contiguous() &&
                        y.sizes() == at::IntArrayRef({a.size(0), b.size(1)}),
                    "product: needs [m, k]·[k, n] = [m, n]; got ", a.sizes(), "·", b.sizes(), " = ",
                    y.sizes(), " [SW0417]");
  TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type() && a.scalar_type() == y.scalar_type(),
                    "product: needs one dtype; got ", a.scalar_type(), "·", b.scalar_type(), " = ",
                    y.scalar_type(), " [SW0418]");
}

ProductLibrary library_of(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != at::kFloat || a.size(0) * a.size(1) * b.size(1) < kMinOneDnnProducts)
    return ProductLibrary::torch_mm;
  return product_choice().of(product_shape(a, b));
}

/// Up to this many rows our loops are limited by reading the weight. Both of torch's libraries are slower,
/// for bf16 by far.
constexpr int64_t kFewRows = 4;

bool has_few_rows_loops(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16;
}

/// Returns true for a few rows times a weight [n, k] viewed as [k, n], the product of decoding.
bool uses_few_rows(const Tensor& a, const Tensor& b) {
  return has_few_rows_loops(a.scalar_type()) && a.size(0) <= kFewRows && a.is_contiguous() &&
         b.t().is_contiguous();
}

/// Up to this many rows, a device's product is limited by reading the weight, once for all of them.
constexpr int64_t kFewDeviceRows = 8;

bool uses_few_device_rows(const Tensor& a, const Tensor& b) {
  return a.size(0) <= kFewDeviceRows && a.is_contiguous() && b.t().is_contiguous();
}

void few_rows_out(Tensor& y, const Tensor& a, const Tensor& b) {
  const Tensor wide = a.to(at::kFloat);
  const int64_t rows = a.size(0), k = a.size(1), n = b.size(1);
  with_element_type("product", a, [&]<class T>(T) {
    for_ranges(n, k, [&](int64_t begin, int64_t end) {
      few_rows_loops<T>().multiply(elements_<T>(y) + begin, n, elements<Accumulator<T>>(wide),
                                   elements<T>(b) + begin * k, rows, end - begin, k);
    });
  });
}

void check_host_product(const Tensor& y, const Tensor& a, const Tensor& b) {
  check_product(y, a, b);
  for (const Tensor* tensor : {&y, &a, &b}) check_on_cpu("product", *tensor);
}

/// Computes y = beta·y + a·b, where beta is 0 or 1.
void multiply(Tensor& y, const Tensor& a, const Tensor& b, int beta, ProductLibrary library) {
  if (library == ProductLibrary::onednn) {
    at::native::mkldnn_matmul(a, b, y, static_cast<float>(beta), /*alpha=*/1);
  } else if (beta == 0) {
    at::mm_out(y, a, b);
  } else {
    y.addmm_(a, b);
  }
}

}  // namespace

void product_out(Tensor& y, const Tensor& a, const Tensor& b) {
  const base::ProfiledOp profiled("product");
  check_product(y, a, b);
  if (const DeviceKernels* const device = device_of("product", y, a, b)) {
    if (uses_few_device_rows(a, b)) return device->row_product(y, a, b.t());
    multiply(y, a, b, /*beta=*/0, ProductLibrary::torch_mm);
  } else if (uses_few_rows(a, b)) {
    few_rows_out(y, a, b);
  } else if (widens_product(a, b)) {
    widened_product_out(y, a, b);
  } else {
    multiply(y, a, b, /*beta=*/0, library_of(a, b));
  }
}

void product_out(Tensor& y, const Tensor& a, const Tensor& b, ProductLibrary library) {
  check_host_product(y, a, b);
  multiply(y, a, b, /*beta=*/0, library);
}

std::string product_name(const Tensor& a, const Tensor& b) {
  if (uses_few_rows(a, b)) return std::string("own loops, ") + base::name_of(base::loops_isa());
  if (widens_product(a, b)) return std::string("widened, ") + base::name_of(base::loops_isa());
  return name(library_of(a, b));
}

int64_t rows_with_equal_bits(at::ScalarType dtype) {
  return has_few_rows_loops(dtype) ? kFewRows : 1;
}

void add_product_(Tensor& y, const Tensor& a, const Tensor& b) {
  check_product(y, a, b);
  const bool is_on_device = device_of("product", y, a, b) != nullptr;
  multiply(y, a, b, /*beta=*/1, is_on_device ? ProductLibrary::torch_mm : library_of(a, b));
}

void add_product_(Tensor& y, const Tensor& a, const Tensor& b, ProductLibrary library) {
  check_host_product(y, a, b);
  multiply(y, a, b, /*beta=*/1, library);
}

}  // namespace shardwise::kernels
