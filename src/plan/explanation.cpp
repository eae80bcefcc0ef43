#include "plan/explanation.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "simd/contract/attention.hpp"

namespace polyhead::plan {
namespace {

// %.9g, with a point whatever the locale, and 0 for what is no number.
std::string number_text(double value) {
  if (!std::isfinite(value)) return "0";
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  for (char* c = text; *c; ++c) {
    if (std::strchr("0123456789+-e", *c) == nullptr) *c = '.';
  }
  return text;
}

// A JSON object or array, written as it is told. A library's writer would add a tenth to the smallest build.
class JsonWriter {
 public:
  explicit JsonWriter(char open) : text_(1, open), close_(open == '{' ? '}' : ']') {}

  JsonWriter& add(const char* key, const std::string& value) { return raw(key, quoted(value)); }
  JsonWriter& add(const char* key, const char* value) { return raw(key, quoted(value)); }
  JsonWriter& add(const char* key, std::int64_t value) { return raw(key, std::to_string(value)); }
  JsonWriter& add(const char* key, int value) { return raw(key, std::to_string(value)); }
  JsonWriter& add(const char* key, double value) { return raw(key, number_text(value)); }
  JsonWriter& add(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
  // A value that is JSON already; no key in an array.
  JsonWriter& raw(const char* key, const std::string& value) {
    if (text_.size() > 1) text_ += ", ";
    if (key) text_ += quoted(key) + ": ";
    text_ += value;
    return *this;
  }
  std::string done() const { return text_ + close_; }

  static std::string quoted(const std::string& value) {
    std::string text = "\"";
    for (const char c : value) {
      const auto code = static_cast<unsigned char>(c);
      if (code < 0x20 || code >= 0x7f) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
        text += escaped;
        continue;
      }
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    return text + '"';
  }

 private:
  std::string text_;
  char close_;
};

std::string relative_bias_json(const RelativeBias& bias) {
  JsonWriter json('{');
  switch (bias.kind) {
    case RelativeBias::Kind::none:
      return "null";
    case RelativeBias::Kind::t5:
      json.add("kind", "t5").add("buckets", bias.buckets).add("max_distance", bias.max_distance);
      json.add("bidirectional", bias.bidirectional);
      break;
    case RelativeBias::Kind::swin:
      json.add("kind", "swin").add("height", bias.height).add("width", bias.width);
      break;
  }
  return json.done();
}

// The name of a causal alignment, as Python and C have it; empty: none.
const char* alignment_name(Causal causality) {
  switch (causality) {
    case Causal::none:
      break;
    case Causal::top_left:
      return "top_left";
    case Causal::bottom_right:
      return "bottom_right";
    case Causal::offset:
      return "offset";
  }
  return "";
}

bool has_window(const Mask& mask) {
  return mask.window_left != Mask::unbounded || mask.window_right != Mask::unbounded;
}

// The parts that are there or not, by the names that Python's explain() takes.
struct MaskPart {
  const char* name;
  bool given;
};
std::array<MaskPart, 8> parts_of(const Mask& mask) {
  return {{{"key_lengths", mask.has_key_lengths},
           {"query_lengths", mask.has_query_lengths},
           {"offsets", mask.has_offsets},
           {"packed", mask.is_packed},
           {"prefix", mask.has_prefix},
           {"segments", mask.has_segments},
           {"boolean", mask.has_boolean},
           {"bias", mask.has_bias}}};
}

std::string mask_json(const Mask& mask) {
  JsonWriter json('{'), window('{'), blocks('{');
  const std::string causal = alignment_name(mask.causality);
  window.add("left", mask.window_left).add("right", mask.window_right).add("kept", mask.window_kept);
  blocks.add("queries", mask.block_queries).add("keys", mask.block_keys);
  json.raw("causal", causal.empty() ? "null" : JsonWriter::quoted(causal));
  json.raw("window", has_window(mask) ? window.done() : "null");
  for (const MaskPart& part : parts_of(mask)) json.add(part.name, part.given);
  json.raw("blocks", mask.block_queries != 0 ? blocks.done() : "null");
  return json.done();
}

std::string mask_text(const Mask& mask) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (const std::string causal = alignment_name(mask.causality); !causal.empty()) add("causal " + causal);
  if (has_window(mask)) {
    add("window (" + std::to_string(mask.window_left) + ", " + std::to_string(mask.window_right) + ")");
    if (mask.window_kept != 0) add("kept " + std::to_string(mask.window_kept));
  }
  for (const MaskPart& part : parts_of(mask)) {
    if (part.given) add(part.name);
  }
  if (mask.block_queries != 0) {
    add("blocks " + std::to_string(mask.block_queries) + " x " + std::to_string(mask.block_keys));
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::string to_text(const Explanation& e) {
  char line[512];
  std::string text;
  const auto add = [&](const char* format, auto... values) {
    std::snprintf(line, sizeof line, format, values...);
    text += line;
  };
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  add("kernel       %s (%s)\n", e.kernel.c_str(), e.reason.c_str());
  if (!e.rest_kernel.empty()) {
    add("             %s for the last %lld row%s of a kv head, which would leave most of a vector idle\n",
        e.rest_kernel.c_str(), number(e.rest_rows), e.rest_rows > 1 ? "s" : "");
  }
  add("isa          %s\n", e.isa.c_str());
  add("precision    %s\n",
      e.precision_asked == e.precision ? e.precision.c_str() : "fast: computed as strict, no faster kernel serves this");
  add("dtype        %s\n", e.dtype.c_str());
  add("shape        batch %lld, heads %lld, kv_heads %lld, query_length %lld, key_length %lld, head_dim %lld, value_dim %lld\n",
      number(e.batch), number(e.heads), number(e.kv_heads), number(e.query_length), number(e.key_length), number(e.head_dim),
      number(e.value_dim));
  text += "mask         " + mask_text(e.mask) + "\n";
  if (e.summary_bytes > 0) {
    add("summary      a boolean mask that heads or batch items share is read once a run: %lld queries x %lld keys a mark, %zu "
        "bytes at most\n",
        number(simd::AttentionArgs::queries_per_mark), number(simd::AttentionArgs::keys_per_mark), e.summary_bytes);
  }
  add("blocks       %lld rows x %lld keys; rows of one kv head: %lld (%lld query heads stacked)\n", number(e.row_block),
      number(e.key_block), number(e.rows), number(e.group));
  if (e.key_split != 0) {
    add("key splits   every %lld keys, merged in ascending order, %s\n", number(e.key_split), e.splits_run.c_str());
  }
  add("tiles        %lld skipped, %lld full, %lld partial (by structure, at the largest shape%s%s)\n", number(e.tiles_skipped),
      number(e.tiles_full), number(e.tiles_partial), e.tiles_at_run_time.empty() ? "" : "; ", e.tiles_at_run_time.c_str());
  if (e.by_sequences) {
    add("work         cut at run time by each sequence's own lengths, heaviest first; about %.3g ms on one thread at most\n",
        e.one_thread_ms);
  } else {
    add("work         %lld pieces of up to %lld rows, %lld graph nodes, about %.3g ms on one thread\n", number(e.pieces),
        number(e.rows_per_piece), number(e.nodes), e.one_thread_ms);
  }
  add("threads      %d%s\n", e.threads, e.runs_inline ? " (runs inline on the caller's thread)" : "");
  add("expected     about %.3g ms\n", e.expected_ms);
  add("scale        %.9g\n", e.scale);
  if (e.softcap > 0) add("softcap      %.9g\n", e.softcap);
  if (!e.score_mod.empty()) {
    text += "score_mod    " + e.score_mod + ", the caller's own function, on every tile" +
            (e.score_mod_classifies ? " that its classifier does not skip at run time\n" : "; it classes no tiles\n");
    if (e.score_mod_classifies && e.mod_not_asked.empty()) {
      add("             of these its classifier skips %lld; %lld are full, %lld partial; the times above know it\n",
          number(e.mod_tiles_skipped), number(e.mod_tiles_full), number(e.mod_tiles_partial));
    } else if (e.score_mod_classifies) {
      text += "             its classifier is not counted: " + e.mod_not_asked + "\n";
    }
  }
  if (e.alibi) text += "ALiBi        a slope a query head\n";
  if (e.relative_bias.kind == RelativeBias::Kind::t5) {
    add("relative     T5, %lld buckets, read along diagonals of a row of distances a head\n", number(e.relative_bias.buckets));
  } else if (e.relative_bias.kind == RelativeBias::Kind::swin) {
    add("relative     Swin, windows of %lld x %lld, read by window row and column\n", number(e.relative_bias.height),
        number(e.relative_bias.width));
  }
  if (e.sink) text += "sink         a logit a query head, joins finished rows\n";
  for (const std::string& why : e.not_faster) text += "not faster   " + why + "\n";
  add("workspace    %zu bytes\n", e.workspace_bytes);
  return text;
}

std::string to_json(const Explanation& e) {
  JsonWriter summary('{'), rest('{'), score_mod('{'), mod_tiles('{'), shape('{'), splits('{'), tiles('{'), work('{'),
      not_faster('['), all('{');
  shape.add("batch", e.batch).add("heads", e.heads).add("kv_heads", e.kv_heads).add("query_length", e.query_length);
  shape.add("key_length", e.key_length).add("head_dim", e.head_dim).add("value_dim", e.value_dim);
  splits.add("keys", e.key_split).add("run", e.splits_run);
  tiles.add("rows", e.row_block).add("keys", e.key_block).add("skipped", e.tiles_skipped).add("full", e.tiles_full);
  tiles.add("partial", e.tiles_partial).add("at_run_time", e.tiles_at_run_time);
  work.add("cut_at_run_time", e.by_sequences);
  if (!e.by_sequences) work.add("pieces", e.pieces).add("rows_per_piece", e.rows_per_piece).add("nodes", e.nodes);
  for (const std::string& why : e.not_faster) not_faster.raw(nullptr, JsonWriter::quoted(why));
  rest.add("name", e.rest_kernel).add("rows", e.rest_rows);
  all.add("kernel", e.kernel)
      .raw("rest_kernel", e.rest_kernel.empty() ? "null" : rest.done())
      .add("reason", e.reason)
      .add("isa", e.isa)
      .add("dtype", e.dtype)
      .add("key_dtype", e.key_dtype)
      .add("out_dtype", e.out_dtype);
  all.add("precision", e.precision).add("precision_asked", e.precision_asked).raw("shape", shape.done());
  summary.add("queries", simd::AttentionArgs::queries_per_mark).add("keys", simd::AttentionArgs::keys_per_mark);
  summary.add("bytes", static_cast<std::int64_t>(e.summary_bytes));
  all.raw("mask", mask_json(e.mask)).raw("mask_summary", e.summary_bytes > 0 ? summary.done() : "null");
  all.add("rows_of_a_kv_head", e.rows).add("query_heads_stacked", e.group);
  all.raw("key_splits", e.key_split ? splits.done() : "null").raw("tiles", tiles.done()).raw("work", work.done());
  all.add("threads", e.threads).add("runs_inline", e.runs_inline).add("one_thread_ms", e.one_thread_ms);
  all.add("expected_ms", e.expected_ms).add("scale", e.scale).add("softcap", e.softcap).add("alibi", e.alibi);
  score_mod.add("name", e.score_mod).add("classifies_tiles", e.score_mod_classifies);
  mod_tiles.add("skipped", e.mod_tiles_skipped).add("full", e.mod_tiles_full).add("partial", e.mod_tiles_partial);
  score_mod.raw("tiles", e.score_mod_classifies && e.mod_not_asked.empty() ? mod_tiles.done() : "null");
  score_mod.add("not_counted", e.mod_not_asked);
  all.raw("score_mod", e.score_mod.empty() ? "null" : score_mod.done());
  all.add("sink", e.sink).raw("relative_bias", relative_bias_json(e.relative_bias)).raw("not_faster", not_faster.done());
  all.add("workspace_bytes", static_cast<std::int64_t>(e.workspace_bytes));
  return all.done();
}

}  // namespace polyhead::plan
