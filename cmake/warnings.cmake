# Warnings for headwise's own sources; never for those who use it.
add_library(headwise_warnings INTERFACE)
target_compile_options(headwise_warnings INTERFACE -Wall -Wextra -Wconversion -Wshadow -Werror=switch)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlap in its own std::string::insert (GCC bug 105651).
  target_compile_options(headwise_warnings INTERFACE -Wno-restrict)
endif()
if(HEADWISE_WERROR)
  target_compile_options(headwise_warnings INTERFACE -Werror)
endif()
