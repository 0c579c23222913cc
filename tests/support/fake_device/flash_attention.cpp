#include "tests/support/fake_device/flash_attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <limits>

#include "tests/support/fake_device/counts.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/host_views.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

using at::Tensor;
using Window = std::optional<int64_t>;

/// A call's heads on the host in fp32, [b, a, s, d], and its probabilities.
struct Heads {
  Tensor q, k, v;
  double scale;
  int64_t group;

  Heads(const Tensor& query, const Tensor& key, const Tensor& value, std::optional<double> given)
      : scale(given.value_or(1 / std::sqrt(static_cast<double>(query.size(3))))),
        group(query.size(2) / key.size(2)) {
    check(query, query);
    check(key, query);
    check(value, query);
    TORCH_CHECK(query.size(2) % key.size(2) == 0,
                "Number of heads in key/value must divide number of heads in query");
    q = wide(query);
    k = wide(key).repeat_interleave(group, /*dim=*/1);
    v = wide(value).repeat_interleave(group, /*dim=*/1);
  }

  static void check(const Tensor& x, const Tensor& query) {
    TORCH_CHECK(x.device().type() == kDeviceType, "expected a tensor of the device; got ", x.device());
    TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf,
                "FlashAttention only support fp16 and bf16 data type");
    TORCH_CHECK(x.stride(-1) == 1, "Input tensor must have contiguous last dimension");
    TORCH_CHECK(x.size(3) == query.size(3) && x.size(3) % 8 == 0 && x.size(3) <= 256,
                "head_size must be a multiple of 8 up to 256");
  }
  static Tensor wide(const Tensor& heads) { return on_host(heads).to(at::kFloat).transpose(1, 2); }

  /// Returns [b, a, s, m], -inf for keys that a query does not attend to.
  Tensor scores(bool is_causal, Window before, Window after) const {
    const int64_t s = q.size(2), m = k.size(2);
    const Tensor query = at::arange(m - s, m, at::kLong).unsqueeze(1), key = at::arange(m, at::kLong);
    Tensor masked = key.gt(std::numeric_limits<int64_t>::max());
    if (is_causal) after = 0;
    if (after) masked = masked.bitwise_or(key.gt(query + *after));
    if (before) masked = masked.bitwise_or(key.lt(query - *before));
    return at::matmul(q, k.transpose(2, 3)).mul_(scale).masked_fill_(masked, -INFINITY);
  }
};

/// Writes [b, a, s, d] to `to` [b, s, a, d] of the device.
void round_to(const Tensor& to, const Tensor& heads) {
  on_host(to).copy_(heads.transpose(1, 2));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& lengths_q,
    const std::optional<Tensor>& lengths_k, int64_t max_q, int64_t max_k, double dropout, bool is_causal,
    bool /*debug*/, std::optional<double> scale, Window before, Window after, const std::optional<Tensor>&,
    const std::optional<Tensor>&) {
  TORCH_CHECK(!lengths_q && !lengths_k && dropout == 0 && max_q == query.size(1) && max_k == key.size(1),
              "only sequences of one length without dropout");
  const Open open;
  count_fallback("aten::_flash_attention_forward");
  const Heads heads(query, key, value, scale);
  const Tensor scores = heads.scores(is_causal, before, after), lse = scores.logsumexp(-1);
  const Tensor out = at::empty_like(query),
               device_lse = at::empty(lse.sizes(), query.options().dtype(at::kFloat));
  round_to(out, at::matmul((scores - lse.unsqueeze(-1)).exp(), heads.v));
  on_host(device_lse).copy_(lse);
  const auto none = [&] { return at::empty({0}, query.options()); };
  return {out, device_lse, none(), none(), none()};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& d_out, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& lse,
                                            const Tensor& lengths_q, const Tensor& lengths_k, int64_t,
                                            int64_t, double dropout, bool is_causal, const Tensor&,
                                            const Tensor&, std::optional<double> scale, Window before,
                                            Window after) {
  TORCH_CHECK(!lengths_q.defined() && !lengths_k.defined() && dropout == 0,
              "only sequences of one length without dropout");
  TORCH_CHECK(at::globalContext().deterministicAlgorithms(), "must be deterministic");
  const Open open;
  count_fallback("aten::_flash_attention_backward");
  const Heads heads(query, key, value, scale);
  const Tensor dy = Heads::wide(d_out);
  const Tensor p = (heads.scores(is_causal, before, after) - on_host(lse).unsqueeze(-1)).exp();
  const Tensor delta = (dy * Heads::wide(out)).sum(-1, /*keepdim=*/true);
  const Tensor ds = p * (at::matmul(dy, heads.v.transpose(2, 3)) - delta) * heads.scale;
  const auto of_groups = [&](const Tensor& x) {
    return x.view({x.size(0), key.size(2), heads.group, x.size(2), x.size(3)}).sum(2);
  };
  const Tensor dq = at::empty_like(query), dk = at::empty_like(key), dv = at::empty_like(value);
  round_to(dq, at::matmul(ds, heads.k));
  round_to(dk, of_groups(at::matmul(ds.transpose(2, 3), heads.q)));
  round_to(dv, of_groups(at::matmul(p.transpose(2, 3), dy)));
  return {dq, dk, dv};
}

}  // namespace

void register_flash_attention(torch::Library& aten) {
  aten.impl("_flash_attention_forward", forward);
  aten.impl("_flash_attention_backward", backward);
}

}  // namespace shardwise::fake_device
