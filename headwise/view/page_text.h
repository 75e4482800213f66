// The sources of the page of attention (viewer/view), put into the library by CMake.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace headwise {

std::string_view view_template();
std::string_view view_style();
std::string_view view_script();

/// Those of the page of a long map (viewer/deep).
std::string_view map_template();
std::string_view map_style();
std::string_view map_script();

}  // namespace headwise
