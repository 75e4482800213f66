#include "headwise/model/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "headwise/base/error.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

std::string_view way_out(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "; free some space or choose another folder";
    case EACCES:
    case EPERM:
    case EROFS: return "; change its rights, or choose a place this user may use";
    case ENOENT: return "; check the name";
    case ELOOP: return "; it is a link: name the file itself";
    default: return "";
  }
}

/// The system would take what stands before a NUL as the name.
void check_name(const std::string& path, std::string_view op) {
  require(path.find('\0') == std::string::npos, ErrorKind::bad_argument, op, headwise::quoted(path),
          ": the name holds a NUL; leave it out");
}

/// The name to rename over: a link stays a link and its target is replaced, there or not yet; a device, FIFO,
/// socket or folder is somebody's and is never replaced.
std::string replaceable(std::string path, std::string_view op) {
  check_name(path, op);
  struct stat s {};
  require(::stat(path.c_str(), &s) != 0 || S_ISREG(s.st_mode), ErrorKind::bad_argument, op, path,
          ": is no regular file; name one, or a name that is free");
  constexpr int kMostLinks = 40;  // as many as Linux follows
  for (int links = 0; ::lstat(path.c_str(), &s) == 0 && S_ISLNK(s.st_mode); ++links) {
    if (links == kMostLinks) file_failed(op, path, "follow its links", ELOOP);
    std::error_code error;
    const std::filesystem::path to = std::filesystem::read_symlink(path, error);
    if (error) file_failed(op, path, "read this link", error.value());
    path = (std::filesystem::path(path).parent_path() / to).string();
  }
  return path;
}

/// The cache of Hugging Face's hub keeps files under their digests, and folders of links to them. Where the
/// name is such a link, "../../blobs/" and a plain name, the file itself; else the name.
std::string file_in_hub(const std::string& path) {
  constexpr std::string_view kUp = "../", kBlobs = "blobs/";
  std::error_code error;
  const std::string to = std::filesystem::read_symlink(path, error).string();
  std::string_view rest = to;
  while (rest.starts_with(kUp)) rest.remove_prefix(kUp.size());
  const bool up = to.size() - rest.size() >= 2 * kUp.size();
  if (error || !up || !rest.starts_with(kBlobs) || rest.substr(kBlobs.size()).find('/') != rest.npos)
    return path;
  return folder_of(path) + "/" + to;
}

std::string part_name(const std::string& path) {
  static std::atomic<unsigned> count{0};
  const std::size_t slash = path.rfind('/') + 1;  // npos + 1 == 0
  return text(path.substr(0, slash), '.', path.substr(slash), '.', ::getpid(), '.', count++, ".part");
}

}  // namespace

void file_failed(std::string_view op, std::string_view path, std::string_view what, int code) {
  throw Error(ErrorKind::bad_argument, text(op, ": ", path, ": cannot ", what, ": ",
                                            std::generic_category().message(code), way_out(code)));
}

File File::open_to_read(const std::string& name, std::string_view op, Links links) {
  check_name(name, op);
  const std::string path = links == Links::refuse ? file_in_hub(name) : name;
  // O_NONBLOCK: opening a FIFO must not wait for its writer; it is refused below.
  const int fd =
      ::open(path.c_str(), O_RDONLY | (links == Links::refuse ? O_NOFOLLOW : 0) | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) file_failed(op, path, "open", errno);
  File file(fd, path, op);
  struct stat s {};
  if (::fstat(fd, &s) != 0) file_failed(op, path, "ask its size", errno);
  require(S_ISREG(s.st_mode), ErrorKind::bad_argument, op, path, ": is no regular file; name one");
  return file;
}

File File::create(const std::string& path, std::string_view op) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) file_failed(op, path, "create", errno);
  return File(fd, path, op);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), op_(std::move(other.op_)) {}
File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::failed(std::string_view what, int code) const { file_failed(op_, path_, what, code); }

Index File::bytes() const {
  struct stat s {};
  if (::fstat(fd_, &s) != 0) failed("ask its size", errno);
  return static_cast<Index>(s.st_size);
}

void File::read_at(Index offset, std::span<std::byte> to) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t n = ::pread(fd_, to.data() + done, to.size() - done,
                              static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("read", errno);
    require(n > 0, ErrorKind::bad_argument, op_, path_, ": ends at byte ", offset + static_cast<Index>(done),
            " but ", offset + static_cast<Index>(to.size()),
            " were expected; it is cut short or changed while it was read");
    done += static_cast<std::size_t>(n);
  }
}

void File::write(std::span<const std::byte> from) {
  // Pieces below 1 GiB: a single call moves at most 2 GiB.
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  while (!from.empty()) {
    const ssize_t n = ::write(fd_, from.data(), from.size() < kPiece ? from.size() : kPiece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("write", errno);
    from = from.subspan(static_cast<std::size_t>(n));
  }
}
void File::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void File::sync() {
  if (::fsync(fd_) != 0) failed("bring it to the disk", errno);
}

void sync_folder(const std::string& folder, std::string_view op) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) file_failed(op, folder, "open", errno);
  // Some file systems have nothing to sync for a folder and say EINVAL.
  const int code = ::fsync(fd) != 0 && errno != EINVAL ? errno : 0;
  ::close(fd);
  if (code) file_failed(op, folder, "bring it to the disk", code);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Replacement::Replacement(std::string path, std::string_view op)
    : path_(replaceable(std::move(path), op)),
      op_(op),
      part_(part_name(path_)),
      file_(File::create(part_, op)) {}
Replacement::~Replacement() {
  if (!committed_) ::unlink(part_.c_str());
}

void Replacement::commit() {
  file_.sync();
  if (::rename(part_.c_str(), path_.c_str()) != 0) file_failed(op_, path_, "take this name", errno);
  committed_ = true;
  sync_folder(folder_of(path_), op_);
}

std::string read_text(const std::string& path, Index most, std::string_view op) {
  const File file = File::open_to_read(path, op);
  const Index bytes = file.bytes();
  require(bytes <= most, ErrorKind::bad_argument, op, path, ": has ", bytes, " bytes; at most ", most,
          " are read");
  std::string out(static_cast<std::size_t>(bytes), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace headwise
