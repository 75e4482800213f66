// Hostile safetensors files: each case gets its verdict, and what is refused is refused in words.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "headwise/model/safetensors.h"
#include "tests/base/sentence.h"
#include "tests/model/safetensors_bytes.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

/// What opening a file of these bytes says behind "safetensors: PATH: "; "" when it is accepted.
std::string verdict(const std::string& bytes, const SafetensorsLimits& limits = {}) {
  static const ScratchFolder folder;
  const std::string path = folder.file("hostile.safetensors", bytes);
  try {
    Safetensors file(path, {.limits = limits});
    for (const SafetensorsEntry& e : file.entries()) file.bytes(e.name);
    return "";
  } catch (const Error& e) {
    const std::string front = "safetensors: " + path + ": ", all = e.what();
    EXPECT_EQ(all.substr(0, front.size()), front);
    return all.substr(front.size());
  }
}

/// An entry, then a file of one.
std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return text('"', name, R"(":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)", offsets, '}');
}
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets, std::size_t data) {
  return file_of("{" + entry("w", dtype, shape, offsets) + "}", std::string(data, 'x'));
}

TEST(Hostile, Lengths) {
  EXPECT_EQ(verdict(""),
            "has 0 bytes; a safetensors file has at least 10, the first 8 of which give the header's length");
  for (std::size_t n = 1; n < 8; ++n)
    EXPECT_EQ(verdict(std::string(n, '\0')).substr(0, 12), text("has ", n, " bytes;"));
  EXPECT_EQ(verdict(length_of(0)), "its header has 0 bytes; the shortest is {}");
  EXPECT_EQ(verdict(file_of("{", "")), "its header has 1 bytes; the shortest is {}");
  EXPECT_EQ(verdict(length_of(7) + "{}"),
            "its header claims 7 bytes but 2 follow its length; it is cut short or no safetensors file");
  EXPECT_EQ(verdict(length_of(1ull << 63) + "{}").substr(0, 44),
            "its header claims 9223372036854775808 bytes ");
  EXPECT_EQ(verdict(length_of(~0ull) + "{}").substr(0, 45), "its header claims 18446744073709551615 bytes ");
  EXPECT_EQ(verdict(length_of(3) + "{}").substr(0, 26), "its header claims 3 bytes ");  // size - 7
  EXPECT_EQ(verdict(file_of("{}", "")), "");
}

TEST(Hostile, HeadersThatAreNoText) {
  EXPECT_EQ(verdict(file_of("[]", "")), "its header does not begin with '{'");
  EXPECT_EQ(verdict(file_of(" {}", "")), "its header does not begin with '{'");
  EXPECT_EQ(verdict(file_of("\xef\xbb\xbf{}", "")), "its header does not begin with '{'");
  EXPECT_EQ(verdict(file_of("{}x", "")),
            "byte 2 of its header stands after the closing '}'; only spaces may");
  EXPECT_EQ(verdict(file_of("{}\n", "")),
            "byte 2 of its header stands after the closing '}'; only spaces may");
  EXPECT_EQ(verdict(file_of("{}   ", "")), "");
  EXPECT_EQ(verdict(file_of(std::string("{\0}", 3), "")), "byte 1 of its header is no UTF-8 text");
  for (const std::string_view bad :
       {"\xff", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc3", "\x80"})
    EXPECT_EQ(verdict(file_of(text("{\"", bad, "\":1}"), "")), "byte 2 of its header is no UTF-8 text");
  EXPECT_EQ(verdict(file_of("{\"", "")),
            "a tensor's name has no closing quote; its end is missing (byte 2 of the JSON)");
  EXPECT_EQ(verdict(file_of("{\"a\nb\":1}", "")),
            "a tensor's name holds a bare control character; escape it (byte 3 of the JSON)");
  for (const std::string_view half : {R"(\ud800)", R"(\udc00)", R"(\ud800\u0041)", R"(\ud800x)"})
    EXPECT_NE(verdict(file_of(text("{\"", half, "\":1}"), "")).find("half a surrogate pair"),
              std::string::npos)
        << half;
  EXPECT_NE(verdict(file_of(R"({"\u00":1})", "")).find("four hexadecimal digits"), std::string::npos);
  EXPECT_NE(verdict(file_of(R"({"\x":1})", "")).find("an escape JSON does not know"), std::string::npos);
  EXPECT_NE(verdict(file_of(R"({"a\u0000":1})", "")).find("holds a NUL"), std::string::npos);
}

TEST(Hostile, Keys) {
  const std::string a = entry("w", "\"U8\"", "[1]", "[0,1]"), b = entry("w", "\"U8\"", "[1]", "[1,2]");
  EXPECT_EQ(verdict(file_of("{" + a + "," + b + "}", "xy")), "\"w\" stands there twice");
  EXPECT_EQ(verdict(file_of("{" + a + "," + entry("\\u0077", "\"U8\"", "[1]", "[1,2]") + "}", "xy")),
            "\"w\" stands there twice");
  EXPECT_EQ(verdict(file_of(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x")),
            "\"w\": dtype stands there twice (byte 27 of the JSON)");
  EXPECT_EQ(verdict(file_of(R"({"__metadata__":{},"__metadata__":{}})", "")),
            "\"__metadata__\": it stands there twice (byte 34 of the JSON)");
  EXPECT_EQ(verdict(file_of(R"({"__metadata__":{"a":"1","a":"2"}})", "")),
            "\"__metadata__\": its key \"a\" stands there twice (byte 33 of the JSON)");
  EXPECT_NE(verdict(file_of(R"({"__metadata__":{"a":{"b":"c"}}})", "")).find("\"a\": this key's text"),
            std::string::npos);
  EXPECT_NE(verdict(file_of(R"({"__metadata__":{"a":1}})", "")).find("\"a\": this key's text"),
            std::string::npos);
  EXPECT_NE(verdict(file_of(R"({"__metadata__":null})", "")).find("\"__metadata__\": it needs a '{'"),
            std::string::npos);
  EXPECT_NE(
      verdict(file_of(R"({"w":{"dtype":"U8","shape":[1]}})", "x")).find("\"w\": it has no data_offsets"),
      std::string::npos);
  EXPECT_NE(verdict(file_of(R"({"w":{}})", "")).find("\"w\": a field needs"), std::string::npos);
  EXPECT_NE(verdict(file_of(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", "x"))
                .find("\"w\": it has a field \"x\"; dtype, shape and data_offsets are all"),
            std::string::npos);
  EXPECT_NE(verdict(file_of("{" + a + ",}", "x")).find("a tensor's name needs"), std::string::npos);
  EXPECT_EQ(verdict(file_of("{" + entry("../../etc", "\"U8\"", "[1]", "[0,1]") + "}", "x")),
            "");  // a name is no path
  EXPECT_EQ(verdict(file_of("{" + entry(R"(\"a\n\")", "\"U8\"", "[1]", "[0,1]") + "}", "x")), "");
  const std::string longest(1024, 'n');
  EXPECT_EQ(verdict(file_of("{" + entry(longest, "\"U8\"", "[1]", "[0,1]") + "}", "x")), "");
  EXPECT_NE(verdict(file_of("{" + entry(std::string(1 << 20, 'n'), "\"U8\"", "[1]", "[0,1]") + "}", "x"))
                .find("longer than the 1024 bytes allowed"),
            std::string::npos);
}

TEST(Hostile, Dtypes) {
  EXPECT_EQ(verdict(one("\"F33\"", "[1]", "[0,4]", 4)),
            "\"w\": dtype is \"F33\"; the format knows F32, BF16, F16, F64, I64, ... in capitals (byte 19 of "
            "the JSON)");
  EXPECT_NE(verdict(one("\"f32\"", "[1]", "[0,4]", 4)).find("dtype is \"f32\""), std::string::npos);
  EXPECT_NE(verdict(one("7", "[1]", "[0,4]", 4)).find("\"w\": dtype needs a '\"'"), std::string::npos);
  EXPECT_EQ(verdict(one("\"F4\"", "[3]", "[0,2]", 2)), "\"w\": 12 bits of F4 do not fill whole bytes");
  EXPECT_EQ(verdict(one("\"F4\"", "[4]", "[0,2]", 2)), "");
}

TEST(Hostile, Shapes) {
  const auto shape = [](std::string_view s) { return verdict(one("\"F32\"", s, "[0,4]", 4)); };
  EXPECT_EQ(shape("[1]"), "");
  EXPECT_EQ(shape("[]"), "");
  EXPECT_EQ(shape("[1,1,1,1,1,1,1,1]"), "");
  EXPECT_NE(shape("[1,1,1,1,1,1,1,1,1]").find("\"w\": shape has more than 8 sizes"), std::string::npos);
  for (const std::string_view bad : {"[-1]", "[\"1\"]", "[null]", "[+1]"})
    EXPECT_NE(shape(bad).find("\"w\": shape must be a plain whole number from 0 up"), std::string::npos)
        << bad;
  for (const std::string_view bad : {"[1.0]", "[1e3]"})
    EXPECT_NE(shape(bad).find("\"w\": shape must be a whole number, without '.' or 'e'"), std::string::npos)
        << bad;
  EXPECT_NE(shape("[01]").find("a leading zero"), std::string::npos);
  EXPECT_NE(shape("[9007199254740992]").find("2^53 or more"), std::string::npos);
  EXPECT_NE(shape("[18446744073709551616]").find("2^53 or more"), std::string::npos);
  EXPECT_NE(shape("null").find("\"w\": shape needs a '['"), std::string::npos);
  EXPECT_NE(shape("[[1]]").find("plain whole number"), std::string::npos);
  EXPECT_NE(shape("[" + std::string(10'000, '[')).find("plain whole number"),
            std::string::npos);  // depth 10,000
  // 4 modulo 2^64: a product that wraps looks small.
  EXPECT_EQ(verdict(one("\"U8\"", "[4194305,4194305,211106198978564]", "[0,4]", 4)),
            "\"w\": its sizes multiply to more bits than any file holds");
  EXPECT_EQ(verdict(one("\"F64\"", "[2305843009213693]", "[0,4]", 4)),
            "\"w\": dtype and shape need 18446744073709544 bytes but data_offsets span 4");
  EXPECT_EQ(verdict(one("\"F64\"", "[4503599627370496,128]", "[0,4]", 4)),
            "\"w\": its sizes multiply to more bits than any file holds");
  EXPECT_EQ(verdict(one("\"F32\"", "[0]", "[0,0]", 0)), "");
  EXPECT_EQ(verdict(one("\"F32\"", "[9007199254740991,9007199254740991,0]", "[0,0]", 0)), "");
}

TEST(Hostile, Offsets) {
  const auto at = [](std::string_view offsets) { return verdict(one("\"F32\"", "[1]", offsets, 4)); };
  EXPECT_EQ(at("[4,0]"), "\"w\": data_offsets [4 0] run backwards");
  EXPECT_NE(at("[-4,0]").find("\"w\": data_offsets must be a plain whole number"), std::string::npos);
  EXPECT_NE(at("[0,4.0]").find("whole number, without"), std::string::npos);
  EXPECT_EQ(at("[0,8]"),
            "\"w\": data_offsets end at 8 but the file has 4 bytes of data; it is cut short or damaged");
  EXPECT_EQ(at("[0,3]"), "\"w\": dtype and shape need 4 bytes but data_offsets span 3");
  EXPECT_NE(at("[0]").find("\"w\": data_offsets needs a ','"), std::string::npos);
  EXPECT_NE(at("[0,4,4]").find("\"w\": data_offsets needs a ']'"), std::string::npos);
  const auto two = [](std::string_view a, std::string_view b, std::string_view shape_b, std::size_t data) {
    return verdict(
        file_of("{" + entry("a", "\"U8\"", "[2]", a) + "," + entry("b", "\"U8\"", shape_b, b) + "}",
                std::string(data, 'x')));
  };
  const std::string touch = "; tensors may leave no hole and may not overlap";
  EXPECT_EQ(two("[0,2]", "[2,4]", "[2]", 4), "");
  EXPECT_EQ(two("[2,4]", "[0,2]", "[2]", 4), "");
  EXPECT_EQ(two("[1,3]", "[3,5]", "[2]", 5),
            "\"a\": its bytes begin at 1 but those before it end at 0" + touch);
  EXPECT_EQ(two("[0,2]", "[3,5]", "[2]", 5),
            "\"b\": its bytes begin at 3 but those before it end at 2" + touch);
  EXPECT_EQ(two("[0,2]", "[2,4]", "[2]", 5), "the last 1 of 5 bytes of data belong to no tensor");
  EXPECT_EQ(two("[0,2]", "[1,3]", "[2]", 3),
            "\"b\": its bytes begin at 1 but those before it end at 2" + touch);
  EXPECT_EQ(two("[0,2]", "[0,2]", "[2]", 2),
            "\"b\": its bytes begin at 0 but those before it end at 2" + touch);
  EXPECT_EQ(two("[0,2]", "[0,0]", "[0]", 2), "");
  EXPECT_EQ(two("[0,2]", "[2,2]", "[0]", 2), "");
  EXPECT_EQ(two("[0,2]", "[1,1]", "[0]", 2),
            "\"b\": its bytes begin at 1 but those before it end at 2" + touch);
  EXPECT_EQ(two("[0,2]", "[3,3]", "[0]", 2),
            "\"b\": data_offsets end at 3 but the file has 2 bytes of data; it is cut short or damaged");
  const std::string none = entry("a", "\"U8\"", "[0]", "[0,0]") + "," + entry("b", "\"U8\"", "[0]", "[0,0]");
  EXPECT_EQ(verdict(file_of("{" + none + "}", "")), "");  // empty tensors may share a place
  EXPECT_EQ(verdict(file_of("{" + entry("a", "\"U8\"", "[0]", "[0,0]") + "}", "x")),
            "the last 1 of 1 bytes of data belong to no tensor");
}

TEST(Hostile, HugeHeaders) {
  const SafetensorsLimits widest{.header_bytes = 200'000'000};
  const auto claims = [&](Index n, Index file_bytes, const SafetensorsLimits& limits) {
    const std::string front = length_of(static_cast<std::uint64_t>(n));
    try {
      safetensors_header_bytes(std::as_bytes(std::span(front)), file_bytes, "x", limits);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(claims(99'999'999, 1 << 30, widest), "");
  EXPECT_EQ(claims(100'000'000, 1 << 30, widest), "");
  EXPECT_EQ(claims(100'000'001, 1 << 30, widest),
            "safetensors: x: its header has 100000001 bytes; the format allows 100000000");
  EXPECT_EQ(claims(17 << 20, 1 << 30, {}),
            "safetensors: x: its header has 17825792 bytes, more than limits.header_bytes (16777216); raise "
            "it if you trust the file");
  // Spaces cost a look at each, no memory.
  EXPECT_EQ(parse_safetensors_header("{" + std::string(99'999'998, ' ') + "}", 0, "x", widest).entries.size(),
            0u);
  std::string many = "{";
  for (int i = 0; i < 20; ++i) many += text(i ? "," : "", entry(text("t", i), "\"U8\"", "[0]", "[0,0]"));
  EXPECT_NE(
      verdict(file_of(many + "}", ""), {.entries = 19}).find("it follows 19 tensors; raise limits.entries"),
      std::string::npos);
  EXPECT_EQ(verdict(file_of(many + "}", ""), {.entries = 20}), "");
  EXPECT_NE(verdict(file_of(R"({"__metadata__":{"a":"12345","b":"12345"}})", ""), {.metadata_bytes = 8})
                .find("it holds more than 8 bytes"),
            std::string::npos);
}

TEST(Hostile, StepsOfAnEmptyTensorDoNotOverflow) {
  const ScratchFolder folder;
  Safetensors file(folder.file("empty", one("\"F32\"", "[0,4503599627370496,4503599627370496]", "[0,0]", 0)));
  EXPECT_EQ(file.view(file.entries()[0].name).count(), 0);
}

TEST(Hostile, EveryCutAndEveryBitIsSurvived) {
  const std::string whole = one("\"F32\"", "[2,3]", "[0,24]", 24);
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_NE(verdict(whole.substr(0, n)), "") << n;
  for (std::size_t i = 0; i < 8 * (whole.size() - 24); ++i) {
    std::string flipped = whole;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    verdict(flipped);  // accepted or refused in words; the name is the only text a flip may change unseen
  }
}

}  // namespace
}  // namespace headwise
