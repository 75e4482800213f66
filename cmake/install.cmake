# Library, headers, CMake package and pkg-config file; every path inside is relative to where they lie.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS headwise_library EXPORT headwise-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(HEADWISE_CLI)
  install(TARGETS headwise_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
include(cmake/public_headers.cmake)
function(headwise_install_headers)
  foreach(header IN LISTS ARGN)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
  endforeach()
endfunction()
headwise_install_headers(${HEADWISE_PUBLIC_HEADERS} ${head_headers})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/include/headwise/base/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise/base)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/include/headwise/heads/list.inc
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise/heads)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headwise)
install(EXPORT headwise-targets NAMESPACE headwise:: DESTINATION ${package_dir})
if(TARGET headwise_text_library)
  headwise_install_headers(${HEADWISE_TEXT_PUBLIC_HEADERS})
  # A file of its own: who finds headwise without ICU at hand gets the core.
  install(TARGETS headwise_text_library EXPORT headwise-text-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT headwise-text-targets NAMESPACE headwise:: DESTINATION ${package_dir})
endif()
if(TARGET headwise_cuda)
  # Nobody links it: libheadwise loads it from beside itself. headwise::cuda says where it lies, for those who ship it.
  install(TARGETS headwise_cuda EXPORT headwise-cuda-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT headwise-cuda-targets NAMESPACE headwise:: DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/headwise-config.cmake.in headwise-config.cmake INSTALL_DESTINATION ${package_dir})
# The C++ interface holds within one minor version.
write_basic_package_version_file(headwise-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/headwise-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/headwise-config-version.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
set(pc_libs "-lheadwise")
set(pc_text_requires "headwise = ${PROJECT_VERSION}")
if(NOT BUILD_SHARED_LIBS)
  # A static library carries no list of what it needs: C programs must name the C++ runtime themselves.
  string(APPEND pc_libs " -lstdc++ -lm -pthread")
  if(HEADWISE_CUDA)
    string(APPEND pc_libs " -ldl")
  endif()
  string(APPEND pc_text_requires ", icu-uc")
  if(HEADWISE_TEXT_ZLIB)
    string(APPEND pc_text_requires ", zlib")
  endif()
endif()
set(pc_files headwise)
if(TARGET headwise_text_library)
  list(APPEND pc_files headwise-text)
endif()
if(TARGET headwise_cuda)
  list(APPEND pc_files headwise-cuda)
endif()
foreach(name IN LISTS pc_files)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
