// The first sheet of an .xlsx workbook as rows of fields, without trust.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/intent/corpus/csv.h"

namespace headwise {

struct Sheet {
  std::vector<CsvRow> rows;  // those with a field that is not empty; `line` is the row's number in the sheet
  std::map<std::pair<Index, std::size_t>, std::string> computed;  // row number and column: what stands there
                                                                  // in place of a value: "a formula"
};

/// `most` bytes are unpacked at most; `name` begins sentences. Needs a build with zlib.
Sheet read_workbook(std::string_view bytes, Index most, std::string_view name);

/// A, B, ... Z, AA: what a spreadsheet calls a column, which is counted from 0.
std::string column_letters(std::size_t column);

/// What deflate packed, as zip files hold it; `crc` is that of the bytes unpacked.
std::string unpack_deflate(std::string_view packed, std::uint32_t crc, Index most, std::string_view name);

}  // namespace headwise
