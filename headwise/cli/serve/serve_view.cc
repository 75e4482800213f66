#include "headwise/cli/serve/serve_view.h"

#include <fmt/format.h>

#include "headwise/cli/args/args.h"
#include "headwise/cli/serve/serving.h"
#include "headwise/server/view/map_service.h"

namespace headwise::cli {

int serve_view(std::string page, std::unique_ptr<DeepMap> map, int port) {
  using namespace headwise::server;
  ProgramLog log(LogFormat::text);
  Listener listener("127.0.0.1", port);
  HttpServiceOptions options;
  const Token token = Token::random();
  options.door.tokens = {token};
  options.deadline = std::chrono::milliseconds(60'000);
  options.loop.niceness = 0;
  options.log = [&log](const std::string& line) { log.write(line); };
  options.log_lines_lost = [&log] { return log.lost(); };
  const bool has_map = map != nullptr;
  MapService service(std::make_shared<const std::string>(std::move(page)), std::move(map), listener,
                     "127.0.0.1", std::move(options));
  const Serving serving(service, [] {});
  const std::string base = fmt::format("127.0.0.1:{}", listener.port());
  const std::string address = has_map ? fmt::format("http://{}/#key={}", base, token.words())
                                      : fmt::format("http://view:{}@{}/page", token.words(), base);
  std::fputs(fmt::format("open {} (Ctrl-C ends it)\n", address).c_str(), stdout);
  std::fflush(stdout);
  return service.run() == 0 ? kDone : kFailed;
}

}  // namespace headwise::cli
