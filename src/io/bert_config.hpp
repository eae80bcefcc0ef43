// The config.json of a BERT-family model folder.
#pragma once

#include <string>

#include "polyhead/bert.hpp"

namespace polyhead::io {

// Errors: io_error (absent, not JSON, a field missing or out of range), unsupported (another architecture, activation or
// position scheme); the message names the file and the field.
BertConfig read_bert_config(const std::string& path);

}  // namespace polyhead::io
