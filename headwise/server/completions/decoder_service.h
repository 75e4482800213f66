// DecoderService: a language model over HTTP: OpenAI's completions, chat and models, and what its heads did.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/server/completions/decoder_worker.h"
#include "headwise/server/http_service.h"

namespace headwise::server {

struct DecoderServiceOptions : HttpServiceOptions {
  DecoderWorkerOptions worker;
  int threads = 0;  // of the model
};

class DecoderService : public HttpService {
 public:
  /// Listens; who comes before run() waits for it. A client that closes its side ends its text.
  DecoderService(std::unique_ptr<DecoderHost> host, const std::string& name, Listener& listener,
                 const std::string& address, DecoderServiceOptions options);

 private:
  static DecoderServiceOptions with_hangups(DecoderServiceOptions options);
  bool offers(const HttpRoute&) const override { return true; }
  std::optional<HttpResponse> take_own(const HttpRoute& route, const HttpRequest& request, Ticket ticket,
                                       Clock::time_point& until) override;
  std::string model_name() const override { return name_; }
  HttpResponse all_numbers() const override;
  std::string openapi() const override;
  HttpResponse late(Ticket ticket) override;
  void gone(Ticket ticket) override;
  HttpResponse models() const;
  std::optional<HttpResponse> ask(const HttpRequest& request, CompletionKind kind, Ticket ticket,
                                  Clock::time_point& until);

  std::string name_;  // JSON
  std::int64_t created_;
  DecoderWorker worker_;  // ends before the loop it answers through
};

}  // namespace headwise::server
