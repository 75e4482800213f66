#include "headwise/ops/attention/backend_cuda.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>

#include "headwise/base/error.h"
#include "headwise/ops/attention/backward.h"

namespace headwise {
namespace {

/// The folder this code was loaded from; a program's own where its name has none.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&cuda_backend), &info) == 0 || info.dli_fname == nullptr) return "";
  std::string file = info.dli_fname;
  if (file.find('/') == std::string::npos) {
    std::error_code missing;
    file = std::filesystem::read_symlink("/proc/self/exe", missing).string();
  }
  return file.substr(0, file.rfind('/') + 1);
}

/// The library's functions are called by the numbers of the choice lists: names must agree.
template <class Kernel, class Entries>
bool same_names(std::span<const Kernel> list, const Entries* entries, int count) {
  int n = 0;
  for (const Kernel& kernel : list)
    if (kernel.device == Device::Kind::cuda &&
        (n == count || std::string_view(kernel.name) != entries[n++].name))
      return false;
  return n == count;
}

/// Beside this code, as builds put it; in the package headwise_cuda, where this code is part of the Python
/// package headwise (its module, or its program one folder deeper); where the system looks.
std::vector<std::string> places_of(const std::string& name) {
  const std::string folder = own_folder();
  std::vector<std::string> places{folder + name};
  for (const std::string_view package : {"/headwise/", "/headwise/bin/"})
    if (folder.ends_with(package))
      places.push_back(folder.substr(0, folder.size() - package.size()) + "/headwise_cuda/" + name);
  places.push_back(name);
  return places;
}

/// Null: `why` says what kept the first file that is there from being loaded, or that there is none.
void* load_library(const std::string& name, std::string& why) {
  for (const std::string& place : places_of(name)) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* reason = dlerror();
    why = text(name, " was not loaded: ", reason ? reason : "no reason given");
    if (access(place.c_str(), F_OK) == 0) break;
  }
  return nullptr;
}

CudaBackend load() {
  CudaBackend b;
  const std::string name = cuda::kLibraryName;
  void* library = load_library(name, b.why);
  if (library == nullptr) return b;
  b.why.clear();
  const auto function = reinterpret_cast<cuda::TableFunction>(dlsym(library, cuda::kTableName));
  const cuda::Table* table = function ? function() : nullptr;
  if (table == nullptr || table->version != cuda::kTableVersion ||
      table->problem_bytes != sizeof(AttentionProblem) || table->args_bytes != sizeof(AttentionArgs) ||
      table->backward_problem_bytes != sizeof(BackwardProblem) ||
      table->backward_args_bytes != sizeof(BackwardArgs) ||
      !same_names(attention_kernels(), table->kernels, table->kernel_count) ||
      !same_names(backward_kernels(), table->backward, table->backward_count)) {
    b.why = name + " is of another version of headwise; build both together";
    return b;
  }
  b.table = table, b.library = library;
  b.devices = table->device_count();
  if (b.devices == 0) b.why = "the driver shows no CUDA device";
  return b;
}

}  // namespace

const CudaBackend& cuda_backend() {
  static const CudaBackend backend = load();
  return backend;
}

std::string cuda_device_words(int device) {
  char line[cuda::kSentenceBytes] = "";
  if (cuda_backend().table) cuda_backend().table->describe(device, line);
  return line;
}

std::string cuda_words() {
  const CudaBackend& b = cuda_backend();
  if (!b.why.empty()) return "none: " + b.why;
  std::string words;
  for (int d = 0; d < b.devices; ++d)
    words += (d ? "; " : "") + std::to_string(d) + ": " + cuda_device_words(d);
  return words;
}

}  // namespace headwise
