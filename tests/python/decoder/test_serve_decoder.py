"""headwise serve of a language model: OpenAI's routes, streams, refusals, clients that leave; all over plain sockets."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import numpy as np
import pytest
from tiny_decoder import CHATML, tokenizer_json, write_llama

import headwise as hw

PROGRAM = pathlib.Path(os.environ.get("HEADWISE_CLI") or pathlib.Path(hw.__file__).parents[2] / "headwise/cli/headwise")
if os.environ.get("CI") == "true":
    assert PROGRAM.exists(), f"{PROGRAM} is missing; build headwise_cli, or name it in HEADWISE_CLI"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built beside the module")
LONG = {"prompt": "the", "max_tokens": 40_000, "temperature": 0, "logit_bias": {"116": 100}}  # never the end token, and not soon done
PATIENCE = 200  # seconds: of a server that shares its cores


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tokenizer_json(specials=("<|end|>", "<|im_start|>", "<|im_end|>"))
    return write_llama(tmp_path_factory.mktemp("served") / "tiny", positions=50_000, tokenizer=made, chat=CHATML)


@pytest.fixture(scope="module")
def port(folder):
    command = [PROGRAM, "serve", folder, "--port", "0", "--no-token", "--kv-mib", "64", "--max-requests", "20"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = child.stdout.readline()
    assert "serving" in line, child.stderr.read()
    yield int(line.rsplit(":", 1)[1])
    child.send_signal(signal.SIGTERM)
    assert child.wait(PATIENCE) == 0, child.stderr.read()


def ask(port, path, body=None, headers=()):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body),
              dict(headers) | {"Content-Type": "application/json"})
    r = c.getresponse()
    return r.status, json.loads(r.read())


def events(port, path, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200 and r.headers["Content-Type"].startswith("text/event-stream")
    parts = r.read().decode().split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(p.removeprefix("data: ")) for p in parts[:-2]]


def refusal(port, path, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return c.getresponse().status


def metrics(port, *names):
    """Values of one answer."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request("GET", "/metrics")
    lines = c.getresponse().read().decode().splitlines()
    return [int(next(line for line in lines if line.startswith(name + " ")).split()[1]) for name in names]


def metric(port, name):
    return metrics(port, name)[0]


def becomes(so):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if so():
            return True
        time.sleep(0.05)
    return False


def writes(port, more_than):
    """A text that holds pages is being written, beyond so many tokens: by one answer, as it may end between two."""
    drawn, held = metrics(port, "headwise_decoder_tokens_drawn_total", "headwise_decoder_pages_held")
    return drawn > more_than and held > 0


SAMPLED = {"prompt": ["the man", "an end"], "n": 2, "max_tokens": 12, "temperature": 0.9, "seed": 4, "logprobs": 2}


def test_models(port):
    status, said = ask(port, "/v1/models")
    assert status == 200 and said["data"][0]["id"] == "tiny" and said["object"] == "list"


def test_completions_are_those_of_the_library(port, folder):
    status, said = ask(port, "/v1/completions", SAMPLED | {"model": "tiny"})
    assert status == 200, said
    model = hw.Decoder(folder, kv_mib=4)
    seeds = [4, (4 + 0x9E3779B97F4A7C15) % 2**64]
    want = [model.generate(p, max_tokens=12, temperature=0.9, seed=s, logprobs=2) for p in SAMPLED["prompt"] for s in seeds]
    assert [c["text"] for c in said["choices"]] == [w.text for w in want]
    assert [c["index"] for c in said["choices"]] == [0, 1, 2, 3]
    for c, w in zip(said["choices"], want):
        assert c["logprobs"]["token_logprobs"] == [p.logprob for p in w.logprobs]
        assert c["finish_reason"] == w.finish
    prompt = sum(len(model.tokenize(p)) for p in SAMPLED["prompt"])
    drawn = sum(len(w.tokens) for w in want)
    assert said["usage"] == {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def test_a_stream_has_the_choices_of_the_whole(port):
    _, whole = ask(port, "/v1/completions", SAMPLED)
    parts = events(port, "/v1/completions", SAMPLED | {"stream_options": {"include_usage": True}})
    assert parts[-1]["choices"] == [] and parts[-1]["usage"] == whole["usage"]
    for i, choice in enumerate(whole["choices"]):
        mine = [p["choices"][0] for p in parts[:-1] if p["choices"][0]["index"] == i]
        assert "".join(m["text"] for m in mine) == choice["text"]
        assert [m["finish_reason"] for m in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        for key in choice["logprobs"]:
            assert sum((m["logprobs"][key] for m in mine), []) == choice["logprobs"][key]
    echo = {"prompt": "the end", "max_tokens": 3, "temperature": 0, "echo": True}
    _, whole = ask(port, "/v1/completions", echo)
    assert whole["choices"][0]["text"].startswith("the end")
    assert "".join(p["choices"][0]["text"] for p in events(port, "/v1/completions", echo)) == whole["choices"][0]["text"]


def test_chat(port, folder):
    talk = [{"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "man"}]}]
    body = {"messages": talk, "max_completion_tokens": 9, "temperature": 0.7, "seed": 1, "logprobs": True, "top_logprobs": 1}
    status, whole = ask(port, "/v1/chat/completions", body)
    assert status == 200, whole
    model = hw.Decoder(folder, kv_mib=4)
    ids = model.chat_tokens([{"role": "user", "content": "the man"}])
    want = model.generate(ids, max_tokens=9, temperature=0.7, seed=1)
    choice = whole["choices"][0]
    assert choice["message"]["content"] == want.text and whole["usage"]["prompt_tokens"] == len(ids)
    assert [bytes(t["bytes"]) for t in choice["logprobs"]["content"]] == [model._core.token_bytes([t]) for t in want.tokens]
    parts = events(port, "/v1/chat/completions", body)
    deltas = [p["choices"][0]["delta"] for p in parts]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert "".join(d.get("content", "") for d in deltas) == want.text


def test_heads(port, folder):
    status, said = ask(port, "/v1/heads", {"prompt": "the man and", "max_tokens": 5, "temperature": 0, "per_token": True})
    assert status == 200, said
    model = hw.Decoder(folder, kv_mib=4)
    ids = [t["id"] for t in said["tokens"]]
    prompt = said["prompt_tokens"]
    assert ids[:prompt] == model.tokenize("the man and") and said["layers"] == 2 and said["heads"] == 4
    stats = model.heads(ids)
    assert stats.cross is None, "this model looks at nothing but its own tokens"
    for name in set(stats._fields) - {"cross"}:
        rows = getattr(stats, name)
        assert np.allclose(said["prompt"][name], rows[:prompt].mean(axis=0), atol=1e-5)
        assert np.allclose(said["continuation"][name], rows[prompt:].mean(axis=0), atol=1e-5)
        assert np.allclose([t[name] for t in said["per_token"]], rows, atol=1e-5)


@pytest.mark.parametrize("body, status, param", [
    ({"prompt": "a", "speed": 9}, 400, "speed"), ({"prompt": "a", "temperature": -1}, 400, "temperature"),
    ({"prompt": "a", "top_p": 2}, 400, "top_p"), ({"prompt": "a", "n": 0}, 400, "n"), ({}, 400, "prompt"), ({"prompt": ""}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"), ({"prompt": [9999]}, 400, "prompt"), ({"prompt": "a", "model": "gpt"}, 404, "model"),
    ({"prompt": "a", "max_tokens": 10**9}, 400, None), ({"prompt": [1] * 50_001}, 400, "prompt"), ({"prompt": "a", "stop": [""]}, 400, "stop"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"), ({"prompt": "a", "logprobs": 99}, 400, "logprobs"),
    ({"prompt": "a", "stream_options": {}}, 400, "stream_options"), ({"prompt": ["a"] * 65}, 400, "prompt"), ({"prompt": {"a": 1}}, 400, None),
    ({"prompt": "a", "best_of": 3}, 400, "best_of"), ({"prompt": "a", "min_tokens": -1}, 400, "min_tokens"),
])
def test_refusals_name_the_key(port, body, status, param):
    got, said = ask(port, "/v1/completions", body)
    assert got == status, said
    assert set(said["error"]) == {"message", "type", "param", "code"} and said["error"]["type"] == "invalid_request_error"
    if param is not None:
        assert said["error"]["param"] == param


def test_whole_numbers_may_be_written_as_fractions(port):
    plain = {"prompt": [[1, 30, 7]], "max_tokens": 3, "temperature": 0, "seed": 5 * 10**18}
    raw = '{"prompt": [[1.0, 3e1, 7]], "max_tokens": 3.0, "temperature": 0, "seed": 5e+18}'
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request("POST", "/v1/completions", raw, {"Content-Type": "application/json"})
    r = c.getresponse()
    said = json.loads(r.read())
    assert r.status == 200 and said["choices"] == ask(port, "/v1/completions", plain)[1]["choices"], said
    for prompt in ([1.5], [-1], [True], [None], [[[1]]], [1, "a"], [1e300], [2**64]):
        status, said = ask(port, "/v1/completions", {"prompt": prompt})
        assert status == 400 and said["error"]["param"] in ("prompt", ""), (prompt, said)


def test_other_refusals(port):
    assert ask(port, "/v1/nothing")[0] == 404 and ask(port, "/v1/models", {})[0] == 405
    for talk in ([], [{"role": "tool", "content": "x"}], "hello", [{"role": "user", "content": [{"type": "image"}]}],
                 [{"role": "user", "content": "a", "name": 3}]):
        assert ask(port, "/v1/chat/completions", {"messages": talk})[0] == 400
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request("POST", "/v1/completions", b'{"prompt": "\xff"}', {"Content-Type": "application/json"})
    assert c.getresponse().status == 400
    assert "param" in ask(port, "/v1/nothing")[1]["error"]


def test_a_client_that_leaves_gives_its_pages_back(port):
    for stream in (True, False):
        before = metric(port, "headwise_decoder_tokens_drawn_total")
        s = socket.create_connection(("127.0.0.1", port))
        body = json.dumps(LONG | {"stream": stream})
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert becomes(lambda: writes(port, before + 5))
        s.close()
        assert becomes(lambda: metric(port, "headwise_decoder_pages_held") == 0)
        assert metric(port, "headwise_decoder_tokens_drawn_total") < before + LONG["max_tokens"], "it was written to its end"


def test_deadlines(port):
    status, said = ask(port, "/v1/completions", LONG, {"Headwise-Deadline-Ms": "50"})
    assert status == 504 and said["error"]["type"] == "server_error"
    for _ in range(50):  # where the machine stalls, even the first word may be too late
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        c.request("POST", "/v1/completions", json.dumps(LONG | {"stream": True}),
                  {"Content-Type": "application/json", "Headwise-Deadline-Ms": "400"})
        r = c.getresponse()
        said = r.read().decode()
        if r.status == 200:
            break
        assert r.status == 504
    assert r.status == 200 and json.loads(said.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "too_late"
    assert becomes(lambda: metric(port, "headwise_decoder_pages_held") == 0)


def test_many_clients_get_the_texts_they_get_alone(port):
    bodies = [{"prompt": f"text {i}", "max_tokens": 10, "temperature": 1.0, "seed": i} for i in range(12)]
    alone = [ask(port, "/v1/completions", b)[1]["choices"] for b in bodies]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda b: ask(port, "/v1/completions", b)[1]["choices"], bodies)) == alone


def test_too_many_requests_are_told_so(port):
    held = []
    for _ in range(20):
        s = socket.create_connection(("127.0.0.1", port))
        body = json.dumps(LONG)
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        held.append(s)
    assert becomes(lambda: ask(port, "/v1/completions", {"prompt": "the", "max_tokens": 1})[0] == 429)
    for s in held:
        s.close()
    assert becomes(lambda: ask(port, "/v1/completions", SAMPLED)[0] == 200)


def test_an_idle_server_takes_no_core(folder):
    """Seconds of CPU of the program while nobody asks, also behind its first answer."""
    command = [PROGRAM, "serve", folder, "--port", "0", "--no-token", "--kv-mib", "4"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    own = int(child.stdout.readline().rsplit(":", 1)[1])

    def used():
        fields = pathlib.Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def idle():
        before = used()
        time.sleep(1.5)
        return used() - before <= 0.02  # one tick or two of 150

    assert ask(own, "/v1/completions", {"prompt": "the", "max_tokens": 3})[0] == 200
    time.sleep(0.3)
    rests = any(idle() for _ in range(5))  # what it does behind an answer may come late; what never ends is in every look
    child.send_signal(signal.SIGTERM)
    assert child.wait(PATIENCE) == 0
    assert rests


def test_a_token_opens_the_door(folder):
    child = subprocess.Popen([PROGRAM, "serve", folder, "--port", "0", "--token-env", "TOKEN_OF_TEST", "--kv-mib", "1"], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | {"TOKEN_OF_TEST": "open-this-door-please"})
    own = int(child.stdout.readline().rsplit(":", 1)[1])
    assert ask(own, "/v1/models")[0] == 401
    assert ask(own, "/v1/models", headers={"Authorization": "Bearer open-this-door-please"})[0] == 200
    child.send_signal(signal.SIGTERM)
    assert child.wait(PATIENCE) == 0


def test_a_model_without_a_template_has_no_conversations(tmp_path):
    plain = write_llama(tmp_path / "plain", tokenizer=tokenizer_json())
    child = subprocess.Popen([PROGRAM, "serve", plain, "--port", "0", "--no-token"], stdout=subprocess.PIPE, text=True)
    try:
        port = int(child.stdout.readline().rsplit(":", 1)[1])
        for path in ("/v1/chat/completions", "/v1/heads"):
            status, said = ask(port, path, {"messages": [{"role": "user", "content": "a"}]})
            assert status == 404 and said["error"]["code"] == "no_template" and said["error"]["param"] == "messages"
    finally:
        child.terminate()
        child.wait(PATIENCE)


def test_openapi_lists_what_is_there(port, folder):
    status, document = ask(port, "/openapi.json")
    assert status == 200 and document["openapi"] == "3.1.0"
    text, schemas = json.dumps(document), document["components"]["schemas"]
    for name in set(re.findall(r'"#/components/schemas/(\w+)"', text)):
        assert name in schemas
    bodies = {"/v1/completions": {"prompt": "the"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
              "/v1/heads": {"prompt": "the"}}
    for path, body in bodies.items():
        answer, operation = body | {"max_tokens": 1}, document["paths"][path]["post"]
        keys = schemas[operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]]
        for key in keys["properties"]:
            status, said = ask(port, path, {key: None} | answer)
            assert status == 200, (path, key, said)
        given = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        assert set(said) >= set(schemas[given]["required"])
        assert ask(port, path, answer | {"no_such_key": None})[0] == 400
        # What schemathesis sends by this schema is taken: stream_options stand beside a stream alone.
        # So top_logprobs beside logprobs, and top_p from 1e-9 on.
        rules = {rule["if"]["required"][0]: rule["then"]["properties"] for rule in keys["allOf"]}
        whole = keys["properties"]["stream"]["anyOf"][0] == {"const": False}  # heads come in one piece
        assert whole == (path == "/v1/heads") == (refusal(port, path, answer | {"stream": True}) == 400)
        assert rules == {"stream_options": {"stream": {"const": True}}, "top_logprobs": {"logprobs": {"const": True}}}
        least = keys["properties"]["top_p"]["anyOf"][0]["minimum"]
        assert ask(port, path, answer | {"top_p": least})[0] == 200 and ask(port, path, answer | {"top_p": 0})[0] == 400
        assert ask(port, path, answer | {"stream_options": {}})[0] == 400
        assert keys["properties"]["n"]["anyOf"][0] == ({"const": 1} if whole else {"$ref": "#/components/schemas/Choices"})
        assert ask(port, path, answer | {"n": 2 if whole else schemas["Choices"]["maximum"] + 1})[0] == 400
    empty = "minLength" not in schemas["Prompt"]["anyOf"][0]  # a tokenizer with a first token of its own
    assert (ask(port, "/v1/completions", {"prompt": [""], "max_tokens": 1})[0] == 200) == empty
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    bodies["/v1/chat/completions"]["logit_bias"] = {str(end): 100}  # else it may go on through all positions
    for path in set(document["paths"]) - {"/metrics"}:
        assert ask(port, path, bodies.get(path))[0] == 200, path
