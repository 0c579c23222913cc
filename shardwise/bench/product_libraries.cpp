#include "shardwise/bench/product_libraries.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <iterator>

#include "shardwise/bench/synchronizer.h"
#include "shardwise/kernels/product.h"

namespace shardwise::bench {
namespace {

using at::Tensor;
using kernels::ProductForm, kernels::ProductLibrary, kernels::ProductShape;

/// A linear layer's operands: x [rows, inputs], dy [rows, outputs] and W [outputs, inputs], and its results.
struct Operands {
  Tensor x, dy, w, y, dx, dw;

  Operands(const WeightShape& shape, int64_t rows)
      : x(at::randn({rows, shape.inputs})),
        dy(at::randn({rows, shape.outputs})),
        w(at::randn({shape.outputs, shape.inputs})),
        y(at::empty_like(dy)),
        dx(at::empty_like(x)),
        dw(at::zeros_like(w)) {}

  ProductShape shape_of(ProductForm form) const {
    switch (form) {
      case ProductForm::forward:
        return kernels::product_shape(x, w.t());
      case ProductForm::input_gradient:
        return kernels::product_shape(dy, w);
      case ProductForm::weight_gradient:
        return kernels::product_shape(dy.t(), x);
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  void multiply(ProductForm form, ProductLibrary library) {
    switch (form) {
      case ProductForm::forward:
        return kernels::product_out(y, x, w.t(), library);
      case ProductForm::input_gradient:
        return kernels::product_out(dx, dy, w, library);
      case ProductForm::weight_gradient:
        return kernels::add_product_(dw, dy.t(), x, library);
    }
  }
};

/// Appends the products of one weight and number of rows.
void measure_pair(const WeightShape& shape, int64_t rows, double seconds, const Synchronizer& synchronizer,
                  std::vector<LibrariesMeasured>& measured) {
  Operands operands(shape, rows);
  const std::vector<ProductLibrary> libraries = kernels::product_libraries();
  std::vector<TimedCall> calls;
  for (const ProductForm form : kernels::kProductForms) {
    for (const ProductLibrary library : libraries)
      calls.push_back({name(library), [&operands, form, library] { operands.multiply(form, library); }, {}});
  }
  std::vector<Measured> times = measure(calls, CacheState::warm, seconds, synchronizer);
  for (size_t i = 0; i < kernels::kProductForms.size(); ++i) {
    LibrariesMeasured& of = measured.emplace_back(shape.name, operands.shape_of(kernels::kProductForms[i]));
    std::move(times.begin() + i * libraries.size(), times.begin() + (i + 1) * libraries.size(),
              std::back_inserter(of.libraries));
  }
}

}  // namespace

ProductLibrary LibrariesMeasured::fastest() const {
  const auto median = [](const Measured& m) { return m.raw.median_us; };
  return kernels::product_libraries()[std::ranges::min_element(libraries, {}, median) - libraries.begin()];
}

std::vector<LibrariesMeasured> measure_libraries(const std::vector<WeightShape>& shapes,
                                                 const std::vector<int64_t>& rows, double seconds,
                                                 const comm::Group& group,
                                                 const OnLibrariesProgress& on_progress) {
  Synchronizer synchronizer = synchronizer_of(group);
  size_t pairs = 0;
  if (group.rank() == 0) {
    synchronizer.after_repetition = [&](int64_t done, int64_t repetitions) {
      on_progress(pairs, done, repetitions);
    };
  }
  std::vector<LibrariesMeasured> measured;
  for (const WeightShape& shape : shapes) {
    for (const int64_t count : rows) {
      measure_pair(shape, count, seconds, synchronizer, measured);
      ++pairs;
    }
  }
  return measured;
}

}  // namespace shardwise::bench
