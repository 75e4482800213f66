#include "headwise/lab/model/changed_weights.h"

#include <algorithm>

#include "headwise/model/safetensors.h"

namespace headwise {

void write_changed(const std::string& file, std::span<const std::string> names,
                   const std::map<std::string, const Tensor*>& changed,
                   const std::function<ConstView(const std::string&)>& was) {
  std::vector<Tensor> made;
  std::vector<NamedTensor> all;
  made.reserve(changed.size());
  const auto put = [&](const std::string& name, const ConstView& now, DType dtype) {
    made.push_back(now.rank == 1 ? Tensor(dtype, {now.size[0]}) : Tensor(dtype, {now.size[0], now.size[1]}));
    const AnyView& to = made.back().view();
    for (Index i = 0; i < now.count(); ++i)
      store_double(to.data, to.dtype, i, load_double(now.data, now.dtype, i));
    all.push_back({name, to});
  };
  for (const std::string& name : names) {
    const ConstView old = was(name);
    const auto found = changed.find(name);
    if (found == changed.end())
      all.push_back({name, old});
    else
      put(name, found->second->view(), old.dtype);
  }
  for (const auto& [name, value] : changed)
    if (std::find(names.begin(), names.end(), name) == names.end()) put(name, value->view(), DType::f32);
  write_safetensors(file, all, {{"format", "pt"}});
}

}  // namespace headwise
