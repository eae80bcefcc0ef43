#include "cache/cache_file.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "io/checksum.hpp"
#include "io/file.hpp"
#include "io/output_file.hpp"
#include "platform/rounding.hpp"
#include "polyhead/error.hpp"

namespace polyhead::cache {
namespace {

constexpr char mark[8] = {'P', 'H', 'K', 'V', 'C', 'A', 'C', 'H'};
constexpr std::int64_t newest_version = 2;
// The first version that knows what a file has: integers came with the second.
std::int64_t version_of(DType dtype) {
  return dtype == DType::i8 ? 2 : 1;
}
constexpr std::int64_t byte_order = 0x0102030405060708;

struct Header {
  char mark[8];
  std::int64_t byte_order, version;
  std::int64_t kind, dtype, sequences, kv_heads, head_dim, value_dim, capacity, window, page_tokens, max_pages;
  std::int64_t rotary_style, rotary_dims;
  double rotary_base;
  std::int64_t frequencies;    // that are given
  std::int64_t table_entries;  // of all sequences together
  std::int64_t pages;
  std::int64_t used_tokens;  // of all pages together
  std::uint64_t checksum;    // of all before it
};
static_assert(sizeof(Header) == 8 * 21, "written as it lies in memory");

std::uint64_t checksum_of(const void* data, std::size_t bytes) {
  io::Checksum sum;
  sum.add(data, bytes);
  return sum.value();
}
std::uint64_t checksum_of(const Header& header) {
  return checksum_of(&header, offsetof(Header, checksum));
}

struct SequenceEntry {
  std::int64_t length, first, pages;
};

// What stands between header and pages.
struct Index {
  std::vector<double> frequencies;
  std::vector<SequenceEntry> sequences;
  std::vector<std::int64_t> table;
  std::vector<std::int64_t> used;  // [page]
  std::vector<float> channels;     // of all sequences, where integers are stored: an even number

  template <typename Function>
  void each_part(const Function& function) {
    function(frequencies.data(), frequencies.size() * sizeof(double));
    function(sequences.data(), sequences.size() * sizeof(SequenceEntry));
    function(table.data(), table.size() * sizeof(std::int64_t));
    function(used.data(), used.size() * sizeof(std::int64_t));
    function(channels.data(), channels.size() * sizeof(float));
  }
  std::uint64_t checksum() {
    io::Checksum sum;
    each_part([&](const void* data, std::size_t bytes) { sum.add(data, bytes); });
    return sum.value();
  }
};

// Calls function(memory, bytes) for the used tokens of a page: each head's keys, then its values.
template <typename Function>
void each_run(const Store& store, char* page, std::int64_t used, const Function& function) {
  for (std::int64_t head = 0; head < store.shape().kv_heads; ++head) {
    function(page + store.key_at(head, 0), static_cast<std::size_t>(used * store.shape().key_stride()));
    if (store.scaled()) {
      function(page + store.key_scale_at(head, 0), static_cast<std::size_t>(used * store.shape().scale_bytes));
    }
    function(page + store.value_at(head, 0), static_cast<std::size_t>(used * store.shape().value_stride()));
    if (store.scaled()) {
      function(page + store.value_scale_at(head, 0), static_cast<std::size_t>(used * store.shape().scale_bytes));
    }
  }
}

// The tokens of a ring's or a contiguous sequence's page that hold something: after a trim more than those that count, but then
// they are in nobody's way.
std::int64_t used_of_whole(const KvCacheSpec& spec, std::int64_t length) {
  return std::min(length, spec.capacity);
}

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path) {}

  std::unique_ptr<Store> load(KvCacheSpec (*resolve)(const KvCacheSpec& spec)) {
    read_header();
    read_index();
    KvCacheSpec spec = spec_of_header();
    try {
      spec = resolve(spec);
    } catch (const Error& error) {
      refuse(std::string("its header describes no cache: ") + error.what());
    }
    check_sizes(spec);
    check_index(spec);
    check_channels(spec);
    auto store = std::make_unique<Store>(spec);
    store->channels() = index_.channels;
    read_pages(*store);
    return store;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { file_.fail(what); }

  template <typename T>
  void read(T* to, std::size_t count) {
    file_.read(at_, to, count * sizeof(T));
    at_ += count * sizeof(T);
  }

  void read_header() {
    if (file_.size() < sizeof(Header)) {
      refuse("is no saved cache: it has " + std::to_string(file_.size()) + " bytes, fewer than a header");
    }
    read(&header_, 1);
    if (std::memcmp(header_.mark, mark, sizeof(mark)) != 0) refuse("is no saved cache: it does not begin as one");
    if (header_.byte_order != byte_order) refuse("was saved on a machine with another byte order");
    if (header_.version > newest_version) {
      throw Error(ErrorCode::unsupported, file_.path() + ": saved in version " + std::to_string(header_.version) +
                                              " of the format; this library knows " + std::to_string(newest_version));
    }
    if (header_.version < 1) refuse("has version " + std::to_string(header_.version) + " of the format, expected 1");
    if (header_.checksum != checksum_of(header_)) refuse("is damaged: the checksum of its header does not fit");
  }

  // Sizes of parts against the file's, before memory is asked for.
  std::size_t count_in_file(std::int64_t count, std::size_t bytes_each, const char* what) {
    std::uint64_t bytes;
    if (count < 0 || !io::multiply(static_cast<std::uint64_t>(count), bytes_each, &bytes) || bytes > file_.size()) {
      refuse(std::string("its header names ") + std::to_string(count) + " " + what + ", more than it has bytes for");
    }
    return static_cast<std::size_t>(count);
  }

  void read_index() {
    index_.frequencies.resize(count_in_file(header_.frequencies, sizeof(double), "frequencies"));
    index_.sequences.resize(count_in_file(header_.sequences, sizeof(SequenceEntry), "sequences"));
    index_.table.resize(count_in_file(header_.table_entries, sizeof(std::int64_t), "table entries"));
    index_.used.resize(count_in_file(header_.pages, sizeof(std::int64_t), "pages"));
    if (header_.dtype == static_cast<std::int64_t>(DType::i8)) {
      std::int64_t count = 0;
      bool fits = !__builtin_add_overflow(header_.head_dim, header_.value_dim, &count);
      for (const std::int64_t size : {header_.sequences, header_.kv_heads, std::int64_t{2}}) {
        fits = fits && size >= 0 && !__builtin_mul_overflow(count, size, &count);
      }
      index_.channels.resize(count_in_file(fits ? count : -1, sizeof(float), "channels"));
    }
    index_.each_part([&](auto* data, std::size_t bytes) {
      if (bytes > 0) read(reinterpret_cast<char*>(data), bytes);
    });
    std::uint64_t checksum = 0;
    read(&checksum, 1);
    if (checksum != index_.checksum()) refuse("is damaged: the checksum of its index does not fit");
  }

  KvCacheSpec spec_of_header() const {
    KvCacheSpec spec;
    if (header_.kind < 0 || header_.kind > 2) refuse("its header names kind " + std::to_string(header_.kind));
    if (header_.dtype < 0 || header_.dtype > 255) refuse("its header names dtype " + std::to_string(header_.dtype));
    if (header_.rotary_style < 0 || header_.rotary_style > 2) {
      refuse("its header names rotary style " + std::to_string(header_.rotary_style));
    }
    spec.kind = static_cast<CacheKind>(header_.kind);
    spec.dtype = static_cast<DType>(header_.dtype);
    spec.sequences = header_.sequences;
    spec.kv_heads = header_.kv_heads;
    spec.head_dim = header_.head_dim;
    spec.value_dim = header_.value_dim;
    spec.capacity = header_.capacity;
    spec.window = header_.window;
    spec.page_tokens = header_.page_tokens;
    spec.max_pages = header_.max_pages;
    spec.rotary = {static_cast<Rotary>(header_.rotary_style), header_.rotary_dims, header_.rotary_base, index_.frequencies};
    return spec;
  }

  // The whole file is there, to the byte.
  void check_sizes(const KvCacheSpec& spec) {
    PageShape token = {spec.kv_heads, spec.head_dim, spec.value_dim, 1, size_in_bytes(spec.dtype)};
    if (spec.dtype == DType::i8) token.scale_bytes = sizeof(float);
    std::uint64_t tokens = 0, bytes = 0;
    for (const std::int64_t used : index_.used) {
      // Checksums alone take more bytes than that sum has room to overflow in.
      if (used < 0 || used > header_.used_tokens) refuse("its index names a page of " + std::to_string(used) + " tokens");
      tokens += static_cast<std::uint64_t>(used);
      if (tokens > static_cast<std::uint64_t>(header_.used_tokens)) refuse("its pages have more tokens than its header says");
    }
    if (tokens != static_cast<std::uint64_t>(std::max<std::int64_t>(header_.used_tokens, 0))) {
      refuse("its pages have fewer tokens than its header says");
    }
    if (!io::multiply(tokens, static_cast<std::uint64_t>(token.token_bytes()), &bytes)) refuse("its sizes overflow");
    bytes += static_cast<std::uint64_t>(index_.used.size()) * sizeof(std::uint64_t);
    if (bytes != file_.size() - at_) {
      refuse("has " + std::to_string(file_.size() - at_) + " bytes of pages, expected " + std::to_string(bytes));
    }
  }

  [[noreturn]] void refuse_sequence(std::size_t index, const std::string& what) const {
    refuse("sequence " + std::to_string(index) + " " + what);
  }

  // What a cache of this spec can have come to hold, and nothing else.
  void check_index(const KvCacheSpec& spec) {
    const bool paged = spec.kind == CacheKind::paged;
    if (paged && spec.max_pages > 0 && header_.pages > spec.max_pages) {
      refuse("has " + std::to_string(header_.pages) + " pages, more than its max_pages (" + std::to_string(spec.max_pages) +
             ")");
    }
    if (!paged && (header_.pages != spec.sequences || header_.table_entries != 0)) {
      refuse("has " + std::to_string(header_.pages) + " pages for " + std::to_string(spec.sequences) + " whole sequences");
    }
    std::vector<std::int64_t> place(index_.used.size(), -1), needed(index_.used.size(), 0);
    std::size_t entry = 0;
    for (std::size_t i = 0; i < index_.sequences.size(); ++i) {
      const SequenceEntry& sequence = index_.sequences[i];
      constexpr std::int64_t longest = std::numeric_limits<std::int64_t>::max() / 4;
      if (sequence.length < 0 || sequence.length > longest || sequence.first < 0 || sequence.first > sequence.length) {
        refuse_sequence(i,
                        "has length " + std::to_string(sequence.length) + " and first token " + std::to_string(sequence.first));
      }
      const bool bounded = spec.kind == CacheKind::contiguous || (paged && spec.capacity > 0);
      if (bounded && sequence.length > spec.capacity) {
        refuse_sequence(i, "has length " + std::to_string(sequence.length) + ", more than capacity");
      }
      const bool first_fits =
          spec.kind == CacheKind::ring ? sequence.length - sequence.first <= spec.capacity : sequence.first == 0;
      if (!first_fits) refuse_sequence(i, "has first token " + std::to_string(sequence.first));
      if (!paged) {
        if (sequence.pages != 0 || index_.used[i] != used_of_whole(spec, sequence.length)) {
          refuse_sequence(i, "has a page that does not fit its length");
        }
        continue;
      }
      const std::int64_t pages = divide_up(sequence.length, spec.page_tokens);
      if (sequence.pages != pages || static_cast<std::uint64_t>(pages) > index_.table.size() - entry) {
        refuse_sequence(i, "has " + std::to_string(sequence.pages) + " pages, expected " + std::to_string(pages));
      }
      for (std::int64_t at = 0; at < pages; ++at, ++entry) {
        const std::int64_t page = index_.table[entry];
        if (page < 0 || page >= header_.pages) refuse_sequence(i, "names page " + std::to_string(page));
        // Sequences share a page only where they share all before it, so it has one place in all of them.
        std::int64_t& where = place[static_cast<std::size_t>(page)];
        if (where >= 0 && where != at) refuse_sequence(i, "names page " + std::to_string(page) + " in two places");
        where = at;
        std::int64_t& most = needed[static_cast<std::size_t>(page)];
        most = std::max(most, std::min(sequence.length - at * spec.page_tokens, spec.page_tokens));
      }
    }
    if (entry != index_.table.size()) refuse("its page table has entries that belong to no sequence");
    if (paged && needed != index_.used) refuse("its pages hold other tokens than its sequences need");
  }

  // Means are finite, and so are channels, which are positive: 0 only in a sequence that has no tokens yet.
  void check_channels(const KvCacheSpec& spec) const {
    const float* next = index_.channels.data();
    if (index_.channels.empty()) return;
    for (std::size_t i = 0; i < index_.sequences.size(); ++i) {
      for (std::int64_t head = 0; head < spec.kv_heads; ++head) {
        for (const std::int64_t dim : {spec.head_dim, spec.value_dim}) {
          for (std::int64_t d = 0; d < 2 * dim; ++d, ++next) {
            if (std::isfinite(*next) && (d < dim || *next > 0.0f || index_.sequences[i].length == 0)) continue;
            refuse_sequence(i, "has a channel of " + std::to_string(*next));
          }
        }
      }
    }
  }

  void read_pages(Store& store) {
    const bool paged = store.spec().kind == CacheKind::paged;
    std::vector<PageId> ids;
    ids.reserve(index_.used.size());
    for (std::size_t page = 0; page < index_.used.size(); ++page) {
      ids.push_back(paged ? store.new_page() : store.sequence(static_cast<std::int64_t>(page)).pages[0]);
      io::Checksum sum;
      each_run(store, store.page_data(ids.back()), index_.used[page], [&](char* data, std::size_t bytes) {
        if (bytes == 0) return;
        read(data, bytes);
        sum.add(data, bytes);
      });
      std::uint64_t checksum = 0;
      read(&checksum, 1);
      if (checksum != sum.value()) refuse("is damaged: the checksum of page " + std::to_string(page) + " does not fit");
    }
    std::vector<PageId> own;
    const std::int64_t* entry = index_.table.data();
    for (std::size_t i = 0; i < index_.sequences.size(); ++i) {
      const SequenceEntry& sequence = index_.sequences[i];
      own.clear();
      for (std::int64_t at = 0; at < sequence.pages; ++at) own.push_back(ids[static_cast<std::size_t>(*entry++)]);
      store.restore(static_cast<std::int64_t>(i), sequence.length, sequence.first, own.data(), own.size());
    }
    if (!paged) return;
    for (const PageId id : ids) store.drop(id);
  }

  io::InputFile file_;
  std::uint64_t at_ = 0;
  Header header_{};
  Index index_;
};

}  // namespace

void save_store(const Store& store, const std::string& path) {
  const KvCacheSpec& spec = store.spec();
  const bool paged = spec.kind == CacheKind::paged;
  Index index;
  index.frequencies = spec.rotary.frequencies;
  std::vector<std::int64_t> number(static_cast<std::size_t>(store.pool().total()), -1);  // of each page in the file
  std::vector<PageId> pages;
  for (std::int64_t i = 0; i < spec.sequences; ++i) {
    const Sequence& sequence = store.sequence(i);
    index.sequences.push_back({sequence.length, sequence.first, paged ? static_cast<std::int64_t>(sequence.pages.size()) : 0});
    if (!paged) {
      pages.push_back(sequence.pages[0]);
      index.used.push_back(used_of_whole(spec, sequence.length));
      continue;
    }
    for (std::size_t at = 0; at < sequence.pages.size(); ++at) {
      std::int64_t& page = number[sequence.pages[at]];
      const std::int64_t tokens = store.tokens_in_page(sequence, at);
      if (page < 0) {
        page = static_cast<std::int64_t>(pages.size());
        pages.push_back(sequence.pages[at]);
        index.used.push_back(0);
      }
      index.table.push_back(page);
      std::int64_t& used = index.used[static_cast<std::size_t>(page)];
      used = std::max(used, tokens);
    }
  }

  index.channels = store.channels();

  Header header{};
  std::memcpy(header.mark, mark, sizeof(mark));
  header.byte_order = byte_order;
  header.version = version_of(spec.dtype);
  header.kind = static_cast<std::int64_t>(spec.kind);
  header.dtype = static_cast<std::int64_t>(spec.dtype);
  header.sequences = spec.sequences;
  header.kv_heads = spec.kv_heads;
  header.head_dim = spec.head_dim;
  header.value_dim = spec.value_dim;
  header.capacity = spec.capacity;
  header.window = spec.window;
  header.page_tokens = spec.page_tokens;
  header.max_pages = spec.max_pages;
  header.rotary_style = static_cast<std::int64_t>(spec.rotary.style);
  header.rotary_dims = spec.rotary.dims;
  header.rotary_base = spec.rotary.base;
  header.frequencies = static_cast<std::int64_t>(index.frequencies.size());
  header.table_entries = static_cast<std::int64_t>(index.table.size());
  header.pages = static_cast<std::int64_t>(pages.size());
  for (const std::int64_t used : index.used) header.used_tokens += used;
  header.checksum = checksum_of(header);

  io::OutputFile file(path);
  file.write(&header, sizeof header);
  index.each_part([&](const void* data, std::size_t bytes) { file.write(data, bytes); });
  const std::uint64_t index_checksum = index.checksum();
  file.write(&index_checksum, sizeof index_checksum);
  for (std::size_t page = 0; page < pages.size(); ++page) {
    io::Checksum sum;
    each_run(store, store.page_data(pages[page]), index.used[page], [&](const char* data, std::size_t bytes) {
      file.write(data, bytes);
      sum.add(data, bytes);
    });
    const std::uint64_t checksum = sum.value();
    file.write(&checksum, sizeof checksum);
  }
  file.finish();
}

std::unique_ptr<Store> load_store(const std::string& path, KvCacheSpec (*resolve)(const KvCacheSpec& spec)) {
  return Reader(path).load(resolve);
}

}  // namespace polyhead::cache
