// Memory, views, copies and reads. Views are ATen's own: they touch no element.
#include "tests/support/fake_device/functions.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include "tests/support/emulator/emulator.h"
#include "tests/support/fake_device/allocator.h"
#include "tests/support/fake_device/counts.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/fallback.h"
#include "tests/support/fake_device/flash_attention.h"
#include "tests/support/fake_device/graph.h"
#include "tests/support/fake_device/host_views.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_not_pinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool> pinned,
                 std::optional<c10::MemoryFormat> format) {
  check_not_pinned(pinned);
  return at::detail::empty_generic(sizes, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device>, std::optional<bool> pinned) {
  check_not_pinned(pinned);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(x, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& x, c10::IntArrayRef sizes) {
  return at::native::view(x, sizes);
}

at::Tensor reshape_alias(const at::Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::native::_reshape_alias(x, sizes, strides);
}

at::Tensor unfold(const at::Tensor& x, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(x, dim, size, step);
}

/// ATen would do it by the CPU's memcpy.
void grow(const c10::Storage& storage, size_t bytes) {
  if (storage.nbytes() < bytes) resize_storage(storage, bytes);
}

const at::Tensor& resize_(const at::Tensor& x, c10::IntArrayRef sizes,
                          std::optional<c10::MemoryFormat> format) {
  grow(x.storage(), at::detail::computeStorageNbytesContiguous(sizes, x.itemsize(), x.storage_offset()));
  return at::native::resize_(x, sizes, format);
}

at::Tensor& set_tensor_(at::Tensor& x, const at::Tensor& source) {
  return at::native::set_tensor_(x, source);
}

at::Tensor& set_storage_(at::Tensor& x, at::Storage source) {
  return at::native::set_(x, std::move(source));
}

at::Tensor& set_part_(at::Tensor& x, at::Storage source, int64_t offset, c10::IntArrayRef sizes,
                      c10::IntArrayRef strides) {
  grow(source, strides.empty() ? at::detail::computeStorageNbytesContiguous(sizes, x.itemsize(), offset)
                               : at::detail::computeStorageNbytes(sizes, strides, x.itemsize(), offset));
  return at::native::set_storage_cpu_(x, std::move(source), offset, sizes, strides);
}

/// A copy within the device is a kernel on a GPU. One from the host is not, but waits, as on a GPU, for all
/// that was queued before unless it need not block.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.is_cpu() || (from.is_cpu() && !non_blocking)) count_read();
  TORCH_CHECK(from.device() == to.device() || !emulator::is_capturing(),
              "memory of the host is copied while a graph is captured: the graph would read it again");
  if (from.device() == to.device()) count_fallback("aten::copy_");
  run_or_record([from, to] {
    HostViews views;
    views.of(to).copy_(views.of(from));
  });
  return to;
}

at::Scalar local_scalar(const at::Tensor& x) {
  const Open open;
  count_read();
  return on_host(x).item();
}

/// Some operations have a kernel of the CPU, and a composition of others for devices without one. The kernel
/// has the CPU's bits, and is one operation, as on a GPU.
void prefer_kernels(torch::Library& aten) {
  using Key = c10::DispatchKey;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const c10::OperatorHandle op = *c10::Dispatcher::singleton().findOp(name);
    const bool has_composition = op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd) ||
                                 op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd);
    if (name.name.starts_with("aten::") && has_composition && op.hasKernelForDispatchKey(Key::CPU) &&
        !op.hasKernelForDispatchKey(Key::PrivateUse1))
      aten.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  }
}

}  // namespace

void register_functions() {
  static torch::Library& aten = *new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1));
  aten.impl("empty.memory_format", empty);
  aten.impl("empty_strided", empty_strided);
  aten.impl("as_strided", as_strided);
  aten.impl("view", view);
  aten.impl("_reshape_alias", reshape_alias);
  aten.impl("unfold", unfold);
  aten.impl("resize_", resize_);
  aten.impl("set_.source_Tensor", set_tensor_);
  aten.impl("set_.source_Storage", set_storage_);
  aten.impl("set_.source_Storage_storage_offset", set_part_);
  aten.impl("_copy_from", copy_from);
  aten.impl("_local_scalar_dense", local_scalar);
  register_flash_attention(aten);
  prefer_kernels(aten);
  static torch::Library& all = *new torch::Library(MAKE_TORCH_LIBRARY_IMPL(_, PrivateUse1));
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

}  // namespace shardwise::fake_device
