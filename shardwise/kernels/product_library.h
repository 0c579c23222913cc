// Which of the two matrix libraries that torch contains computes an fp32 product: the one measured to be
// faster on this processor for the nearest shape (`shardwise bench products --tune`), else the default.
//
// torch's own choice for fp32 is MKL, which runs AVX2 code on AMD processors with AVX-512; oneDNN runs
// AVX-512 code there, at 2.2 times the speed (docs/adr/0007). On Intel's either may be faster.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::kernels {

/// torch.mm: what at::mm calls, in torch's x86 wheels MKL.
enum class ProductLibrary : uint8_t { onednn, torch_mm };
inline constexpr std::array kProductLibraries{ProductLibrary::onednn, ProductLibrary::torch_mm};

/// Returns those that multiply on this processor: oneDNN, as torch calls it, needs AVX-512.
std::vector<ProductLibrary> product_libraries();

/// Returns "oneDNN" or "torch.mm".
std::string name(ProductLibrary library);

/// The products of a linear layer, by how their operands lie: y = x·Wᵀ, dx = dy·W and dW += dyᵀ·x.
enum class ProductForm : uint8_t { forward, input_gradient, weight_gradient };
inline constexpr std::array kProductForms{ProductForm::forward, ProductForm::input_gradient,
                                          ProductForm::weight_gradient};

/// Returns "forward", "input_gradient" or "weight_gradient".
std::string name(ProductForm form);

/// A product [m, k]·[k, n].
struct ProductShape {
  ProductForm form;
  int64_t m, n, k;
};

ProductShape product_shape(const at::Tensor& a, const at::Tensor& b);

/// The faster library of a shape.
struct MeasuredProduct {
  ProductShape shape;
  ProductLibrary library;
};

/// The choice of a library by shape.
class ProductChoice {
 public:
  /// Without measurements: oneDNN if its products run AVX-512 code, else torch.mm.
  ProductChoice() = default;
  explicit ProductChoice(std::vector<MeasuredProduct> measured) : measured_(std::move(measured)) {}

  /// Returns the library of the measured product of the same form with the nearest shape: the smallest sum of
  /// |log₂| of the ratios of m, n and k. Without one of this form, returns the default.
  ProductLibrary of(const ProductShape& shape) const;
  bool is_measured() const { return !measured_.empty(); }

 private:
  std::vector<MeasuredProduct> measured_;
};

/// Returns the text of a saved choice: a line "FORM M N K LIBRARY" for each product.
std::string to_text(const std::vector<MeasuredProduct>& measured);
/// Reads that text. `source` is its file, for errors. Errors: c10::ValueError.
std::vector<MeasuredProduct> measured_products(std::string_view text, const std::string& source);

/// Returns the file of the choice measured on this processor; "" if neither $XDG_CACHE_HOME nor $HOME is an
/// absolute path.
std::string product_choice_file();
/// Saves a choice for later runs, overwriting an earlier one. product_choice_file() must not be "". Errors:
/// base::FileError.
void save_product_choice(const std::vector<MeasuredProduct>& measured);
/// Returns the saved choice, else the default. Logs a warning if a saved choice cannot be used.
ProductChoice saved_product_choice();
/// Returns the choice of this process: saved_product_choice() at its first call.
const ProductChoice& product_choice();

}  // namespace shardwise::kernels
