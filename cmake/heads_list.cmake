# Writes headwise/heads/list.inc, a plain list of types, from every headwise/heads/*.h with a line static_assert(Head<X>);.
# Dropping a file in or taking one out is enough: the glob is asked again by every build.
file(GLOB head_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/headwise/heads/*.h)
set(head_includes "")
set(head_types "")
set(head_headers "")
foreach(file IN LISTS head_files)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${file} lines REGEX "^static_assert\\(Head<[A-Za-z0-9]+>\\);")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^static_assert\\(Head<([A-Za-z0-9]+)>\\);.*" "\\1" type "${line}")
    list(APPEND head_types ${type})
    list(APPEND head_headers ${file})
    string(APPEND head_includes "#include \"${file}\"\n")
  endforeach()
endforeach()
list(JOIN head_types ", " head_types)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/include/headwise/heads/list.inc CONTENT
     "// AllHeads: every head of headwise/heads, in the order of their files. Written by cmake/heads_list.cmake.
// SPDX-License-Identifier: Apache-2.0
#pragma once
@head_includes@
namespace headwise {
using AllHeads = HeadList<@head_types@>;
}  // namespace headwise
" @ONLY)
