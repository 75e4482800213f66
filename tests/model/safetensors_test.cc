// Safetensors: what is written is read, bytes and sentences; files that change underneath are noticed.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <ctime>

#include "headwise/model/shards.h"
#include "tests/base/sentence.h"
#include "tests/model/safetensors_bytes.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

TEST(Safetensors, ReadsBytesBuiltByHand) {
  const ScratchFolder folder;
  const float numbers[] = {1.5f, -2.0f, 0.25f};
  std::string data(reinterpret_cast<const char*>(numbers), 12);
  data += std::string("\x80\x3f", 2);  // bf16 1
  const std::string path = folder.file(
      "a.safetensors",
      file_of(
          R"({"w":{"dtype":"F32","shape":[3,1],"data_offsets":[0,12]},"__metadata__":{"format":"pt","\u00e9":"\n"},)"
          R"("b":{"dtype":"BF16","shape":[],"data_offsets":[12,14]}})",
          data));
  for (const Reading reading : {Reading::mapped, Reading::copied}) {
    Safetensors file(path, {.reading = reading});
    ASSERT_EQ(file.entries().size(), 2u);
    EXPECT_EQ(*file.metadata("format"), "pt");
    EXPECT_EQ(*file.metadata("\xc3\xa9"), "\n");
    const ConstView w = file.view("w"), b = file.view("b");
    EXPECT_EQ(text(w), "f32 [3 1]");
    EXPECT_EQ(text(b), "bf16 [1]");
    for (int i = 0; i < 3; ++i) EXPECT_EQ(static_cast<const float*>(w.data)[i], numbers[i]);
    EXPECT_EQ(load_double(b.data, b.dtype, 0), 1.0);
    Tensor apart(DType::f32, {3, 2});
    AnyView column = apart.view();
    column.size[1] = 1;
    file.read("w", column);
    EXPECT_EQ(apart.values<float>()[4], 0.25f);
    EXPECT_EQ(apart.values<float>()[5], 0.0f);
    EXPECT_TRUE(file.intact());
  }
}

TEST(Safetensors, TensorsOfOtherFormatsDoNotHideTheRest) {
  const ScratchFolder folder;
  const std::string path =
      folder.file("a.safetensors", file_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                           R"("a":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[4,6]},)"
                                           R"("b":{"dtype":"F8_E5M2FNUZ","shape":[1],"data_offsets":[6,7]},)"
                                           R"("c":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[7,8]}})",
                                           std::string("\x00\x00\x80\x3f....", 8)));
  Safetensors file(path);
  EXPECT_EQ(static_cast<const float*>(file.view("w").data)[0], 1.0f);
  EXPECT_EQ(file.entries().size(), 4u);
  EXPECT_NE(sentence_of(ErrorKind::bad_dtype, [&] { file.view("a"); }).find("F8_E4M3FNUZ"),
            std::string::npos);
}

TEST(Safetensors, RoundTripKeepsEveryDtypeAndName) {
  const ScratchFolder folder;
  std::vector<Tensor> kept;
  std::vector<NamedTensor> tensors;
  std::uint64_t seed = 0;
  for (const DType t : {DType::u8, DType::f64, DType::bf16, DType::i8, DType::e4m3, DType::f32, DType::i32,
                        DType::f16, DType::i64}) {
    kept.emplace_back(t, std::initializer_list<Index>{3, 5, 1});
    for (Index i = 0; i < 15; ++i)
      store_double(kept.back().view().data, t, i, 40 + 10 * normal_at(++seed, i));
    tensors.push_back({text("layer.\"", t, "\"\n\xc3\xa4/../x"), kept.back().view()});
  }
  tensors.push_back({"none", Tensor(DType::f32, {0, 7}).view()});
  const std::string path = folder / "all.safetensors";
  write_safetensors(path, tensors, {{"step", "7"}, {"quote", "\"\\\t"}});
  Safetensors file(path);
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(*file.metadata("quote"), "\"\\\t");
  for (const NamedTensor& t : tensors) {
    const ConstView v = file.view(t.name);
    EXPECT_EQ(text(v), text(t.value));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(size_of(v.dtype)), 0u);
    const auto bytes = static_cast<std::size_t>(v.count() * size_of(v.dtype));
    EXPECT_TRUE(bytes == 0 || std::memcmp(v.data, t.value.data, bytes) == 0) << t.name;
  }
  const std::string once = content_of(path);
  write_safetensors(path, tensors, {{"step", "7"}, {"quote", "\"\\\t"}});
  EXPECT_EQ(content_of(path), once);
  int files = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1);  // no part is left
}

TEST(Safetensors, UnalignedTensorsAreCopied) {
  const ScratchFolder folder;
  const float x = 3.5f;
  const std::string data = "z" + std::string(reinterpret_cast<const char*>(&x), 4);
  Safetensors file(
      folder.file("u.safetensors", file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                                           data)));
  const ConstView b = file.view("b");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data) % 4, 0u);
  EXPECT_EQ(*static_cast<const float*>(b.data), 3.5f);
  EXPECT_EQ(file.view("b").data, b.data);
}

TEST(Safetensors, SaysWhatIsMissingOrOther) {
  const ScratchFolder folder;
  const std::string path = folder / "m.safetensors";
  Tensor w(DType::f32, {2, 3});
  const NamedTensor one[] = {{"encoder.w", w.view()}};
  write_safetensors(path, one);
  Safetensors file(path);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { file.view("encoder.v"); }),
            "safetensors: " + path +
                ": has no \"encoder.v\" among its 1 tensors; the nearest name is \"encoder.w\"");
  Tensor other(DType::f32, {3, 2});
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { file.read("encoder.w", other.view()); }),
            "safetensors: " + path +
                ": \"encoder.w\" is F32 [2 3] but f32 [3 2] was asked; it belongs to another configuration");
  const std::string odd = folder.file(
      "odd.safetensors", file_of(R"({"a":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}})", "xy"));
  Safetensors shorts(odd);
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { shorts.view("a"); }),
            "safetensors: " + odd + ": \"a\" is I16, which headwise does not compute with; take its bytes()");
  EXPECT_EQ(shorts.bytes("a").size(), 2u);
}

TEST(Safetensors, WritesThroughLinksAndOverNothingButFiles) {
  const ScratchFolder folder;
  Tensor w(DType::f32, {1});
  const NamedTensor one[] = {{"w", w.view()}};
  ASSERT_TRUE(std::filesystem::create_directory(folder / "far"));
  folder.file("far/old", "old");
  ASSERT_EQ(::symlink("far/second", (folder / "first").c_str()), 0);
  ASSERT_EQ(::symlink("old", (folder / "far/second").c_str()), 0);
  write_safetensors(folder / "first", one);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "first"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "far/second"));
  EXPECT_EQ(Safetensors(folder / "far/old").entries().size(), 1u);
  ASSERT_EQ(::symlink("far/new", (folder / "ahead").c_str()), 0);
  write_safetensors(folder / "ahead", one);
  EXPECT_EQ(content_of(folder / "far/new"), content_of(folder / "far/old"));

  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("fifo", (folder / "to_fifo").c_str()), 0);
  for (const std::string& path : {folder / "fifo", folder / "to_fifo", folder / "far"})
    EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { write_safetensors(path, one); }),
              "write_safetensors: " + path + ": is no regular file; name one, or a name that is free");
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "fifo"));
  ASSERT_EQ(::symlink("loop", (folder / "loop").c_str()), 0);
  EXPECT_NE(
      sentence_of(ErrorKind::bad_argument, [&] { write_safetensors(folder / "loop", one); }).find("links"),
      std::string::npos);
  for (const auto& f : std::filesystem::recursive_directory_iterator(folder.path()))
    EXPECT_NE(f.path().extension(), ".part") << f.path();
}

TEST(Safetensors, FilesThatAreNoFilesAreRefused) {
  const ScratchFolder folder;
  const auto refusal = [&](const std::string& path) {
    return sentence_of(ErrorKind::bad_argument, [&] { Safetensors file(path); });
  };
  EXPECT_EQ(refusal(folder / "absent"), "safetensors: " + (folder / "absent") +
                                            ": cannot open: No such file or directory; check the name");
  EXPECT_EQ(refusal(folder.path()), "safetensors: " + folder.path() + ": is no regular file; name one");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(refusal(folder / "fifo"), "safetensors: " + (folder / "fifo") + ": is no regular file; name one");
  EXPECT_EQ(refusal("/dev/zero"), "safetensors: /dev/zero: is no regular file; name one");
  ASSERT_EQ(::symlink(folder.file("real", file_of("{}", "")).c_str(), (folder / "link").c_str()), 0);
  EXPECT_EQ(refusal(folder / "link"),
            "safetensors: " + (folder / "link") +
                ": cannot open: Too many levels of symbolic links; it is a link: name the file itself");
  // As the cache of Hugging Face's hub has them; a link behind a link, or out of the cache, is none of them.
  std::filesystem::create_directories(folder / "snapshots/main");
  std::filesystem::create_directories(folder / "blobs");
  folder.file("blobs/digest", file_of("{}", ""));
  const std::string model = folder / "snapshots/main/model.safetensors";
  ASSERT_EQ(::symlink("../../blobs/digest", model.c_str()), 0);
  EXPECT_TRUE(Safetensors(model).entries().empty());
  for (const char* to :
       {"../../blobs/link", "../../real", "../blobs/digest", "../../blobs/../real", "../../blobs/none"}) {
    ::unlink(model.c_str());
    ASSERT_EQ(::symlink(to, model.c_str()), 0);
    std::filesystem::remove(folder / "blobs/link");
    ASSERT_EQ(::symlink("../real", (folder / "blobs/link").c_str()), 0);
    EXPECT_NE(refusal(model).find("cannot open"), std::string::npos) << to;
  }
  Safetensors empty(folder / "real");
  EXPECT_TRUE(empty.entries().empty());
}

TEST(Safetensors, SparseTerabyteIsMappedNotRead) {
  const ScratchFolder folder;
  constexpr Index kBytes = Index{1} << 40;
  const std::string path = folder.file(
      "big",
      file_of(text(R"({"a":{"dtype":"U8","shape":[)", kBytes, R"(],"data_offsets":[0,)", kBytes, "]}}"), ""));
  const auto header = static_cast<Index>(content_of(path).size());
  if (::truncate(path.c_str(), static_cast<off_t>(header + kBytes)) != 0)
    GTEST_SKIP() << "no sparse files here";
  Safetensors file(path);
  EXPECT_EQ(file.bytes("a")[static_cast<std::size_t>(kBytes - 1)], std::byte{0});
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(header + kBytes - 1)), 0);
  EXPECT_NE(sentence_of(ErrorKind::bad_argument, [&] { Safetensors again(path); }).find("cut short"),
            std::string::npos);
}

TEST(Safetensors, ReadLaterTakesWhatIsAskedFor) {
  const ScratchFolder folder;
  constexpr Index kBytes = Index{1} << 40;
  const std::string path = folder.file(
      "big",
      file_of(text(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)",
                   R"("b":{"dtype":"U8","shape":[)", kBytes, R"(],"data_offsets":[8,)", kBytes + 8, "]}}"),
              std::string("\0\0\x80\x3f\0\0\0\x40", 8)));
  const auto header = static_cast<Index>(content_of(path).size());
  if (::truncate(path.c_str(), static_cast<off_t>(header + kBytes)) != 0)
    GTEST_SKIP() << "no sparse files here";
  Safetensors file(path, {.reading = Reading::later});
  EXPECT_EQ(file.entries().size(), 2u);
  Tensor a(DType::f32, {2});
  file.read("a", a.view());
  EXPECT_EQ(a.values<float>()[0], 1.f);
  EXPECT_EQ(a.values<float>()[1], 2.f);
  EXPECT_EQ(file.bytes("a").size(), 8u);
  EXPECT_EQ(static_cast<const float*>(file.view("a").data)[1], 2.f);
  EXPECT_NE(sentence_of(ErrorKind::bad_shape, [&] { file.check("b", a.view()); }).find("1099511627776"),
            std::string::npos);
  EXPECT_TRUE(file.intact());
}

TEST(Safetensors, AFileCutShortUnderneathIsNoticed) {
  const ScratchFolder folder;
  const std::string path = folder / "cut.safetensors";
  Tensor w(DType::f32, {64, 1024});
  for (float& x : w.values<float>()) x = 1;
  const NamedTensor one[] = {{"w", w.view()}};
  write_safetensors(path, one);
  Safetensors mapped(path), copied(path, {.reading = Reading::copied});
  ASSERT_EQ(::truncate(path.c_str(), 8192), 0);
  Tensor out(DType::f32, {64, 1024});
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { mapped.read("w", out.view()); }),
      "safetensors: " + path + ": was cut short while \"w\" was read; read it again when its writer is done");
  EXPECT_FALSE(mapped.intact());
  EXPECT_EQ(out.values<float>()[65535], 0);
  copied.read("w", out.view());
  EXPECT_TRUE(copied.intact());
  EXPECT_EQ(out.values<float>()[65535], 1);
}

TEST(Safetensors, FaultsOfOthersStayTheirs) {
  static sig_atomic_t seen;
  seen = 0;
  struct sigaction theirs {
  }, old{};
  theirs.sa_handler = [](int) { seen = 1; };
  ::sigaction(SIGBUS, &theirs, &old);
  {
    const ScratchFolder folder;
    Safetensors file(folder.file("e", file_of("{}", "")));
    ::raise(SIGBUS);
    EXPECT_EQ(seen, 1);
  }
  struct sigaction now {};
  ::sigaction(SIGBUS, &old, &now);
  EXPECT_EQ(now.sa_handler, theirs.sa_handler);
}

TEST(Safetensors, AFailedWriteLeavesTheOldFile) {
  const ScratchFolder folder;
  const std::string path = folder / "w.safetensors";
  Tensor small(DType::f32, {4}), large(DType::f32, {1 << 16});
  const NamedTensor a[] = {{"a", small.view()}}, b[] = {{"b", large.view()}};
  write_safetensors(path, a);
  const std::string before = content_of(path);
  struct rlimit old {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  struct sigaction ignore {
  }, was{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &was);
  const struct rlimit few { 65536, old.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &few);
  const std::string sentence = sentence_of(ErrorKind::bad_argument, [&] { write_safetensors(path, b); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::sigaction(SIGXFSZ, &was, nullptr);
  EXPECT_NE(sentence.find("cannot write: File too large; free some space or choose another folder"),
            std::string::npos)
      << sentence;
  EXPECT_EQ(content_of(path), before);
  int files = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1);
}

TEST(Safetensors, WriterRefusesInWords) {
  const ScratchFolder folder;
  const std::string path = folder / "w.safetensors";
  Tensor w(DType::f32, {4, 4});
  AnyView turned = w.view();
  std::swap(turned.step[0], turned.step[1]);
  const auto refusal = [&](const NamedTensor& t) {
    return sentence_of(t.name == "t" ? ErrorKind::bad_shape : ErrorKind::bad_argument,
                       [&] { write_safetensors(path, std::span(&t, 1)); });
  };
  EXPECT_EQ(refusal({"t", turned}),
            "write_safetensors: " + path + ": \"t\" must be a row-major tensor without gaps; copy it first");
  EXPECT_EQ(refusal({"__metadata__", w.view()}),
            "write_safetensors: " + path + ": \"__metadata__\" cannot name a tensor; give it another name");
  EXPECT_EQ(refusal({"\xff", w.view()}),
            "write_safetensors: " + path + ": a name or metadata text is no UTF-8; convert it");
  const NamedTensor twice[] = {{"a", w.view()}, {"a", w.view()}};
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { write_safetensors(path, twice); }),
            "safetensors: " + path + ": \"a\" stands there twice");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Safetensors, AHundredThousandTensorsAreReadInLinearTime) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i)
    header +=
        text(i ? "," : "", "\"t", i, R"(":{"dtype":"U8","shape":[1],"data_offsets":[)", i, ',', i + 1, "]}");
  header += '}';
  const std::clock_t start = std::clock();  // CPU time: a machine that stalls takes none
  const SafetensorsHeader parsed = parse_safetensors_header(header, 100'000, "many");
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(parsed.entries.size(), 100'000u);
  EXPECT_EQ(parsed.find("t777")->begin, 777);
  EXPECT_LT(seconds, 5);  // 0.5 s alone on a machine; cores that are shared are slower too
}

TEST(SafetensorsShards, TensorsAreFoundInTheirShard) {
  const ScratchFolder folder;
  Tensor a = random_normal({2, 2}, DType::f32, 1), b = random_normal({3}, DType::f32, 2);
  const NamedTensor first[] = {{"a", a.view()}}, second[] = {{"b", b.view()}};
  write_safetensors(folder / "m-1.safetensors", first);
  write_safetensors(folder / "m-2.safetensors", second);
  const auto index = [&](std::string_view map) { return folder.file("m.index.json", map); };
  SafetensorsShards shards(
      index(R"({"metadata":{"total_size":28},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})"));
  EXPECT_EQ(shards.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(static_cast<const float*>(shards.view("b").data)[2], b.values<float>()[2]);
  const std::string where = "safetensors shards: " + (folder / "m.index.json") + ": ";
  const auto refusal = [&](std::string_view map) {
    return sentence_of(ErrorKind::bad_argument, [&] { SafetensorsShards bad(index(map)); });
  };
  const std::string own = "; shards are names of .safetensors files in the index's own folder";
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"../m-1.safetensors"}})"),
            where + "\"a\": its shard is \"../m-1.safetensors\"" + own + " (byte 39 of the JSON)");
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"m.index.json"}})"),
            where + "\"a\": its shard is \"m.index.json\"" + own + " (byte 33 of the JSON)");
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"gone.safetensors"}})"),
            "safetensors: " + (folder / "gone.safetensors") +
                ": cannot open: No such file or directory; check the name");
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"m-1.safetensors","a":"m-2.safetensors"}})"),
            where + "\"a\": it stands there twice (byte 58 of the JSON)");
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"m-1.safetensors","c":"m-2.safetensors"}})"),
            where + "m-2.safetensors holds \"b\", which the index does not name");
  write_safetensors(folder / "m-2.safetensors", first);
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})"),
            where + "m-2.safetensors holds \"a\", which the index places in m-1.safetensors");
  EXPECT_EQ(refusal(R"({"weight_map":{"b":"m-1.safetensors"}} x)").substr(0, where.size() + 9),
            where + "something");
  EXPECT_EQ(refusal("{}"), where + "it has no weight_map (byte 2 of the JSON)");
}

}  // namespace
}  // namespace headwise
