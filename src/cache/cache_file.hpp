// Caches in files.
//
//     header   fixed size: a mark, version, byte order, the spec's numbers, the sizes of what follows, a checksum
//     index    rotary frequencies; of each sequence length, first token, number of pages; all page numbers; of each page the
//              tokens in use; where integers are stored, all sequences' channels; a checksum
//     pages    of each page the used tokens of every head, keys and then values, as they are stored, each followed by their
//              scales where they have any; a checksum
//
// Numbers are 64 bits wide, in the writer's byte order, which a reader of another one refuses. A page that several sequences
// share is written once.
#pragma once

#include <memory>
#include <string>

#include "cache/store.hpp"

namespace polyhead::cache {

// Errors: io_error.
void save_store(const Store& store, const std::string& path);

// resolve(spec) returns a complete spec, and throws where no cache can have it. Errors: io_error, which names the file;
// unsupported for a newer version.
std::unique_ptr<Store> load_store(const std::string& path, KvCacheSpec (*resolve)(const KvCacheSpec& spec));

}  // namespace polyhead::cache
