# What cpack makes of the installed tree: one Debian package with the program, the libraries and their headers.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME headwise)
set(CPACK_PACKAGE_CONTACT "headwise maintainers <maintainers@headwise.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "multi-head attention in which the head is the unit")
set(CPACK_PACKAGE_DESCRIPTION "Attention forward, backward and decode, layers, training, language models and a
recogniser of intents, in which single heads can be seen, mixed, gated, routed, cut and converted.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};headwise;Unspecified;/")  # without the Python module
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, libicu-dev, zlib1g-dev")  # to build against headwise::text
include(CPack)
