#include "headwise/cli/ranks/ranks.h"

#include <algorithm>
#include <cstdio>

#include "headwise/cli/args/args.h"

namespace headwise::cli {

void add_tensor_option(CLI::App& word, RankRequest& request) {
  word.add_option("--tensor", request.tensor,
                  "Ranks that heads are cut over: mpirun -n 2 headwise ... --tensor 2")
      ->check(size_check(1, 64));
}

void add_context_option(CLI::App& word, RankRequest& request) {
  word.add_option("--context", request.context,
                  "Ranks that the tokens of a batch are cut over: mpirun -n 2 headwise ... --context 2")
      ->check(size_check(1, 64));
}

void add_order_option(CLI::App& word, RankRequest& request) {
  word.add_option("--order", request.order,
                  "Of sums over heads: one_rank (the default, the same bits as one process), tree or engine");
}

void add_data_option(CLI::App& word, RankRequest& request) {
  word.add_option("--data", request.data,
                  "Ranks that share the texts of a step, in order tree: mpirun -n 2 headwise ... --data 2; "
                  "1, 2, 4 and 8 "
                  "give the same model")
      ->check(size_check(1, 64));
}

Ranks::Ranks(std::string_view word, const RankRequest& request, Order otherwise)
    : word_(word), request_(request), world_(Communicator::start()) {
  const Index wanted = max_of(1, request.tensor) * max_of(1, request.context) * max_of(1, request.data);
  require(world_.ranks() == wanted, ErrorKind::bad_argument, word_, world_.ranks(),
          world_.ranks() == 1 ? " rank was started" : " ranks were started", " and the options ask for ",
          wanted, "; start as many: mpirun -n ", wanted, " headwise ", word_, " ...");
  teams_.order = request.order.empty() ? otherwise : order_of(request.order);
  const int tensor = std::max(1, request.tensor), context = std::max(1, request.context);
  const int size = tensor * context, rank = world_.rank();
  tensor_ = world_.part(rank / tensor * tensor, tensor);
  context_ = world_.part(rank / size * size + rank % tensor, context, tensor);
  data_ = world_.part(rank % size, world_.ranks() / size, size);
  if (request.data > 0) teams_.data = &data_;
  if (request.context > 0) teams_.context = &context_;
  if (request.tensor > 0 || !request.order.empty()) teams_.tensor = &tensor_;
  if (leads()) return;
  require(std::freopen("/dev/null", "w", stdout) != nullptr, ErrorKind::device, word_,
          "cannot open /dev/null, where ranks above 0 print; look at the file system");
}

void Ranks::agree(std::vector<AgreeField> fields) const {
  fields.insert(fields.begin(), {{"order", std::string(name_of(teams_.order))},
                                 {"tensor", text(request_.tensor)},
                                 {"context", text(request_.context)},
                                 {"data", text(request_.data)}});
  world_.agree(word_, fields);
}

}  // namespace headwise::cli
