// train, eval and predict from outside: from a file to answers, and what bad input and bad luck do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A small model: what is tested here is the way around it.
constexpr const char* kSmall =
    " --model-dim 16 --depth 1 --feed-dim 16 --vocabulary 120 --ngrams 0 --batch 8 --threads 1";

class IntentWords : public ::testing::Test {
 protected:
  void SetUp() override {
    room_ = fs::temp_directory_path() / ("headwise_words_" + std::to_string(getpid()));
    fs::remove_all(room_);
    fs::create_directories(room_);
    std::string rows, both;
    for (int i = 0; i < 12; ++i) {
      const std::string n = std::to_string(i);
      rows += "my card " + n + " is lost\tlost_card\nwhat is the rate for " + n + " months\trate\n";
      both += "my card " + n + " is lost and what is the rate\tlost_card#rate\n";
    }
    write("one.tsv", rows);
    write("several.tsv", rows + both);
  }
  void TearDown() override { fs::remove_all(room_); }

  std::string at(const std::string& name) const { return (room_ / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(room_ / name, std::ios::binary) << content;
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  Answer run(const std::string& line) const { return shell("cd " + room_.string() + "; " + line, at("err")); }
  Answer headwise(const std::string& words) const { return run(HEADWISE_PROGRAM " " + words); }
  Answer train(const std::string& words) const { return headwise("train " + words + kSmall); }

  void refused(const Answer& a, const std::string& part) const {
    EXPECT_EQ(a.code, 1) << a.out << a.err;
    EXPECT_EQ(a.err.rfind("headwise: ", 0), 0u) << a.err;
    EXPECT_NE(a.err.find(part), std::string::npos) << a.err;
    EXPECT_EQ(a.err.find('\n'), a.err.size() - 1) << a.err;
  }

  fs::path room_;
};

TEST_F(IntentWords, SuggestAndCompare) {
  ASSERT_EQ(train("one.tsv --out m --epochs 1 --quiet").code, 0);
  write("new.txt", "my card is lost\n\nMY  card is lost\r\nthe rate of it\nqq\n");
  const Answer ranked = headwise("suggest m new.txt --rows 9 --threads 1");
  ASSERT_EQ(ranked.code, 0) << ranked.err;
  EXPECT_EQ(std::count(ranked.out.begin(), ranked.out.end(), '\n'), 3) << ranked.out;  // equal ones once
  EXPECT_EQ(std::count(ranked.out.begin(), ranked.out.end(), '\t'), 6);
  EXPECT_EQ(headwise("suggest m new.txt --rows 1 --threads 1").out,
            ranked.out.substr(0, ranked.out.find('\n') + 1));
  write("none.txt", "\n \n");
  refused(headwise("suggest m none.txt"), "holds no text");
  write("book.xlsx", std::string("PK\x03\x04") + "rest");
  refused(headwise("train book.xlsx --out x"), "is cut short or damaged zip");

  const Answer page =
      headwise("report m one.tsv --compare several.tsv --out p.html --mistakes 3 --threads 1");
  ASSERT_EQ(page.code, 0) << page.err;
  EXPECT_NE(page.out.find("moved since: "), std::string::npos) << page.out;
  const std::string html = content(at("p.html"));
  for (const char* part : {"Reliability", "Accuracy against coverage", "What moved"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("(none)"), std::string::npos);
}

TEST_F(IntentWords, TrainEvalPredict) {
  const Answer made = train("several.tsv --out m --epochs 2 --test one.tsv");
  ASSERT_EQ(made.code, 0) << made.err;
  for (const char* file :
       {"model.safetensors", "config.json", "vocab.txt", "labels.txt", "metrics.json", "card.md"})
    EXPECT_TRUE(fs::exists(room_ / "m" / file)) << file;
  EXPECT_FALSE(fs::exists(at("m.run")));
  EXPECT_NE(made.out.find("texts of one.tsv"), std::string::npos) << "leaks are reported: " << made.out;

  const Answer judged = headwise("eval m one.tsv --json --latency --heads-figures --threads 1");
  ASSERT_EQ(judged.code, 0) << judged.err;
  const Json figures = Json::parse(judged.out);
  EXPECT_EQ(figures.at("exact").at("whole"), 24);
  EXPECT_GT(figures.at("latency").at("p99_ms").get<double>(), 0);
  EXPECT_GT(figures.at("heads").at("entropy").get<double>(), 0);
  EXPECT_EQ(figures.at("heads").at("layers").size(), 1u);
  EXPECT_NE(headwise("eval m one.tsv --heads-figures").out.find("distance between heads"), std::string::npos);
  EXPECT_NE(headwise("eval m one.tsv --wrong 2").out.find("  accuracy "), std::string::npos);

  const Answer said = headwise("predict m 'my card is lost' '' --json --explain --threads 1");
  ASSERT_EQ(said.code, 0) << said.err;
  const Json first = Json::parse(said.out.substr(0, said.out.find('\n')));
  EXPECT_EQ(first.at("text"), "my card is lost");
  const Json& why = first.at("explanations").at(0);
  EXPECT_EQ(why.at("words").at(1).at("text"), "card");
  EXPECT_EQ(why.at("heads").size(), 8u);
  EXPECT_EQ(std::count(said.out.begin(), said.out.end(), '\n'), 2);

  const Answer missed = headwise("predict m 'my card is lost' --abstain 0.9999 --explain --label rate");
  ASSERT_EQ(missed.code, 0) << missed.err;
  EXPECT_NE(missed.out.find("    missed   it has "), std::string::npos) << missed.out;
  EXPECT_NE(missed.out.find("    against  "), std::string::npos) << missed.out;
  // The surface's language: by option, else by the locale; a label stays a label.
  const auto in_locale = [&](const std::string& locale, const std::string& more) {
    return run("env -u LC_ALL -u LC_MESSAGES -u LANG " + locale +
               " " HEADWISE_PROGRAM " predict m 'my card is lost' --abstain 0.9999 --explain --label rate" +
               more)
        .out;
  };
  for (const std::string& chinese :
       {in_locale("LANG=zh_CN.UTF-8", ""), in_locale("LC_ALL=C", " --language zh")}) {
    EXPECT_NE(chinese.find("依据"), std::string::npos) << chinese;
    EXPECT_NE(chinese.find("对数几率还差"), std::string::npos) << chinese;
    EXPECT_NE(chinese.find("  rate\n"), std::string::npos) << chinese;
    EXPECT_EQ(chinese.find("said by"), std::string::npos) << chinese;
  }
  for (const std::string& english : {in_locale("LC_ALL=C LANG=zh_CN.UTF-8", ""),
                                     in_locale("LANG=zh_CN.UTF-8", " --language en"), in_locale("LANG=", "")})
    EXPECT_NE(english.find("    said by  my card"), std::string::npos) << english;
  EXPECT_EQ(headwise("predict m x --language fr").code, 2);
  EXPECT_NE(headwise("predict m x --explain --label nothing").err.find("there is no label \"nothing\""),
            std::string::npos);
  EXPECT_NE(headwise("predict m x --label card").err.find("give --explain too"), std::string::npos);

  const Answer lines =
      run("printf 'my card\\nthe rate \\377\\n' | " HEADWISE_PROGRAM " predict m --json --threads 1");
  ASSERT_EQ(lines.code, 0) << lines.err;
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 2);
  const Answer plain = headwise("predict m 'my card' --explain");
  EXPECT_NE(plain.out.find("* "), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find("layer 0 head "), std::string::npos) << plain.out;
  EXPECT_EQ(plain.out.find('\033'), std::string::npos) << "colours went into a pipe";
}

/// On the double of the CUDA library; without it, one sentence.
TEST_F(IntentWords, ADeviceIsChosenByItsName) {
  if (fs::exists(fs::path(HEADWISE_PROGRAM).parent_path() / "libheadwise_cuda.so"))
    GTEST_SKIP() << "the real library lies beside the program and is found first";
  const std::string there = "LD_LIBRARY_PATH=" HEADWISE_FAKE_CUDA " " HEADWISE_PROGRAM " ";
  const Answer made = run(there + "train one.tsv --out m --epochs 1 --quiet --device cuda" + kSmall);
  ASSERT_EQ(made.code, 0) << made.err;
  refused(headwise("predict m x --device gpu"), "device is \"gpu\"; give cpu, cuda, cuda:0 and on, or auto");
  refused(headwise("predict m x --device cuda"),
          "CUDA device 0 cannot be used: libheadwise_cuda.so was not loaded");
  refused(run(there + "eval m one.tsv --device cuda:1"), "CUDA device 1 is not there; this machine has 1");
  const Answer chosen = headwise("predict m x --device auto --threads 1");
  EXPECT_EQ(chosen.code, 0);
  EXPECT_NE(chosen.err.find("headwise predict: device the CPU: "), std::string::npos) << chosen.err;

  const Answer here = headwise("eval m one.tsv --json --threads 1"),
               far = run(there + "eval m one.tsv --json --threads 1 --device cuda");
  ASSERT_EQ(far.code, 0) << far.err;
  EXPECT_EQ(Json::parse(here.out).at("exact"), Json::parse(far.out).at("exact"));
  const std::string words = "predict m 'my card is lost' --json --explain --threads 1";
  const Answer why = run(there + words + " --device cuda");
  ASSERT_EQ(why.code, 0) << why.err;
  EXPECT_EQ(Json::parse(why.out).at("labels"), Json::parse(headwise(words).out).at("labels"));
  const std::string page = "report m one.tsv --out r.html --threads 1";
  const Answer shown = headwise(page), shown_there = run(there + page + " --device cuda");
  ASSERT_EQ(shown_there.code, 0) << shown_there.err;
  EXPECT_EQ(shown.out.substr(0, shown.out.find('\n')), shown_there.out.substr(0, shown_there.out.find('\n')));
}

TEST_F(IntentWords, TheSameCommandAgainChangesNothing) {
  ASSERT_EQ(train("one.tsv --out m --epochs 1").code, 0);
  const std::string weights = content(at("m/model.safetensors"));
  const Answer again = train("one.tsv --out m --epochs 1");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("trained with these words before"), std::string::npos) << again.out;
  refused(train("one.tsv --out m --epochs 2"), "trained with other words");
  EXPECT_EQ(content(at("m/model.safetensors")), weights);
  EXPECT_EQ(train("one.tsv --out m --epochs 2 --replace").code, 0);
  EXPECT_NE(content(at("m/model.safetensors")), weights);
}

TEST_F(IntentWords, BadDataIsOneSentence) {
  write("latin1.tsv", "caf\xe9 please\ta\nthe rate\tb\n");
  write("class.tsv", "my card\ta\nthe rate\ta\n");
  write("unseen.tsv", "my dog\tdog\n");
  refused(train("nowhere.tsv --out m"), "nowhere.tsv");
  refused(train("latin1.tsv --out m"), "UTF-8");
  refused(train("class.tsv --out m"), "give a second class");
  refused(train("one.tsv --out m --test unseen.tsv"), "never shows: \"dog\"");
  refused(train("--out m"), "or --builtin");
  refused(train("one.tsv --out m --heads gga:heads=2"), "there is no head \"gga\"");
  refused(train("one.tsv --out m --pooling most"), "--pooling: got \"most\"");
  refused(train("one.tsv --out m --from nowhere"), "nowhere");
  refused(train("one.tsv --out one.tsv"), "no model folder");
  refused(train("one.tsv --out one.tsv --replace"), "no model folder");
  for (const char* share : {"nan", "-1", "-inf", "1"})
    refused(train(std::string("one.tsv --out m --dropout=") + share), "dropout is ");
  refused(train("one.tsv --out m --epochs 0"), "give 1 or more");
  EXPECT_FALSE(fs::exists(at("m"))) << "refused before anything was written";
  EXPECT_FALSE(fs::exists(at("m.run")));
  EXPECT_EQ(headwise("train one.tsv").code, 2) << "--out is needed";
}

TEST_F(IntentWords, AFolderOfOthersIsNoRun) {
  fs::create_directories(at("m.run"));
  write("m.run/thesis.txt", "x");
  refused(train("one.tsv --out m --epochs 1"), "m.run is there and holds no run");
  write("m.run/settings.json", "{}");
  refused(train("one.tsv --out m --epochs 1 --replace"), "m.run is there and holds no run");
  EXPECT_TRUE(fs::exists(at("m.run/thesis.txt")));
  EXPECT_FALSE(fs::exists(at("m")));
  // What is left of a run that never began is no run.
  fs::remove(at("m.run/thesis.txt"));
  write("m.run/settings.json", "");
  EXPECT_EQ(train("one.tsv --out m --epochs 1").code, 0);
}

TEST_F(IntentWords, BadModelFoldersAreOneSentence) {
  refused(headwise("predict nowhere x"), "nowhere");
  ASSERT_EQ(train("one.tsv --out m --epochs 1").code, 0);
  refused(headwise("eval m"), "or --builtin");
  write("unseen.tsv", "my dog\tdog\n");
  refused(headwise("eval m unseen.tsv"), "dog");
  fs::copy(at("m"), at("newer"));
  std::string config = content(at("m/config.json"));
  const std::size_t version = config.find("\"version\": 1");
  ASSERT_NE(version, std::string::npos) << config;
  write("newer/config.json", config.replace(version, 12, "\"version\": 9"));
  refused(headwise("predict newer x"), "9");
  fs::copy(at("m"), at("cut"));
  fs::resize_file(room_ / "cut/model.safetensors", fs::file_size(room_ / "cut/model.safetensors") / 2);
  refused(headwise("predict cut x"), "model.safetensors");
  fs::copy(at("m"), at("flipped"));
  std::string weights = content(at("m/model.safetensors"));
  weights[weights.size() - 5] = static_cast<char>(weights[weights.size() - 5] ^ 0x40);
  write("flipped/model.safetensors", weights);
  refused(headwise("predict flipped x"), "flipped");
  fs::remove(room_ / "cut/labels.txt");
  refused(headwise("eval cut one.tsv"), "labels.txt");
}

TEST_F(IntentWords, KilledOrInterruptedTheSameCommandGoesOn) {
  // Too long to be done before the signal; tests/intent holds that what goes on ends with the same bits.
  const auto begin_and = [&](const std::string& signal) {
    return run(
        "touch mark; sleep 0.01; " + std::string(HEADWISE_PROGRAM) +
        " train one.tsv --replace --out m --epochs 100000" + kSmall +
        " & pid=$!; while set -- m.run/step-* && [ ! \"$1\" -nt mark ] && kill -0 $pid; do sleep 0.01; done; "
        "kill -" +
        signal + " $pid; wait $pid");
  };
  EXPECT_EQ(begin_and("KILL").code, 128 + 9);
  EXPECT_FALSE(fs::exists(at("m")));
  refused(train("one.tsv --out m --epochs 99999"), "begun with other words");
  const Answer stopped = begin_and("TERM");
  EXPECT_EQ(stopped.code, 1);
  EXPECT_NE(stopped.out.find("resumed from m.run/step-"), std::string::npos) << stopped.out;
  EXPECT_NE(stopped.err.find("nothing is lost; the same command goes on"), std::string::npos) << stopped.err;
  EXPECT_FALSE(fs::exists(at("m")));
  EXPECT_EQ(train("one.tsv --out m --epochs 1 --replace").code, 0) << "other words begin anew";
}

TEST_F(IntentWords, ChangedDataIsNoModelOfIt) {
  ASSERT_EQ(train("one.tsv --out m --epochs 1").code, 0);
  const std::string weights = content(at("m/model.safetensors"));
  write("one.tsv", content(at("one.tsv")) + "my card is gone\tlost_card\n");
  refused(train("one.tsv --out m --epochs 1"),
          "m was trained with these words, but on other data; give --replace");
  EXPECT_EQ(content(at("m/model.safetensors")), weights);
  EXPECT_EQ(train("one.tsv --out m --epochs 1 --replace").code, 0);
  EXPECT_NE(content(at("m/model.safetensors")), weights);
  EXPECT_EQ(train("one.tsv --out m --epochs 1").code, 0);
}

/// What kills leave beside OUT: a run half deleted, and folders half written. The same command goes on.
TEST_F(IntentWords, WhatKillsLeaveIsCleanedUp) {
  const std::string dead = "4194304";  // above the largest number a process has
  for (const std::string& name : {".m." + dead + ".0.part", ".m.run." + dead + ".1.gone"}) {
    fs::create_directories(at(name));
    write(name + "/model.safetensors", "half");
  }
  fs::create_directories(at(".m." + dead + ".0.part.mine"));
  ASSERT_EQ(train("one.tsv --out m --epochs 1").code, 0);
  EXPECT_FALSE(fs::exists(at(".m." + dead + ".0.part")));
  EXPECT_FALSE(fs::exists(at(".m.run." + dead + ".1.gone")));
  EXPECT_TRUE(fs::exists(at(".m." + dead + ".0.part.mine"))) << "a name of somebody else";
  EXPECT_FALSE(fs::exists(at(".m.lock")));
  // A run goes in one step: its words are never deleted before the rest.
  const int watch = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(::inotify_add_watch(watch, room_.c_str(), IN_MOVED_FROM | IN_DELETE), 0);
  ASSERT_EQ(train("one.tsv --out n --epochs 1").code, 0);
  bool moved = false, deleted = false;
  alignas(inotify_event) std::array<char, 4096> events;
  for (ssize_t n = 0; (n = ::read(watch, events.data(), events.size())) > 0;)
    for (ssize_t at = 0; at < n;) {
      const auto& event = *reinterpret_cast<const inotify_event*>(events.data() + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event.len);
      if (event.len == 0 || std::string(event.name) != "n.run") continue;
      moved = moved || (event.mask & IN_MOVED_FROM) != 0, deleted = deleted || (event.mask & IN_DELETE) != 0;
    }
  ::close(watch);
  EXPECT_TRUE(moved);
  EXPECT_FALSE(deleted);
}

TEST_F(IntentWords, OneTrainerAtATime) {
  const Answer both =
      run(std::string(HEADWISE_PROGRAM) + " train one.tsv --out m --epochs 100000" + kSmall +
          " >/dev/null & pid=$!; while [ ! -e m.run/settings.json ] && kill -0 $pid; do sleep 0.01; "
          "done; " HEADWISE_PROGRAM " train one.tsv --out m --epochs 100000" +
          kSmall + "; code=$?; kill -KILL $pid; wait $pid; exit $code");
  EXPECT_EQ(both.code, 1) << both.err;
  EXPECT_NE(both.err.find("m is being trained by another process; wait for it or give another --out"),
            std::string::npos)
      << both.err;
  EXPECT_EQ(train("one.tsv --out m --epochs 1 --replace").code, 0) << "a lock ends with its process";
}

TEST_F(IntentWords, NumbersAtTheirEnds) {
  for (const char* words : {"--epochs 4611686018427387904", "--batch 4611686018427387904"})
    refused(headwise("train one.tsv --out m --threads 1 --vocabulary 120 " + std::string(words)),
            "give at most 1048576 of each");
  EXPECT_FALSE(fs::exists(at("m.run")));
  EXPECT_EQ(train("one.tsv --out short --epochs 1 --max-tokens 16").code, 0);
  EXPECT_EQ(train("one.tsv --out shortest --epochs 1 --max-tokens 3").code, 0);
  refused(train("one.tsv --out none --epochs 1 --max-tokens 2"), "leave two tokens for [CLS] and [SEP]");
}

/// A socket that reached the address, or -1.
int connected(const sockaddr_in& a) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0) return fd;
  ::close(fd);
  return -1;
}

TEST_F(IntentWords, AnySecondSignalEndsTheService) {
  ASSERT_EQ(train("one.tsv --out m --epochs 1").code, 0);
  for (const auto& [first, second] : {std::pair(SIGTERM, SIGINT), std::pair(SIGINT, SIGINT)}) {
    int out[2];
    ASSERT_EQ(::pipe(out), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      ::close(out[0]), ::close(out[1]);
      ::execl(HEADWISE_PROGRAM, "headwise", "serve", at("m").c_str(), "--port", "0", "--no-token",
              "--threads", "1", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(out[1]);
    FILE* said = ::fdopen(out[0], "r");
    char line[256] = "";
    ASSERT_NE(std::fgets(line, sizeof line, said), nullptr);
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(
        static_cast<std::uint16_t>(std::stoi(std::string(line).substr(std::string(line).rfind(':') + 1))));
    const int fd = connected(a);
    ASSERT_GE(fd, 0);
    // One request and half of another: where the first is answered the half was read, and draining waits for
    // its rest.
    const std::string asked = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET ";
    ASSERT_EQ(::send(fd, asked.data(), asked.size(), MSG_NOSIGNAL), std::ssize(asked));
    std::array<char, 4096> answer;
    ASSERT_GT(::recv(fd, answer.data(), answer.size(), 0), 0);
    ::kill(child, first);
    int other = connected(a);
    for (int i = 0; i < 6000 && other >= 0; ++i, ::usleep(10'000)) ::close(other), other = connected(a);
    EXPECT_LT(other, 0) << "the first ends what listens";
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, WNOHANG), 0) << "the first drains";
    ::kill(child, second);
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == second) << status;
    ::close(fd);
    std::fclose(said);
  }
}

/// GET of a path by HTTP/1.0: everything that comes back.
std::string answer_of(int port, const std::string& path) {
  sockaddr_in a{};
  a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string all;
  const std::string asked = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (::connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0 &&
      ::send(fd, asked.data(), asked.size(), MSG_NOSIGNAL) > 0) {
    std::array<char, 4096> part;
    for (ssize_t n = 0; (n = ::recv(fd, part.data(), part.size(), 0)) > 0;)
      all.append(part.data(), static_cast<std::size_t>(n));
  }
  ::close(fd);
  return all;
}

TEST_F(IntentWords, AServiceReadsItsEnvironmentAndItsFolderAgain) {
  ASSERT_EQ(train("one.tsv --out m --epochs 1").code, 0);
  int out[2];
  ASSERT_EQ(::pipe(out), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::close(out[0]), ::close(out[1]);
    ::setenv("HEADWISE_SERVE_PORT", "0", 1), ::setenv("HEADWISE_SERVE_NO_TOKEN", "true", 1);
    ::setenv("HEADWISE_SERVE_THREADS", "1", 1), ::setenv("HEADWISE_SERVE_LOG_FORMAT", "json", 1);
    const int log = ::open(at("log").c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(log, STDERR_FILENO);
    ::execl(HEADWISE_PROGRAM, "headwise", "serve", at("m").c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(out[1]);
  FILE* said = ::fdopen(out[0], "r");
  char line[256] = "";
  ASSERT_NE(std::fgets(line, sizeof line, said), nullptr) << content(at("log"));
  const int port = std::stoi(std::string(line).substr(std::string(line).rfind(':') + 1));
  const auto says = [&](const std::string& path, const std::string& words) {
    for (int i = 0; i < 6000; ++i, ::usleep(10'000))
      if (answer_of(port, path).find(words) != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(says("/v1/labels", "\"labels\": [\"lost_card\", \"rate\"]")) << answer_of(port, "/v1/labels");
  write("other.tsv", "my loan is late\tloan\nmy fee is high\tfee\nthe loan\tloan\nthe fee\tfee\n");
  ASSERT_EQ(train("other.tsv --out m --epochs 1 --replace --dev other.tsv").code, 0);
  ::kill(child, SIGHUP);
  EXPECT_TRUE(says("/v1/labels", "\"labels\": [\"fee\", \"loan\"]")) << answer_of(port, "/v1/labels");
  fs::remove(at("m/labels.txt"));
  ::kill(child, SIGHUP);
  EXPECT_TRUE(says("/metrics", "headwise_reloads_total{result=\"failed\"} 1\n"));
  EXPECT_TRUE(says("/v1/labels", "\"fee\"")) << "the old one goes on";
  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::fclose(said);
  std::istringstream lines(content(at("log")));
  int errors = 0;
  for (std::string one; std::getline(lines, one);) errors += Json::parse(one).at("level") == "error";
  EXPECT_EQ(errors, 1) << content(at("log"));
}

TEST_F(IntentWords, AFullDiskLosesNothing) {
  // A limit on file sizes stands for a disk without room: writes fail, the signal is not taken.
  const std::string words = std::string(" train one.tsv --out m --epochs 3") + kSmall;
  const Answer full = run("trap '' XFSZ; ulimit -f 8; " HEADWISE_PROGRAM + words);
  refused(full, "cannot write");
  EXPECT_FALSE(fs::exists(at("m")));
  EXPECT_FALSE(fs::exists(at("m.run"))) << "what is left would refuse other words";
  const Answer again = run(HEADWISE_PROGRAM + words);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(fs::exists(at("m/model.safetensors")));
}

}  // namespace
