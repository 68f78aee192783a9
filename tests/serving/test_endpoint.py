"""What a client learns from a running server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from eyas.errors import ServerError
from eyas.serving.endpoint import (
    ModelInfo,
    api_key,
    check_model,
    check_models,
    effective_proxy,
    external_base_urls,
    read_metrics,
    read_page,
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


@contextmanager
def serving(pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    handler = type("Pages", (Handler,), {"pages": pages})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture
def base_url(pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    with serving(pages) as url:
        yield url


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_the_environment_names_an_external_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert external_base_urls() == []
    assert api_key() == "EMPTY"
    monkeypatch.setenv("OPENAI_BASE_URL", " http://10.0.0.5:8000/v1/ ")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert external_base_urls() == ["http://10.0.0.5:8000/v1"]
    assert api_key() == "key"
    monkeypatch.setenv("OPENAI_BASE_URL", "10.0.0.5:8000")
    with pytest.raises(ServerError, match=r"not an http\(s\) URL"):
        external_base_urls()


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("http://127.0.0.1:8000/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://[::1]:8000/v1", False),
        ("http://10.1.2.3/v1", False),
        ("http://192.168.0.9:30000/v1", False),
        ("http://100.64.7.7:30000/v1", False),
        ("http://node-17:8000/v1", False),
        ("http://vllm.svc.cluster.local/v1", False),
        ("https://gateway.internal/v1", False),
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


def test_the_proxy_that_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert effective_proxy("https://api.example.com/v1") is None
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    assert effective_proxy("https://api.example.com/v1") == "http://proxy.example.com:3128"
    assert effective_proxy("http://api.example.com/v1") is None
    assert effective_proxy("https://10.0.0.5/v1") is None
    monkeypatch.setenv("no_proxy", "example.com")
    assert effective_proxy("https://api.example.com/v1") is None


def test_several_servers_are_named_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert external_base_urls() == []
    monkeypatch.setenv("OPENAI_BASE_URL", "http://10.0.0.5:8000/v1/, http://10.0.0.6:8000/v1,")
    assert external_base_urls() == ["http://10.0.0.5:8000/v1", "http://10.0.0.6:8000/v1"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://10.0.0.5:8000/v1,http://10.0.0.5:8000/v1/")
    with pytest.raises(ServerError, match="twice"):
        external_base_urls()


@pytest.fixture
def second_url(second_pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    with serving(second_pages) as url:
        yield url


@pytest.fixture
def second_pages(pages: dict[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
    return dict(pages)


def test_servers_must_serve_the_same(
    base_url: str,
    second_url: str,
    second_pages: dict[str, tuple[int, str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    both = [base_url, second_url]
    assert check_models(both, "target") == [ModelInfo("target", 2048, "0.32.0")] * 2
    assert caplog.text == ""
    second_pages["/version"] = (200, '{"version":"0.31.0"}')
    with caplog.at_level(logging.WARNING):
        assert [model.version for model in check_models(both, "target")] == ["0.32.0", "0.31.0"]
    assert f"{second_url}: 0.31.0" in caplog.text
    second_pages["/v1/models"] = (200, '{"data":[{"id":"target","max_model_len":4096}]}')
    with pytest.raises(ServerError, match="different context lengths") as caught:
        check_models(both, "target")
    assert f"{second_url}: 4096" in str(caught.value)
    second_pages["/v1/models"] = (200, '{"data":[{"id":"other"}]}')
    with pytest.raises(ServerError, match="serves other, not target"):
        check_models(both, "target")


def test_a_healthy_server_without_a_model_list_is_taken_at_its_word(
    base_url: str, pages: dict[str, tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    pages["/v1/models"] = (500, "")
    with pytest.raises(ServerError, match="status 500"):
        check_model(base_url, "target")
    pages["/health"] = (200, "")
    with caplog.at_level(logging.WARNING):
        assert check_model(base_url, "target") == ModelInfo("target", None, "0.32.0")
    assert "checked in the answers" in caplog.text


def test_a_refused_key_is_named(base_url: str, pages: dict[str, tuple[int, str]]) -> None:
    pages["/v1/models"] = (401, "")
    with pytest.raises(ServerError, match="OPENAI_API_KEY"):
        check_model(base_url, "target")


def test_unknown_length_and_version_are_none(base_url: str, pages: dict[str, tuple[int, str]]) -> None:
    pages["/v1/models"] = (200, '{"data":[{"id":"target"}]}')
    del pages["/version"]
    assert check_model(base_url, "target") == ModelInfo("target", None, None)


def test_the_version_of_sglang_is_in_its_server_info(
    base_url: str, pages: dict[str, tuple[int, str]]
) -> None:
    del pages["/version"]
    pages["/server_info"] = (200, '{"version":"0.5.23","status":"ready"}')
    assert check_model(base_url, "target").version == "0.5.23"


def test_a_page_is_a_json_object_or_nothing(base_url: str, pages: dict[str, tuple[int, str]]) -> None:
    pages["/odd"] = (200, "[1]")
    pages["/text"] = (200, "hello")
    pages["/good"] = (200, '{"a": 1}')
    found = [read_page(base_url, page) for page in ("good", "odd", "text", "absent")]
    assert found == [{"a": 1}, None, None, None]


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


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://localhost:80x0/v1", "is not a URL"),
        ("http://[::1/v1", "is not a URL"),
        ("http:///v1", "is not an http"),
        ("http://host/v1?api-version=1", "holds a query"),
    ],
)
def test_an_impossible_address_is_told(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(ServerError, match=message) as caught:
        external_base_urls()
    assert caught.value.where == url


def test_a_password_in_the_address_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret@host:8000/v1")
    with pytest.raises(ServerError, match="password") as caught:
        external_base_urls()
    assert "secret" not in str(caught.value)
    assert caught.value.where == "http://host:8000/v1"


def test_a_key_loses_its_newline_and_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " abc\r\n")
    assert api_key() == "abc"
    for value in ("ключ", "a\nb"):
        monkeypatch.setenv("OPENAI_API_KEY", value)
        with pytest.raises(ServerError, match="OPENAI_API_KEY") as caught:
            api_key()
        assert value not in str(caught.value)


def test_proxies_of_other_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "proxy.example.com:3128")
    assert effective_proxy("http://api.example.com/v1") == "http://proxy.example.com:3128"
    monkeypatch.setenv("http_proxy", "socks5://user:secret@127.0.0.1:9")
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9, which is no HTTP proxy") as caught:
        effective_proxy("http://api.example.com/v1")
    assert "secret" not in str(caught.value)
    assert effective_proxy("http://10.0.0.5/v1") is None


def test_odd_model_lists(base_url: str, pages: dict[str, tuple[int, str]]) -> None:
    pages["/v1/models"] = (200, '{"data":[{"id":1},{"id":"x"}]}')
    with pytest.raises(ServerError, match="serves 1, x, not target"):
        check_model(base_url, "target")
    names = ",".join(f'{{"id":"m{number:02}"}}' for number in range(40))
    pages["/v1/models"] = (200, f'{{"data":[{names}]}}')
    with pytest.raises(ServerError, match="m06, m07 and 32 more, not target"):
        check_model(base_url, "target")
