# Library, headers, CMake package and pkg-config file; every path inside is relative to where they lie.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS headwise_library EXPORT headwise-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(HEADWISE_CLI)
  install(TARGETS headwise_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(room IN ITEMS base spec masks ops heads cache layers model train text)
  install(DIRECTORY headwise/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise
          FILES_MATCHING PATTERN "*.h" PATTERN "*_checks.h" EXCLUDE PATTERN "*_parts.h" EXCLUDE PATTERN "choice*.h" EXCLUDE
          PATTERN "backend_*.h" EXCLUDE PATTERN "cuda_kernels.h" EXCLUDE PATTERN "mapping.h" EXCLUDE PATTERN "json_reader.h" EXCLUDE
          PATTERN "param_blocks.h" EXCLUDE PATTERN "bpe_words.h" EXCLUDE PATTERN "prefix_tree.h" EXCLUDE PATTERN "merge_pairs.h" EXCLUDE PATTERN "unicode.h" EXCLUDE PATTERN "crc32c.h" EXCLUDE PATTERN "interrupt.h" EXCLUDE)
endforeach()
install(FILES headwise/headwise.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise)
install(FILES headwise/c/headwise.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise/c)
install(FILES headwise/kernels/candidate.h headwise/kernels/device_status.h headwise/kernels/gemm_candidate.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise/kernels)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/include/headwise/base/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise/base)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/include/headwise/heads/list.inc
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise/heads)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headwise)
install(EXPORT headwise-targets NAMESPACE headwise:: DESTINATION ${package_dir})
if(TARGET headwise_text_library)
  install(DIRECTORY headwise/intent DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise
          FILES_MATCHING PATTERN "*.h" PATTERN "csv.h" EXCLUDE PATTERN "learner.h" EXCLUDE)
  install(DIRECTORY headwise/decoder DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headwise
          FILES_MATCHING PATTERN "*.h" PATTERN "pass.h" EXCLUDE PATTERN "weight_names.h" EXCLUDE)
  # A file of its own: who finds headwise without ICU at hand gets the core.
  install(TARGETS headwise_text_library EXPORT headwise-text-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT headwise-text-targets NAMESPACE headwise:: DESTINATION ${package_dir})
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
if(NOT BUILD_SHARED_LIBS)
  # A static library carries no list of what it needs: C programs must name the C++ runtime themselves.
  string(APPEND pc_libs " -lstdc++ -lm -pthread")
endif()
configure_file(cmake/headwise.pc.in headwise.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/headwise.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
