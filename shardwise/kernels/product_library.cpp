#include "shardwise/kernels/product_library.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/error.h"
#include "shardwise/base/isa.h"
#include "shardwise/base/log.h"
#include "shardwise/base/measured_file.h"

namespace shardwise::kernels {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 16;

ProductLibrary default_library() {
  return product_libraries().front();
}

double distance(const ProductShape& a, const ProductShape& b) {
  const auto ratio = [](int64_t x, int64_t y) {
    return std::abs(std::log2(static_cast<double>(x) / static_cast<double>(y)));
  };
  return ratio(a.m, b.m) + ratio(a.n, b.n) + ratio(a.k, b.k);
}

base::MeasuredFile file() {
  return {"products", "fp32 products, " + base::cpu_name()};
}

/// Removes and returns the text up to `separator`, or all of it.
std::string_view take(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return taken;
}

/// Returns 0 if `text` is not a positive number.
int64_t positive(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

template <class Values>
auto named(const Values& values, std::string_view text) -> std::optional<typename Values::value_type> {
  for (const auto value : values) {
    if (name(value) == text) return value;
  }
  return std::nullopt;
}

std::optional<MeasuredProduct> measured_product(std::string_view line) {
  const auto form = named(kProductForms, take(line, ' '));
  const int64_t m = positive(take(line, ' ')), n = positive(take(line, ' ')), k = positive(take(line, ' '));
  const auto library = named(kProductLibraries, line);
  if (!form || !library || m == 0 || n == 0 || k == 0) return std::nullopt;
  return MeasuredProduct{{*form, m, n, k}, *library};
}

}  // namespace

std::string name(ProductLibrary library) {
  return library == ProductLibrary::onednn ? "oneDNN" : "torch.mm";
}

std::string name(ProductForm form) {
  switch (form) {
    case ProductForm::forward:
      return "forward";
    case ProductForm::input_gradient:
      return "input_gradient";
    case ProductForm::weight_gradient:
      return "weight_gradient";
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::vector<ProductLibrary> product_libraries() {
  if (base::best_isa() < base::Isa::avx512) return {ProductLibrary::torch_mm};
  return {kProductLibraries.begin(), kProductLibraries.end()};
}

ProductShape product_shape(const at::Tensor& a, const at::Tensor& b) {
  const ProductForm form = !a.is_contiguous()      ? ProductForm::weight_gradient
                           : b.t().is_contiguous() ? ProductForm::forward
                                                   : ProductForm::input_gradient;
  return {form, a.size(0), b.size(1), a.size(1)};
}

ProductLibrary ProductChoice::of(const ProductShape& shape) const {
  const MeasuredProduct* nearest = nullptr;
  double least = 0;
  for (const MeasuredProduct& measured : measured_) {
    if (measured.shape.form != shape.form) continue;
    const double away = distance(measured.shape, shape);
    if (nearest && away >= least) continue;
    nearest = &measured;
    least = away;
  }
  return nearest ? nearest->library : default_library();
}

std::string to_text(const std::vector<MeasuredProduct>& measured) {
  std::string text;
  for (const auto& [shape, library] : measured)
    text += fmt::format("{} {} {} {} {}\n", name(shape.form), shape.m, shape.n, shape.k, name(library));
  return text;
}

std::vector<MeasuredProduct> measured_products(std::string_view text, const std::string& source) {
  std::vector<MeasuredProduct> measured;
  do {
    const std::string_view line = take(text, '\n');
    const std::optional<MeasuredProduct> product = measured_product(line);
    TORCH_CHECK_VALUE(product, source,
                      ": each line must be the product's form, m, n, k and library, as in 'forward 512 2048 "
                      "1024 oneDNN'; got ",
                      base::start_of(line), " [SW0749]");
    measured.push_back(*product);
  } while (!text.empty());
  return measured;
}

std::string product_choice_file() {
  return file().path();
}

void save_product_choice(const std::vector<MeasuredProduct>& measured) {
  file().write(to_text(measured));
}

ProductChoice saved_product_choice() {
  try {
    const std::optional<std::string> text = file().read(kMaxFileBytes);
    return text ? ProductChoice(measured_products(*text, product_choice_file())) : ProductChoice();
  } catch (const c10::Error& rejected) {
    base::log_warning(base::with_code_last(
        fmt::format("fp32 products: {}; the default library is used [SW0750]", base::one_line(rejected))));
    return {};
  }
}

const ProductChoice& product_choice() {
  static const ProductChoice choice = saved_product_choice();
  return choice;
}

}  // namespace shardwise::kernels
