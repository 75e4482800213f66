// File: an open descriptor with reads and writes that finish or throw one sentence, and files replaced whole.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Whether a name that is a link is opened: what others may put into a folder is read as it is named. Links
/// in the cache of Hugging Face's hub, from a snapshot to its blobs, are always followed.
enum class Links : std::uint8_t { refuse, follow };

class File {
 public:
  /// A regular file for reading. `op` begins every sentence.
  static File open_to_read(const std::string& name, std::string_view op, Links links = Links::refuse);
  /// Must not be there yet.
  static File create(const std::string& path, std::string_view op);
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  Index bytes() const;
  int descriptor() const noexcept { return fd_; }
  /// All of `to`, from `offset`; a file that ends before it was cut short.
  void read_at(Index offset, std::span<std::byte> to) const;
  void write(std::span<const std::byte> from);
  void write(std::string_view text);
  /// On the disk, not in a cache: an error here means the data may be lost, and is never retried.
  void sync();

 private:
  File(int fd, std::string path, std::string_view op) : fd_(fd), path_(std::move(path)), op_(op) {}
  [[noreturn]] void failed(std::string_view what, int code) const;
  int fd_;
  std::string path_, op_;
};

/// The sentence of a failed call of the system: "op: path: cannot write: No space left on device; what to
/// do".
[[noreturn]] void file_failed(std::string_view op, std::string_view path, std::string_view what, int code);
/// The names in a folder reach the disk.
void sync_folder(const std::string& folder, std::string_view op);
/// The part before the last '/'; "." when there is none.
std::string folder_of(const std::string& path);

/// A file that takes its name when it is whole: written beside it as ".name.PID.N.part", removed unless
/// committed. A link is followed; what is there and no regular file is refused before anything is written.
class Replacement {
 public:
  Replacement(std::string path, std::string_view op);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement();
  File& file() noexcept { return file_; }
  /// sync, rename, sync of the folder.
  void commit();

 private:
  std::string path_, op_, part_;
  File file_;
  bool committed_ = false;
};

/// The whole of a file of at most `most` bytes, as text.
std::string read_text(const std::string& path, Index most, std::string_view op);

}  // namespace headwise
#pragma GCC visibility pop
