// CsvReader: rows of fields as RFC 4180 writes them; quotes, doubled quotes and line ends inside quotes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

namespace headwise {

struct CsvRow {
  std::vector<std::string> fields;
  Index line = 0;  // where it begins, from 1
};

class CsvReader {
 public:
  /// `where` begins every sentence; `between` stands between fields.
  CsvReader(std::string_view text, std::string where, char between = ',')
      : text_(text), where_(std::move(where)), between_(between) {}
  /// The next row that is not an empty line; false at the end.
  bool next(CsvRow& row);

 private:
  std::string quoted_field();
  std::string_view text_;
  std::string where_;
  char between_;
  std::size_t at_ = 0;
  Index line_ = 1;
};

/// What stands between the fields of a header: a comma, or where there is none a semicolon or a tab, as
/// spreadsheets of some countries write them.
char csv_separator(std::string_view text);

}  // namespace headwise
