// Workbooks as corpora: texts shared and in place, gaps, formulas, and files that are no workbook.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/corpus/workbook.h"

#include <gtest/gtest.h>

#include "headwise/intent/corpus/corpus.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

using Members = std::vector<std::pair<std::string, std::string>>;

std::string little(std::size_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i, value >>= 8) out += static_cast<char>(value & 255);
  return out;
}

/// A zip file whose members lie as they are.
std::string zip_of(const Members& members) {
  std::string out, directory;
  for (const auto& [name, data] : members) {
    const std::string sizes = little(0, 4) + little(data.size(), 4) + little(data.size(), 4) +
                              little(name.size(), 2) + little(0, 2);
    directory += "PK\1\2" + little(20, 2) + little(20, 2) + little(0, 8) + sizes + little(0, 10) +
                 little(out.size(), 4) + name;
    out += "PK\3\4" + little(20, 2) + little(0, 8) + sizes + name + data;
  }
  const std::string end = "PK\5\6" + little(0, 4) + little(members.size(), 2) + little(members.size(), 2) +
                          little(directory.size(), 4) + little(out.size(), 4) + little(0, 2);
  return out + directory + end;
}

const std::string kBook =
    R"(<?xml version="1.0"?><workbook xmlns:r="x"><sheets><sheet name="a" sheetId="7" r:id="rId3"/>
  <sheet name="b" sheetId="1" r:id="rId1"/></sheets></workbook>)";
const std::string kRelations =
    R"(<Relationships><Relationship Id="rId1" Type="x/worksheet" Target="worksheets/other.xml"/>
  <Relationship Target="worksheets/first.xml" Type="x/worksheet" Id="rId3"/>
  <Relationship Id="rId2" Type="http://x/sharedStrings" Target="/xl/strings.xml"/></Relationships>)";
const std::string kStrings =
    R"(<sst count="3"><si><t>Label</t></si><si><r><t xml:space="preserve">my </t></r><r><t>card &amp; &#x2603;</t></r><rPh><t>no</t></rPh></si><si><t>a_x000D_
b</t></si></sst>)";

std::string book_of(const std::string& rows, const std::string& strings = kStrings) {
  return zip_of({{"xl/workbook.xml", kBook},
                 {"xl/_rels/workbook.xml.rels", kRelations},
                 {"xl/strings.xml", strings},
                 {"xl/worksheets/first.xml", "<worksheet><sheetData>" + rows + "</sheetData></worksheet>"}});
}

constexpr std::string_view kHeader =
    R"(<row r="2"><c r="B2" t="inlineStr"><is><t>Utterance</t></is></c><c r="D2" t="s"><v>0</v></c></row>)";

std::string with_header(std::string_view rows) { return book_of(std::string(kHeader) + std::string(rows)); }

std::string refusal(const std::string& bytes, std::string_view name = "b.xlsx") {
  return sentence_of(ErrorKind::bad_argument, [&] { parse_corpus(bytes, name, {}); });
}

TEST(Workbook, TextsAndLabels) {
  const Corpus c = parse_corpus(
      with_header(
          R"(<row r="3"><c r="A3"><v>17</v></c><c r="B3" t="s"><v>1</v></c><c r="D3" t="str"><v>x#y</v></c></row>
        <row r="4"/><row r="5"><c r="B5" t="s"/></row>
        <row r="9"><c r="B9" t="s"><v>2</v></c></row><!-- <row> -->
        <row><c r="B10"><v>42</v></c><c r="C10"><f>1+1</f><v>2</v></c><c r="D10" t="b"><v>1</v></c></row>)"),
      "b.xlsx");
  ASSERT_EQ(c.rows.size(), 3u);
  EXPECT_EQ(c.rows[0].text, "my card & \u2603");  // pronunciations are no text
  EXPECT_EQ(c.rows[0].labels, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(c.rows[0].line, 3);
  EXPECT_EQ(c.rows[1].text, "a\r\nb");
  EXPECT_TRUE(c.rows[1].labels.empty());
  EXPECT_EQ(c.rows[2].text, "42");
  EXPECT_EQ(c.rows[2].labels, std::vector<std::string>{"TRUE"});
  EXPECT_EQ(c.rows[2].line, 10);
}

TEST(Workbook, KnownByItsBytes) {
  const std::string bytes = with_header(R"(<row r="3"><c r="B3"><v>1</v></c></row>)");
  EXPECT_EQ(parse_corpus(bytes, "download", {}).rows.size(), 1u);
  EXPECT_NE(refusal("a,b\n", "b.xlsx").find("no .xlsx workbook"), std::string::npos);
  EXPECT_NE(refusal("\xd0\xcf\x11\xe0 old", "b.xls").find("older"), std::string::npos);
}

TEST(Workbook, RefusedWithRowAndColumn) {
  const auto says = [](const std::string& sentence, std::string_view part) {
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  const std::string formula = R"(<row r="3"><c r="B3"><f>A1</f><v>7</v></c></row>)";
  says(refusal(with_header(formula)), "row 3, column B (cell B3) holds a formula");
  says(refusal(with_header(R"(<row r="3"><c r="B3"><v>7</v></c><c r="D3" t="e"><v>#N/A</v></c></row>)")),
       "row 3, column D (cell D3) holds the error #N/A");
  says(refusal(with_header(R"(<row r="8"><c r="D8"><v>7</v></c></row>)")),
       "row 8 has an empty text in column B");
  says(refusal(with_header(R"(<row r="3"><c r="B3" t="s"><v>3</v></c></row>)")),
       "cell B3 names shared text 3 of 3");
  says(refusal(with_header(R"(<row r="3"><c r="ZZZZ3"><v>1</v></c></row>)")), "beyond the last column");
  says(refusal(book_of(R"(<row r="1"><c r="A1"><v>5</v></c></row>)")), "its header has no text column");
  says(refusal(book_of("")), "holds no utterance");
  says(refusal(book_of("", "<sst><si><t>\xff</t></si></sst>")), "no UTF-8");
  says(refusal(zip_of({{"word/document.xml", "x"}})), "no .xlsx workbook");
  says(refusal(zip_of({{"xl/workbook.xml", "<workbook/>"}, {"xl/_rels/workbook.xml.rels", ""}})),
       "without a sheet");
}

TEST(Workbook, CutAnywhere) {
  const std::string bytes = with_header(R"(<row r="3"><c r="B3" t="s"><v>1</v></c></row>)");
  for (std::size_t n = 4; n < bytes.size(); ++n)
    EXPECT_NE(refusal(bytes.substr(0, n)).find("damaged zip"), std::string::npos) << n;
}

TEST(Workbook, ColumnLetters) {
  EXPECT_EQ(column_letters(0), "A");
  EXPECT_EQ(column_letters(25), "Z");
  EXPECT_EQ(column_letters(26), "AA");
  EXPECT_EQ(column_letters(701), "ZZ");
  EXPECT_EQ(column_letters(702), "AAA");
}

TEST(Workbook, AShortFileDoesNotAskForManyEmptyCells) {
  std::string rows;
  for (int i = 3; i < 600; ++i) rows += R"(<row><c r="XFD1"><v>1</v></c></row>)";
  EXPECT_NE(refusal(with_header(rows)).find("is beyond the 8388608 cells read of a sheet"),
            std::string::npos);
}

}  // namespace
}  // namespace headwise
