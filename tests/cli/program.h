// Running the built program: its exit code and what it wrote.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

struct Answer {
  int code = -1;
  std::string out, err;
};

inline std::string read_all(FILE* file) {
  std::string all;
  std::array<char, 4096> part;
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), file)) all.append(part.data(), n);
  return all;
}

/// Runs a line of the shell once; stderr goes through `errors`, a file of the caller's.
inline Answer shell(const std::string& line, const std::string& errors) {
  Answer a;
  FILE* out = popen(("( " + line + " ) 2>" + errors).c_str(), "r");
  a.out = read_all(out);
  a.code = WEXITSTATUS(pclose(out));
  FILE* err = std::fopen(errors.c_str(), "r");
  if (err) a.err = read_all(err), std::fclose(err);
  return a;
}
