// Service: a model over HTTP: routes, limits, answers, health, metrics, reload, an end that loses nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "headwise/server/http_service.h"
#include "headwise/server/model/batcher.h"
#include "headwise/server/model/texts_request.h"

namespace headwise::server {

struct ServiceOptions : HttpServiceOptions {
  TextLimits texts;
  BatcherOptions batcher;
  std::shared_ptr<const std::string> report;  // a page; none: no such route
};

/// One route as openapi.json names it too.
struct RouteName {
  std::string_view path, method;
};

/// What is served: see kRoutes in service.cc and model/intents_openapi.cc.
class Service : public HttpService {
 public:
  /// `address` is that of the listener, as clients name it; "" where that is a file. Listens; who comes
  /// before run() waits for it.
  Service(Served model, Listener& listener, const std::string& address, ServiceOptions options);

  /// Every route there is, also those that options leave out.
  static std::vector<RouteName> routes();
  /// From any thread: the next batch is answered by this model. Requests that wait stay.
  void replace(Served model);
  /// A model that was asked for could not be loaded: counted.
  void replacement_failed() { metrics_.reloaded(false); }

 private:
  /// What answers say of the model.
  struct Facts {
    std::string name, about;  // JSON
    bool explains = false;
  };
  static Facts facts_of(const Served& model);
  Facts facts() const;

  bool offers(const HttpRoute& route) const override;
  std::optional<HttpResponse> take_own(const HttpRoute& route, const HttpRequest& request, Ticket ticket,
                                       Clock::time_point& until) override;
  std::string model_name() const override { return facts().name; }
  HttpResponse all_numbers() const override;
  std::string openapi() const override;
  HttpResponse late(Ticket ticket) override;
  void gone(Ticket ticket) override;

  static HttpResponse page(std::shared_ptr<const std::string> words, const char* more);
  HttpResponse labels() const;
  std::optional<HttpResponse> ask(const HttpRequest& request, bool explain, Ticket ticket,
                                  Clock::time_point& until);
  HttpResponse answer_of(const Outcome& outcome) const;

  mutable std::mutex lock_;  // of the facts
  Facts facts_;
  ServiceOptions options_;
  Batcher batcher_;  // ends before the loop it answers through
};

}  // namespace headwise::server
