# What knows Unicode is a library of its own, libheadwise_text, so that the core links the standard library and threads only.
# Without ICU (Debian: libicu-dev) it is left out, and CMake says so.
if(HEADWISE_TEXT AND CMAKE_CROSSCOMPILING AND NOT CMAKE_FIND_ROOT_PATH)
  message(STATUS "headwise_text is left out: this is a cross build without CMAKE_FIND_ROOT_PATH, where ICU would be")
elseif(HEADWISE_TEXT)
  find_package(ICU QUIET COMPONENTS uc)
  if(NOT ICU_FOUND)
    message(STATUS "headwise_text is left out: ICU is not here (Debian: apt-get install libicu-dev)")
  endif()
endif()
if(NOT HEADWISE_TEXT OR NOT ICU_FOUND)
  return()
endif()

add_library(headwise_text OBJECT)
target_link_libraries(headwise_text PUBLIC headwise ICU::uc PRIVATE headwise_warnings)
set_target_properties(headwise_text PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                               VISIBILITY_INLINES_HIDDEN ON)

add_library(headwise_text_library $<TARGET_OBJECTS:headwise_text>)
add_library(headwise::text ALIAS headwise_text_library)
target_link_libraries(headwise_text_library PUBLIC headwise_library PRIVATE ICU::uc)
set_target_properties(
  headwise_text_library PROPERTIES OUTPUT_NAME headwise_text EXPORT_NAME text LINKER_LANGUAGE CXX
                                   INSTALL_RPATH "$ORIGIN"  # libheadwise lies beside it
                                   VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
