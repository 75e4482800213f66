#include "headwise/ops/attention/backend_cuda.h"

#ifdef HEADWISE_CUDA
#include <dlfcn.h>
#endif

#include "headwise/base/error.h"
#include "headwise/ops/attention/backward.h"

namespace headwise {
namespace {

#ifdef HEADWISE_CUDA
/// The folder this code was loaded from: the two libraries are installed side by side.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&cuda_backend), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string file = info.dli_fname;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
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

CudaBackend load() {
  CudaBackend b;
  const std::string name = cuda::kLibraryName;
  void* library = dlopen((own_folder() + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    b.why = text(name, " was not loaded: ", reason ? reason : "no reason given");
    return b;
  }
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
  b.table = table;
  b.devices = table->device_count();
  if (b.devices == 0) b.why = "the driver shows no CUDA device";
  return b;
}
#else
CudaBackend load() {
  CudaBackend b;
  b.why = "this build has no CUDA; configure with -DHEADWISE_CUDA=ON";
  return b;
}
#endif

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
