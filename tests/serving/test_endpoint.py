"""What a client learns from a running server."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from eyas.errors import ServerError
from eyas.serving.endpoint import (
    ModelInfo,
    api_key,
    check_model,
    external_base_url,
    read_metrics,
    trusts_proxies,
)

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 7.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0
# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
"""


class Handler(BaseHTTPRequestHandler):
    pages: dict[str, tuple[int, str]]

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path, (404, "nothing here"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def pages() -> dict[str, tuple[int, str]]:
    return {
        "/v1/models": (200, '{"data":[{"id":"target","max_model_len":2048}]}'),
        "/version": (200, '{"version":"0.32.0"}'),
        "/metrics": (200, METRICS),
    }


@pytest.fixture
def base_url(pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    handler = type("Pages", (Handler,), {"pages": pages})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_the_environment_names_an_external_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert external_base_url() is None
    assert api_key() == "EMPTY"
    monkeypatch.setenv("OPENAI_BASE_URL", " http://10.0.0.5:8000/v1/ ")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert external_base_url() == "http://10.0.0.5:8000/v1"
    assert api_key() == "key"
    monkeypatch.setenv("OPENAI_BASE_URL", "10.0.0.5:8000")
    with pytest.raises(ServerError, match=r"not an http\(s\) URL"):
        external_base_url()


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("http://127.0.0.1:8000/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://[::1]:8000/v1", False),
        ("http://10.1.2.3/v1", False),
        ("http://192.168.0.9:30000/v1", False),
        ("https://api.example.com/v1", True),
        ("http://8.8.8.8/v1", True),
    ],
)
def test_proxies_never_apply_to_private_addresses(url: str, trusted: bool) -> None:
    assert trusts_proxies(url) is trusted


def test_a_proxy_variable_does_not_hijack_a_local_server(
    base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert check_model(base_url, "target") == ModelInfo("target", 2048, "0.32.0")


def test_unknown_length_and_version_are_none(base_url: str, pages: dict[str, tuple[int, str]]) -> None:
    pages["/v1/models"] = (200, '{"data":[{"id":"target"}]}')
    del pages["/version"]
    assert check_model(base_url, "target") == ModelInfo("target", None, None)


def test_another_model_is_refused_with_both_names(base_url: str) -> None:
    with pytest.raises(ServerError, match="serves target, not other") as caught:
        check_model(base_url, "other")
    assert "--served-model-name other" in str(caught.value)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ((200, "<html>"), "can't be read"),
        ((200, '{"data":null}'), "can't be read"),
        ((200, '{"data":[]}'), "serves nothing"),
        ((503, ""), "status 503"),
    ],
)
def test_a_server_that_is_not_what_it_should_be(
    base_url: str, pages: dict[str, tuple[int, str]], page: tuple[int, str], message: str
) -> None:
    pages["/v1/models"] = page
    with pytest.raises(ServerError, match=message):
        check_model(base_url, "target")


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ServerError, match="can't be reached") as caught:
        check_model("http://127.0.0.1:9/v1", "target")
    assert "OPENAI_BASE_URL" in str(caught.value)


def test_metrics_add_up_over_engines_and_keep_positions(base_url: str) -> None:
    assert read_metrics(base_url) == {
        "vllm:spec_decode_num_drafts_total": 12.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 4.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 2.0,
        "vllm:num_requests_running": 1.0,
    }
