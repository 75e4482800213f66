#include "headwise/lab/model/lab_model.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "headwise/base/words.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/lab/model/attention_cut.h"
#include "headwise/lab/model/changed_weights.h"
#include "headwise/layers/multi_head/mixed_taps.h"
#include "headwise/model/file.h"
#include "headwise/model/hf_bert.h"
#include "headwise/model/json_object.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kOp = "lab";
constexpr Index kMostText = Index{64} << 20;

bool is_recognizer(const std::string& folder) {
  require(fs::is_directory(folder), ErrorKind::bad_argument, kOp, folder,
          ": is no folder; give a recogniser that `headwise train` wrote or a BERT-style encoder");
  const JsonObject json = JsonObject::read(folder + "/config.json", kOp);
  return json.has("architecture");
}

/// pruned_heads with more heads cut, which are numbered among those that are left.
std::string pruned_text(const JsonObject& json, const std::vector<std::vector<Index>>& more, Index whole) {
  std::string all;
  for (std::size_t layer = 0; layer < more.size(); ++layer) {
    const std::vector<Index> before = json.object("pruned_heads").integers(text(layer));
    std::set<Index> gone(before.begin(), before.end());
    std::vector<Index> left;
    for (Index h = 0; h < whole; ++h)
      if (!gone.count(h)) left.push_back(h);
    for (const Index h : more[layer]) gone.insert(left[static_cast<std::size_t>(h)]);
    std::string list;
    for (const Index h : gone) list += text(list.empty() ? "" : ", ", h);
    if (!list.empty()) all += text(all.empty() ? "" : ", ", '"', layer, "\": [", list, "]");
  }
  return text("{", all, "}");
}

/// What config.json of an encoder says of its heads: by the keys of others where these can say it.
std::map<std::string, std::string> head_keys(const JsonObject& json, const EditedModel& edited,
                                             Index layers) {
  std::map<std::string, std::string> keys = {
      {"headwise_heads", ""}, {"num_key_value_heads", ""}, {"pruned_heads", ""}};
  const Index whole = json.integer("num_attention_heads", 1, 65'536);
  const std::string first = heads_of_layer(edited.heads, 0, layers);
  bool alike = true, plain = true;
  for (Index i = 0; i < layers; ++i) {
    const std::string one = heads_of_layer(edited.heads, i, layers);
    alike &= one == first, plain &= one.starts_with("mha:") && one.find("value_dim") == one.npos;
  }
  if (!edited.pruned.empty() && plain && !json.has("headwise_heads"))
    keys["pruned_heads"] = pruned_text(json, edited.pruned, whole);
  else if (alike && first.starts_with("gqa:") && first.find("value_dim") == first.npos &&
           setting_in(first, "heads", 0) == whole)
    keys["num_key_value_heads"] = text(setting_in(first, "kv_heads", whole));
  else
    keys["headwise_heads"] = json_string(edited.heads);
  return keys;
}

}  // namespace

std::string with_keys(const JsonObject& json, const std::map<std::string, std::string>& edited) {
  std::string out;
  const auto line = [&](const std::string& key, const std::string& value) {
    if (!value.empty()) out += text(out.empty() ? "{\n" : ",\n", "  ", json_string(key), ": ", value);
  };
  for (const std::string& key : json.keys())
    if (!edited.count(key)) line(key, json.raw(key) ? *json.raw(key) : "null");
  for (const auto& [key, value] : edited) line(key, value);
  return out + "\n}\n";
}

std::string joined_heads(const std::vector<std::string>& by_layer) {
  std::string all;
  bool alike = true;
  for (const std::string& one : by_layer) {
    all += text(all.empty() ? "" : "; ", one);
    alike &= one == by_layer[0];
  }
  return alike ? by_layer[0] : all;
}

std::string attention_name(Index layer) { return text("stack.layers.", layer, ".attention"); }

LabModel::LabModel(const std::string& folder) : folder_(folder) {
  if (is_recognizer(folder))
    recognizer_.emplace(Recognizer::load(folder));
  else
    encoder_.emplace(folder);
}

const Transformer& LabModel::transformer() const {
  return recognizer_ ? recognizer_->encoder() : encoder_->model();
}
const ParamSet& LabModel::params() const { return recognizer_ ? recognizer_->params() : encoder_->params(); }

const MultiHead& LabModel::attention(Index layer) const {
  return *transformer().stack().block(layer).self_attention();
}

std::vector<Index> LabModel::heads(std::string_view op) const {
  require(
      transformer().config().share_layers == 1, ErrorKind::unsupported, op, folder_,
      ": its layers share weights, so a head stands in several of them; give a model with share_layers 1");
  require(!recognizer_ || recognizer_->config().planted.empty(), ErrorKind::unsupported, op, folder_,
          ": it has a planted head, which is made anew at each load; give a model without one");
  std::vector<Index> all;
  for (Index i = 0; i < layers(); ++i) {
    all.push_back(attention(i).head_count());
    require(all.back() > 0, ErrorKind::unsupported, op, "heads of ", attention(i).head().name(),
            " give the layer's output together, so none stands alone; give a model of another head");
  }
  require(!all.empty(), ErrorKind::unsupported, op, folder_, ": it has no layer, so no head");
  return all;
}

Tensor LabModel::gates_of(const HeadPlan& plan) {
  const auto layers = static_cast<Index>(plan.heads.size());
  const Index most = *std::max_element(plan.heads.begin(), plan.heads.end());
  Tensor gates(DType::f32, {layers, most});
  for (Index i = 0; i < layers * most; ++i) gates.values<float>()[static_cast<std::size_t>(i)] = 1;
  for (Index i = 0; i < layers; ++i)
    for (const Index h : plan.cut[static_cast<std::size_t>(i)])
      gates.values<float>()[static_cast<std::size_t>(i * most + h)] = 0;
  return gates;
}

Index LabModel::count_after(const EditedModel& edited) const {
  Index count = 0;
  for (const Param& p : params().all()) {
    if (edited.dropped.count(p.name)) continue;
    const auto found = edited.values.find(p.name);
    count += found == edited.values.end() ? p.value.count() : found->second.view().count();
  }
  return count;
}

const WordPiece& LabModel::tokenizer() const {
  return recognizer_ ? recognizer_->tokenizer() : encoder_->tokenizer();
}

void LabModel::forward(std::span<const Encoding> texts, Call& call) const {
  call.packed = packed_.get();
  if (recognizer_) {
    TextBatch batch;
    for (const Encoding& e : texts) recognizer_->add_to(batch, e);
    recognizer_->forward(batch, call, nullptr);
  } else {
    std::vector<TokenId> ids;
    std::vector<Index> offsets = {0};
    for (const Encoding& e : texts) {
      ids.insert(ids.end(), e.ids.begin(), e.ids.end());
      offsets.push_back(static_cast<Index>(ids.size()));
    }
    encoder_->model().forward(
        {.ids = ConstView::packed(ids.data(), DType::i32, {offsets.back()}),
         .sequences = {.offsets = ConstView::packed(offsets.data(), DType::i64,
                                                    {static_cast<Index>(offsets.size())})}},
        call, nullptr);
  }
}

void LabModel::run_parts(const Encoding& text, Session& session, BlockParts parts,
                         const RowLook& look) const {
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.parts = parts, call.see_rows = &look;
  forward(std::span(&text, 1), call);
}

Taps LabModel::taps_of(std::span<const Encoding> texts, Session& session, bool rows) const {
  Taps taps;
  taps.rows = rows;
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.taps = &taps;
  forward(texts, call);
  bool mixed = false;
  for (Index layer = 0; layer < layers(); ++layer) mixed |= attention(layer).head().spec().mixes();
  if (mixed) to_shares(taps);
  return taps;
}

void LabModel::run(std::span<const Encoding> texts, Session& session, bool rows,
                   const std::function<void(const SeenText&)>& look) const {
  Taps taps = taps_of(texts, session, rows);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::vector<Tap> own;
    for (std::size_t at = i; at < taps.all.size(); at += texts.size()) own.push_back(std::move(taps.all[at]));
    look({texts[i], own});
  }
}

void LabModel::each_text(std::span<const std::string> texts, Session& session, bool rows,
                         const std::function<void(const SeenText&)>& look) const {
  const Index most = recognizer_ ? recognizer_->config().chunk_tokens : encoder_->max_tokens();
  for (const std::string& text : texts) {
    const Encoding read = tokenizer().encode(text, {.around = true, .most = most});
    run(std::span(&read, 1), session, rows, look);
  }
}

void LabModel::save(const EditedModel& edited, const std::string& out, std::string_view op,
                    const std::function<void(const LabModel&)>& look) const {
  std::error_code none;
  require(!fs::equivalent(folder_, out, none), ErrorKind::bad_argument, op, out,
          ": is the model's own folder, which is never changed; choose another name");
  if (!recognizer_) {
    replace_folder(out, "config.json", op, [&](const std::string& part) {
      save_encoder(edited, part, op);
      if (look) look(LabModel(part));
    });
    return;
  }
  const LabModel made(this->edited(edited, op));
  if (look) look(made);
  made.recognizer().save(out);
}

Recognizer LabModel::edited(const EditedModel& edited, std::string_view op) const {
  RecognizerConfig config = recognizer_->config();
  config.encoder.heads = edited.heads, config.learn_gates = false;
  Recognizer small(config, recognizer_->tokenizer().vocabulary(), 0);
  for (Param& to : small.params().all()) {
    const auto found = edited.values.find(to.name);
    const auto same = std::find_if(params().all().begin(), params().all().end(),
                                   [&](const Param& p) { return p.name == to.name; });
    require(found != edited.values.end() || same != params().all().end(), ErrorKind::bad_argument, op,
            "the new heads need ", to.name, ", which the model has not");
    const ConstView from = found != edited.values.end() ? found->second.view() : same->value;
    require(from.count() == to.value.count(), ErrorKind::bad_shape, op, to.name, " is ", from,
            " but the new heads make it ", to.value);
    for (Index i = 0; i < from.count(); ++i)
      store_double(to.value.data, to.value.dtype, i, load_double(from.data, from.dtype, i));
  }
  return small;
}

void LabModel::save_encoder(const EditedModel& edited, const std::string& part, std::string_view op) const {
  BertWeights weights(folder_);
  std::map<std::string, const Tensor*> changed;  // by the files' names
  for (const auto& [name, value] : edited.values) {
    std::string theirs = weights.name_of(name);
    if (theirs.empty()) {  // parameters of a new kind of head stand beside its queries
      const std::size_t last = name.rfind('.');
      theirs = weights.name_of(name.substr(0, last) + ".q.weight");
      theirs.replace(theirs.rfind("query.weight"), std::string::npos, name.substr(last + 1));
    }
    changed[theirs] = &value;
  }
  write_changed(part + "/model.safetensors", weights.names(), changed,
                [&](const std::string& name) -> ConstView { return weights.view(name); });
  const JsonObject json = JsonObject::read(folder_ + "/config.json", kOp);
  write_file(part + "/config.json", with_keys(json, head_keys(json, edited, layers())), op);
  const auto copy = [&](const std::string& name) {
    if (fs::is_regular_file(folder_ + "/" + name))
      write_file(part + "/" + name, read_text(folder_ + "/" + name, kMostText, op), op);
  };
  for (const char* name : {"vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "sentence_bert_config.json", "modules.json", "config_sentence_transformers.json"})
    copy(name);
  if (fs::is_directory(folder_ + "/1_Pooling")) {
    fs::create_directory(part + "/1_Pooling");
    copy("1_Pooling/config.json");
  }
}

}  // namespace headwise
