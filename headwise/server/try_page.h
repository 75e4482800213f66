// try_page: the page on which a reader tries a sentence; one file that loads nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace headwise::server {

/// viewer/try, put together by CMake. It holds nothing of the model: that is asked for, with the token.
std::string_view try_page();

}  // namespace headwise::server
