// read_symbol: a function or an object of a library that was opened at run time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <cstring>

namespace headwise {

/// Puts the symbol's address into `to`, a pointer; false and unchanged where the library has none of that
/// name.
template <class Pointer>
bool read_symbol(void* library, const char* name, Pointer& to) {
  void* found = dlsym(library, name);
  if (found != nullptr) std::memcpy(&to, &found, sizeof found);
  return found != nullptr;
}

}  // namespace headwise
