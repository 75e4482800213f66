// Kernels of products and rows on a CUDA device against `ref` in double, and their bits against each other.
// Usage: layers_test [libheadwise_cuda.so]. Without a device it says so and ends well.
#include <dlfcn.h>

#include "tests/gpu/layers.h"

namespace headwise::cuda {
namespace {

int run(const char* library) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("layers_test: skipped: there is no CUDA device\n");
    return 0;
  }
  void* handle = dlopen(library, RTLD_NOW);
  const auto function =
      handle ? reinterpret_cast<LayerTableFunction>(dlsym(handle, kLayerTableName)) : nullptr;
  if (!function) {
    std::printf("layers_test: %s\n", dlerror());
    return 1;
  }
  const LayerTable& table = *function();
  const auto part = [&](const char* name, auto&& body) {
    const int before = failures, checked = checks;
    body();
    std::printf("%-12s %5d checks, %d failed\n", name, checks - checked, failures - before),
        std::fflush(stdout);
  };
  part("norms", [&] { test_norms(table.rows); });
  part("elementwise", [&] { test_elementwise(table.rows); });
  part("embedding", [&] { test_embeddings(table.rows); });
  part("texts", [&] { test_texts(table.rows); });
  part("loss", [&] { test_losses(table.rows); });
  part("adamw", [&] { test_optimizers(table.rows); });
  part("products", [&] { test_products(table); });
  part("bits", [&] { test_product_bits(table); });
  std::printf("layers_test: %d passed, %d failed\n", checks - failures, failures);
  return failures > 0;
}

}  // namespace
}  // namespace headwise::cuda

int main(int count, char** words) {
  return headwise::cuda::run(count > 1 ? words[1] : headwise::cuda::kLibraryName);
}
