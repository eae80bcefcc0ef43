#include "mods.hpp"
#include "polyhead/score_mod.hpp"

static constexpr auto same_document = [](const Documents& given, std::int64_t /*batch*/, auto /*head*/, auto query, auto key) {
  return polyhead::lookup(given.documents, query) == polyhead::lookup(given.documents, key);
};

// Documents ascend, so the ends of a range say which ones it holds. Only tiles at a border are asked one by one.
static constexpr auto classify = [](const Documents& given, const polyhead::ScoreRange& range) {
  const std::int32_t first_query = given.documents[range.query_begin], last_query = given.documents[range.query_end - 1];
  const std::int32_t first_key = given.documents[range.key_begin], last_key = given.documents[range.key_end - 1];
  if (last_query < first_key || last_key < first_query) return polyhead::TileClass::skip;
  const bool one = first_query == last_query && first_key == last_key && first_query == first_key;
  return one ? polyhead::TileClass::full : polyhead::TileClass::partial;
};

POLYHEAD_SCORE_MOD(document_mod, Documents, nullptr, same_document, classify)
