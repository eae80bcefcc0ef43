// Causal attention of 2 sequences, 8 query heads over 2 key/value heads (grouped-query attention), 128 tokens, head size 64.
#include <cstdio>
#include <vector>

#include "polyhead/polyhead.hpp"

int main() try {
  using polyhead::TensorView;
  const std::int64_t batch = 2, heads = 8, kv_heads = 2, length = 128, dim = 64;
  std::vector<float> query(batch * heads * length * dim, 0.1f), out(query.size());
  std::vector<float> key(batch * kv_heads * length * dim, 0.1f), value(key.size());
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<float>(i / dim % length);  // value of key s: s

  const polyhead::Runtime runtime;  // all CPUs this process may use, the best instruction set they have
  polyhead::AttentionInputs inputs;
  inputs.query = TensorView::of(query.data(), {batch, heads, length, dim});
  inputs.key = TensorView::of(key.data(), {batch, kv_heads, length, dim});
  inputs.value = TensorView::of(value.data(), {batch, kv_heads, length, dim});
  inputs.out = TensorView::of(out.data(), {batch, heads, length, dim});

  polyhead::AttentionOptions options;
  options.mask = polyhead::Mask::causal(polyhead::Causal::bottom_right);
  polyhead::attention(runtime, inputs, options);

  // All keys look alike, so query t averages the values 0 .. t: t / 2.
  std::printf("out[0, 0, 100, 0] = %.3f, expected 50\n", out[100 * dim]);
  std::printf("%s", runtime.describe().c_str());
  return out[100 * dim] > 49.99f && out[100 * dim] < 50.01f ? 0 : 1;
} catch (const polyhead::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
