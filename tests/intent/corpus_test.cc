// Corpora: every format, what is refused and in which words, and the counts of public data.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/corpus/corpus.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "headwise/intent/corpus/report.h"
#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

using Labels = std::vector<std::string>;

std::string refusal(std::string_view bytes, std::string_view name, const CorpusOptions& options = {}) {
  const std::string all = sentence_of(ErrorKind::bad_argument, [&] { parse_corpus(bytes, name, options); });
  const std::string front = text("corpus: ", name, ": ");
  return all.starts_with(front) ? all.substr(front.size()) : all;
}

TEST(Corpus, Tsv) {
  const Corpus c = parse_corpus("\xef\xbb\xbfpay it\ta#b#a\n\r\nno label\t\r\nx\tb\tusr\t7", "d.tsv");
  ASSERT_EQ(c.rows.size(), 3u);
  EXPECT_EQ(c.rows[0].text, "pay it");
  EXPECT_EQ(c.rows[0].labels, (Labels{"a", "b"}));
  EXPECT_EQ(c.rows[1].labels, Labels{});
  EXPECT_EQ(c.rows[2].extra, (Labels{"usr", "7"}));
  EXPECT_EQ(c.rows[2].line, 4);
  EXPECT_EQ(parse_corpus("x\ta#b\n", "d.tsv", {.between_labels = '\0'}).rows[0].labels, Labels{"a#b"});
}

TEST(Corpus, CsvWithQuotes) {
  const Corpus c = parse_corpus(
      "category,text\r\na,\"he said \"\"no\"\", twice\"\r\nb,\"two\nlines\"\r\n\r\na#b,plain\r\n", "d.csv");
  ASSERT_EQ(c.rows.size(), 3u);
  EXPECT_EQ(c.rows[0].text, "he said \"no\", twice");
  EXPECT_EQ(c.rows[1].text, "two\nlines");
  EXPECT_EQ(c.rows[1].line, 3);
  EXPECT_EQ(c.rows[2].line, 6);
  EXPECT_EQ(c.rows[2].labels, (Labels{"a", "b"}));
  EXPECT_EQ(parse_corpus("q,l\nx,y", "d.csv", {.text_column = "q", .label_column = "l"}).rows[0].text, "x");
}

TEST(Corpus, ColumnsAsPeopleNameThem) {
  const Labels two = {"a", "b"};
  Corpus c = parse_corpus("Intent;ID;TEXT\na|b;7;\"pay; now, please\"\n", "d.csv", {.between_labels = '|'});
  EXPECT_EQ(c.rows[0].text, "pay; now, please");
  EXPECT_EQ(c.rows[0].labels, two);
  c = parse_corpus("文本,标签\n还款,a#b\n", "d.csv");
  EXPECT_EQ(c.rows[0].labels, two);
  c = parse_corpus("id\tLabel\tUtterance\n7\ta#b\tpay it\n", "d.tsv");  // a header
  ASSERT_EQ(c.rows.size(), 1u);
  EXPECT_EQ(c.rows[0].text, "pay it");
  EXPECT_EQ(c.rows[0].labels, two);
  EXPECT_EQ(c.rows[0].extra, Labels{"7"});
  EXPECT_EQ(c.rows[0].line, 2);
  c = parse_corpus("Q\tWas\nx\ta\n", "d.tsv", {.text_column = "q", .label_column = "WAS"});
  ASSERT_EQ(c.rows.size(), 1u);
  EXPECT_EQ(parse_corpus("text me\tlabel\n", "d.tsv").rows.size(),
            1u);  // a row: no column is called "text me"
  const auto says = [](const char* rows, CorpusOptions o) {
    return sentence_of(ErrorKind::bad_argument, [&] { parse_corpus(rows, "d.tsv", o); });
  };
  EXPECT_EQ(says("text\tlabel\nx\ta\n", {.text_column = "said"}),
            "corpus: d.tsv: its header has no text column \"said\"; it has \"text\", \"label\"; name one: "
            "--text-column");
  EXPECT_EQ(says("id\tlabel\ttext\n7\ta\n", {}),
            "corpus: d.tsv: line 2 has 2 columns; the header has its text and label in columns 3 and 2");
}

TEST(Corpus, LabelsThatLookLikeSeveralAreAskedAbout) {
  const Corpus joined = parse_corpus("x\ta\ny\tb\nz\ta|b\n", "d.tsv");
  EXPECT_NE(
      examine(joined).print(joined).find("labels such as \"a|b\" look like several in one; if they are, "
                                         "give --label-separator \"|\""),
      std::string::npos);
  EXPECT_TRUE(examine(parse_corpus("x\ta\ny\tb/c\n", "d.tsv")).joined.empty());  // a name with a mark in it
}

TEST(Corpus, Json) {
  const Corpus lines =
      parse_corpus(R"({"text": "a\u00e9", "labels": ["x", "y"], "n": [1, -2.5e3, {"k": null}]})"
                   "\n\n"
                   R"({"intent": "z", "text": "b"})",
                   "d.jsonl");
  ASSERT_EQ(lines.rows.size(), 2u);
  EXPECT_EQ(lines.rows[0].text, "aé");
  EXPECT_EQ(lines.rows[0].labels, (Labels{"x", "y"}));
  EXPECT_EQ(lines.rows[1].labels, Labels{"z"});
  EXPECT_EQ(lines.rows[1].line, 3);
  const Corpus list = parse_corpus(
      "[\n {\"text\": \"a\", \"intents\": []},\n {\"text\": \"b\", \"intents\": [\"q\"]}]", "f.json");
  ASSERT_EQ(list.rows.size(), 2u);
  EXPECT_EQ(list.rows[1].line, 3);
}

TEST(Corpus, Refusals) {
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { read_corpus("/nowhere/d.tsv"); }),
            "corpus: /nowhere/d.tsv: cannot open: No such file or directory; check the name");
  EXPECT_EQ(
      refusal("x\ty", "d.parquet"),
      "its name does not say what it is; end it in .tsv, .csv, .xlsx, .jsonl or .json, or name the format");
  EXPECT_EQ(refusal("", "d.tsv"), "holds no utterance; give one a line");
  EXPECT_EQ(refusal("a\tb\nno tab\n", "d.tsv"), "line 2 has no tab; a line is text<TAB>label#label");
  EXPECT_EQ(refusal(" \tb\n", "d.tsv"), "line 1 has an empty text; fill or remove it");
  EXPECT_EQ(refusal("a\tb\ncaf\xe9\tb\n", "d.tsv"),
            "line 2 is no UTF-8 text (byte 7 of the file); convert it, such as with iconv");
  EXPECT_EQ(refusal("\xff\xfe"
                    "a",
                    "d.tsv"),
            "is UTF-16; convert it to UTF-8: iconv -f utf-16 -t utf-8");
  EXPECT_EQ(refusal("text,kind\n", "d.csv"),
            "its header has no label column \"labels\"; it has \"text\", \"kind\"; name one: --label-column");
  EXPECT_EQ(refusal("text,label\na,b,c\n", "d.csv"),
            "line 2 has 3 fields, the header 2; put fields that hold a comma in quotes");
  EXPECT_EQ(refusal("text,label\n\"a,b\n", "d.csv"),
            "the quote opened in line 2 is never closed; close it, or double a quote that is meant");
  EXPECT_EQ(refusal("text,label\n\"a\"b,c\n", "d.csv"),
            "line 2 goes on after a closing quote; put a comma there, or double a quote that is meant");
  EXPECT_EQ(
      refusal("{\"text\": \"a\"}", "d.jsonl"),
      "line 1: an utterance has no \"labels\"; give an empty list when it has none (byte 13 of the JSON)");
  EXPECT_EQ(refusal("{\"text\": 5}", "d.jsonl"), "line 1: text needs a '\"', got \"5\" (byte 9 of the JSON)");
  EXPECT_EQ(refusal("{\"x\": 01}", "d.jsonl"),
            "line 1: a member needs a value, got \"0\" (byte 6 of the JSON)");
  EXPECT_EQ(refusal("{\"x\": " + std::string(100, '['), "d.jsonl"),
            "line 1: a member lies too deep; at most 64 lists and objects may lie inside each other (byte 70 "
            "of the JSON)");
}

TEST(Corpus, ReportsDuplicatesAndLeaks) {
  const Corpus train = parse_corpus("Pay  it\ta\npay it\ta\nPAY IT \tb\nother\ta#b\n", "train.tsv");
  const Corpus test = parse_corpus("Other\ta#b\nfresh\tc\n", "test.tsv");
  const CorpusReport r = examine(train);
  EXPECT_EQ(r.duplicates.size(), 2u);
  EXPECT_EQ(r.conflicts.size(), 1u);
  EXPECT_EQ(r.labels.at("a"), 3);
  EXPECT_EQ(r.rows_by_labels.at(2), 1);
  EXPECT_TRUE(r.multi_label());
  EXPECT_EQ(r.print(train, 1),
            "train.tsv: 4 utterances, 2 labels, 1.8 words in the mean, 2 at most\n"
            "  rarest label b (2), most frequent a (3, 75.0 % of the utterances)\n"
            "  1 label: 3 utterances\n  2 labels: 1 utterances\n"
            "  2 texts that stand there before\n    lines 1 and 2: \"pay it\"\n"
            "  1 of these with other labels than before\n    lines 1 and 3: \"PAY IT \": a and b\n");
  EXPECT_EQ(compare_splits(train, test).print(train, test),
            "1 of 2 texts of test.tsv (50.0 %) stand in train.tsv too\n    line 1, there line 4: \"Other\"\n"
            "  label \"c\" is never shown in training; 1 test utterances have it\n");
  require_seen_labels(train, parse_corpus("far away\toos\nmine\tb\n", "test.tsv"));  // of no intent
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { require_seen_labels(train, test); }),
      "corpus: test.tsv: has labels that train.tsv never shows: \"c\"; train with them or leave them out");
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [] { require_trainable(parse_corpus("x\ta\ny\ta\n", "d.tsv")); }),
      "corpus: d.tsv: all 2 utterances have the label \"a\"; there is nothing to tell apart, give a second "
      "class");
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [] { require_trainable(parse_corpus("x\t\ny\t\n", "d.tsv")); }),
      "corpus: d.tsv: none of its utterances has a label; label some");
  require_trainable(parse_corpus("x\ta\ny\t\n", "d.tsv"));
}

TEST(Corpus, ReportsWhatDiffersInPunctuationAlone) {
  const Corpus train = parse_corpus("Pay it!\ta\npay, it\tb\n你好，世界\ta\n?\ta\n!\ta\n", "train.tsv");
  const CorpusReport r = examine(train);
  EXPECT_TRUE(r.duplicates.empty());
  ASSERT_EQ(r.near.size(), 1u);  // marks alone are texts of their own
  EXPECT_EQ(r.near[0].second, 1);
  EXPECT_NE(
      r.print(train).find("  1 texts that differ from one before in punctuation alone\n    lines 1 and 2: "
                          "\"pay, it\"\n  1 of these with other labels than before\n    lines 1 and 2: "
                          "\"pay, it\": a and b\n"),
      std::string::npos)
      << r.print(train);
  const Corpus test = parse_corpus("你好 ，世界。\ta\n你好世界\ta\nPAY IT!\ta\n", "test.tsv");
  const SplitReport s = compare_splits(train, test);
  EXPECT_EQ(s.leaks.size(), 1u);
  EXPECT_EQ(s.near.size(), 1u);
  EXPECT_NE(s.print(train, test)
                .find("  1 more differ from one there in punctuation alone\n    line 2, there line 3: "),
            std::string::npos);
}

TEST(Corpus, AHeaderThatIsTakenForARow) {
  std::string rows;
  for (int i = 0; i < 12; ++i) rows += text("say ", i, '\t', i % 2 ? "a" : "b", '\n');
  const Corpus with = parse_corpus("Customer message\tTopic\n" + rows, "d.tsv");
  EXPECT_NE(
      examine(with).print(with).find("  line 1 looks like a header; if it is, give --text-column \"Customer "
                                     "message\" --label-column \"Topic\"\n"),
      std::string::npos);
  const Corpus without = parse_corpus("say it\ta\n" + rows, "d.tsv");
  EXPECT_FALSE(examine(without).header);
  const Corpus named = parse_corpus("Customer message,Topic\nx,a\ny,b\n", "d.csv",
                                    {.text_column = "customer MESSAGE", .label_column = "topic"});
  EXPECT_FALSE(examine(named).header);
}

/// What the data's own notes count.
TEST(Corpus, PublicData) {
  const char* const data = std::getenv("HEADWISE_DATA");
  if (!data) GTEST_SKIP() << "HEADWISE_DATA names no folder";
  const std::string folder = data;
  const Corpus train = read_corpus(folder + "/banking77/train.csv.gz"),
               test = read_corpus(folder + "/banking77/test.csv.gz");
  const CorpusReport r = examine(train);
  EXPECT_EQ(r.rows, 10003);
  EXPECT_EQ(r.labels.size(), 77u);
  EXPECT_FALSE(r.multi_label());
  EXPECT_EQ(r.duplicates.size(), 4u);
  EXPECT_EQ(r.conflicts.size(), 0u);
  EXPECT_EQ(test.rows.size(), 3080u);
  EXPECT_EQ(compare_splits(train, test).leaks.size(), 7u);
  EXPECT_EQ(r.near.size(), 6u);  // counted by a loop over code points in Python, with its own categories
  EXPECT_EQ(compare_splits(train, test).near.size(), 4u);
  std::vector<std::string> folds;
  for (int i = 0; i < 20; ++i) folds.push_back(text(folder, "/nlupp_banking/fold", i, ".json"));
  // The notes count 461 and 255: one utterance of four intents names one of them twice.
  const CorpusReport nlupp = examine(read_corpora(folds));
  EXPECT_EQ(nlupp.rows, 2071);
  EXPECT_EQ(nlupp.labels.size(), 48u);
  EXPECT_EQ(nlupp.rows_by_labels,
            (std::map<Index, Index>{{0, 88}, {1, 545}, {2, 638}, {3, 462}, {4, 254}, {5, 65}, {6, 19}}));
  const CorpusReport mixed = examine(read_corpus(folder + "/mixbanking77_built/dev.tsv.gz"));
  EXPECT_EQ(mixed.rows_by_labels, (std::map<Index, Index>{{1, 518}, {2, 904}, {3, 373}}));
  const Corpus chinese = read_corpus(folder + "/unified_tsv/crosswoz_val_role_dialog.tsv.gz");
  EXPECT_EQ(chinese.rows.size(), 8458u);
  EXPECT_EQ(chinese.rows[0].extra[0], "usr");
}

TEST(Corpus, Gzip) {
  // "x<TAB>y<LF>" packed with mtime 0.
  const std::string packed(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\xe0\xac\xe4\x02\x00\x41\x47\x36\x9e\x04\x00\x00\x00", 24);
  ASSERT_TRUE(is_gzip(packed));
  try {
    EXPECT_EQ(parse_corpus(packed, "d.tsv.gz").rows[0].labels, Labels{"y"});
    EXPECT_EQ(parse_corpus(packed + packed, "d.tsv.gz").rows.size(), 2u);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::unsupported) throw;
    GTEST_SKIP() << e.what();
  }
  EXPECT_EQ(refusal(packed.substr(0, 15), "d.tsv.gz"),
            "is cut short: gzip ends before its data; fetch it again");
  std::string bad = packed;
  bad[16] = '?';
  EXPECT_EQ(refusal(bad, "d.tsv.gz"), "is damaged gzip (incorrect data check); fetch it again");
  EXPECT_EQ(refusal(packed, "d.tsv.gz", {.file_bytes = 3}),
            "unpacks to more than 3 bytes; that is the most read");
}

}  // namespace
}  // namespace headwise
