#include "headwise/layers/multi_head/suggest_heads.h"

#include "headwise/base/error.h"

namespace headwise {

HeadsAdvice suggest_heads(Index model_dim) {
  require(model_dim > 0 && model_dim <= Index{1} << 32, ErrorKind::bad_argument, "suggest_heads",
          "model_dim is ", model_dim, "; give a width from 1 to 2^32");
  const Index wish = model_dim <= 1024 ? 64 : 128;
  const auto distance = [&](Index dim) { return dim < wish ? wish - dim : dim - wish; };
  HeadsAdvice a;
  const auto consider = [&](Index dim) {
    if (a.head_dim == 0 || distance(dim) < distance(a.head_dim) ||
        (distance(dim) == distance(a.head_dim) && dim > a.head_dim))
      a.head_dim = dim;
  };
  for (Index d = 1; d * d <= model_dim; ++d)
    if (model_dim % d == 0) consider(d), consider(model_dim / d);
  a.heads = model_dim / a.head_dim;
  a.kv_heads = a.heads;
  a.sentence = text(a.heads, a.heads == 1 ? " head of " : " heads of ", a.head_dim, ": of the divisors of ",
                    model_dim, " this width is nearest ", wish, ", and ", 4 * model_dim * model_dim,
                    " weights cost the same for any number of heads");
  if (a.heads > 8) {
    const Index group = a.heads % 4 == 0 ? 4 : a.heads % 2 == 0 ? 2 : a.heads;
    const auto saved = [&](Index kv) {  // of W_K and W_V, and of the cache
      return text("cache / ", a.heads / kv, ", ", 2 * model_dim * (a.heads - kv) * a.head_dim, " weights");
    };
    a.sentence += text("; ", a.heads,
                       " unshared heads are usual; where cache or weights are short, gqa with "
                       "kv_heads = ",
                       a.heads / group, " saves ", saved(a.heads / group), "; mqa (kv_heads = 1) saves ",
                       saved(1), "; collaborative heads with a shared width of half of model_dim save ",
                       model_dim * model_dim - a.heads * model_dim / 2,
                       " weights of W_Q and W_K; share_layers = 2 saves half of all blocks' weights; none of "
                       "them saves FLOP of attention");
  }
  return a;
}

}  // namespace headwise
