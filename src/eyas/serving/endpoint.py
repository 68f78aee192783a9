"""A running server as a client sees it: addresses and key from the environment, proxies, model check, metrics."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from eyas.errors import ServerError

logger = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_NO_MODEL_LIST = (404, 405, 500, 501)
"""What servers without a model list answer; `transformers serve` says 500."""
_PRIVATE_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa")
"""Never names of the internet: RFC 6761, 6762, 8375, and the domain that ICANN keeps for private use."""
_REPLICA_LABELS = ("engine", "model_name")


@dataclass(frozen=True)
class ModelInfo:
    """What a server says about the model it serves."""

    name: str
    max_model_len: int | None
    """Context length in tokens, None if the server does not say."""
    version: str | None
    """Version of the server, None if it does not say."""
    root: str | None = None
    """Hub id or path from which it loaded the model, None if it does not say."""


def external_base_urls() -> list[str]:
    """The URLs of OPENAI_BASE_URL, separated by commas, without final slashes; none: a server is to be started.

    Raises:
        ServerError: one is no http(s) URL, holds a password or a query, or is named twice.
    """
    urls = [
        url for part in os.environ.get("OPENAI_BASE_URL", "").split(",") if (url := part.strip().rstrip("/"))
    ]
    for url in urls:
        _check_url(url)
        if urls.count(url) > 1:
            raise ServerError("OPENAI_BASE_URL names a server twice", where=url)
    return urls


def _check_url(url: str) -> None:
    example = "for example http://127.0.0.1:8000/v1"
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ServerError(f"OPENAI_BASE_URL is not a URL: {error}", where=url, hint=example) from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ServerError("OPENAI_BASE_URL is not an http(s) URL", where=url, hint=example)
    if parts.userinfo:  # addresses are logged and stored with every answer
        raise ServerError(
            "OPENAI_BASE_URL holds a user name or password",
            where=str(parts.copy_with(userinfo=b"")),
            hint="leave it out of the address; a key goes into OPENAI_API_KEY",
        )
    if parts.query or parts.fragment:
        raise ServerError("OPENAI_BASE_URL holds a query or fragment", where=url, hint=example)


def api_key() -> str:
    """OPENAI_API_KEY without spaces and newlines around it; servers without keys accept any.

    Raises:
        ServerError: it holds characters that no header can carry.
    """
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ServerError(
            "OPENAI_API_KEY holds characters that are not printable ASCII",
            where="the environment",
            hint="copy the key again",
        )
    return key or "EMPTY"


def trusts_proxies(base_url: str) -> bool:
    """Whether HTTP(S)_PROXY may apply: never to this machine, a private address or a name of a local network.

    Proxy variables meant for the internet hijack cluster addresses, and CIDR entries of no_proxy are ignored.
    """
    host = httpx2.URL(base_url).host
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(_PRIVATE_DOMAINS)


@cache
def certificates() -> ssl.SSLContext:
    """The authorities that are trusted, read once: it takes as long as some hundred requests."""
    return httpx2.create_ssl_context()


def effective_proxy(url: str) -> str | None:
    """The proxy that the environment sets for this URL, None if it is reached directly.

    Raises:
        ServerError: it is none that generation can go through.
    """
    if not trusts_proxies(url):
        return None
    target = httpx2.URL(url)
    if urllib.request.proxy_bypass(target.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise ServerError(
            f"{url} would be reached through the proxy {proxy.rpartition('@')[2]}, which is no HTTP proxy",
            where=f"{target.scheme.upper()}_PROXY or ALL_PROXY",
            hint="set an http:// proxy, or name the server's host in NO_PROXY",
        )
    return proxy


def server_root(base_url: str) -> str:
    """The address in front of /v1, where /health, /version and /metrics are."""
    return base_url.rstrip("/").removesuffix("/v1")


def check_models(base_urls: Sequence[str], expected_name: str) -> list[ModelInfo]:
    """Check several servers; what they serve must be the same. Versions may differ, with a warning.

    Raises:
        ServerError: as `check_model`, or the context lengths differ.
    """
    models = [check_model(url, expected_name) for url in base_urls]
    lengths = {model.max_model_len for model in models}
    if len(lengths) > 1:
        raise ServerError(
            f"the servers have different context lengths, {_listed(base_urls, [m.max_model_len for m in models])}",
            where="OPENAI_BASE_URL",
            hint="start all of them with the same --max-model-len: which one answers must not matter",
        )
    if len({model.version for model in models}) > 1:
        logger.warning(
            "the servers have different versions, %s", _listed(base_urls, [m.version for m in models])
        )
    return models


def check_model(base_url: str, expected_name: str) -> ModelInfo:
    """Ask a server for its models and find ours. One that is healthy and has no model list is taken at its word.

    Raises:
        ServerError: the server can't be reached, is no OpenAI-compatible server, or serves other models.
    """
    url = f"{base_url}/models"
    reply = _request(url)
    if reply.status_code in _NO_MODEL_LIST and _request(f"{server_root(base_url)}/health").is_success:
        logger.warning("%s: no model list; the model's name is checked in the answers", base_url)
        return ModelInfo(expected_name, None, _version(base_url))
    _refuse_status(reply, url)
    try:
        models: dict[str, dict[str, Any]] = {str(model["id"]): model for model in reply.json()["data"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            "the server's model list can't be read",
            where=url,
            hint="OPENAI_BASE_URL is the address of an OpenAI-compatible server and ends with /v1",
        ) from error
    if expected_name not in models:
        raise ServerError(
            f"the server serves {_some(sorted(models))}, not {expected_name}",
            where=base_url,
            hint=f"start it with --served-model-name {expected_name}, or correct `target` in params.yaml",
        )
    length, root = (models[expected_name].get(key) for key in ("max_model_len", "root"))
    return ModelInfo(
        expected_name,
        length if isinstance(length, int) else None,
        _version(base_url),
        root if isinstance(root, str) else None,
    )


def read_metrics(base_url: str) -> dict[str, float]:
    """All samples of /metrics: `name` or `name{label="value"}` to value.

    The labels that tell replicas apart (engine, model_name) are dropped and their values added up.

    Raises:
        ServerError: the server can't be reached or has no /metrics.
    """
    values: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(_get(f"{server_root(base_url)}/metrics").text):
        for sample in family.samples:
            labels = [
                f'{key}="{sample.labels[key]}"' for key in sorted(sample.labels) if key not in _REPLICA_LABELS
            ]
            values[f"{sample.name}{{{','.join(labels)}}}" if labels else sample.name] += sample.value
    return dict(values)


def read_page(base_url: str, page: str) -> dict[str, Any] | None:
    """The JSON object that a server shows under this name beside /v1, for example `version`; None if it has none."""
    try:
        found = _get(f"{server_root(base_url)}/{page}").json()
    except (ServerError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _version(base_url: str) -> str | None:
    """vLLM says it under /version, SGLang under /server_info."""
    for page in ("version", "server_info"):
        found = read_page(base_url, page)
        if found is not None and "version" in found:
            return str(found["version"])
    return None


def _some(names: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more


def _listed(urls: Sequence[str], values: Sequence[object]) -> str:
    return ", ".join(f"{url}: {value}" for url, value in zip(urls, values, strict=True))


def _get(url: str) -> httpx2.Response:
    reply = _request(url)
    _refuse_status(reply, url)
    return reply


def _request(url: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {api_key()}"}
    try:
        return httpx2.get(
            url, headers=headers, timeout=_TIMEOUT_S, verify=certificates(), trust_env=trusts_proxies(url)
        )
    except httpx2.HTTPError as error:
        raise ServerError(
            f"the server can't be reached: {str(error) or type(error).__name__}",
            where=url,
            hint="check that it runs and that OPENAI_BASE_URL is right",
        ) from error


def _refuse_status(reply: httpx2.Response, url: str) -> None:
    if reply.is_success:
        return
    if reply.is_redirect:
        raise ServerError(
            f"the server sends us on to {reply.headers.get('Location', 'nowhere')}",
            where=url,
            hint="set OPENAI_BASE_URL to the final address",
        )
    hint = "check OPENAI_API_KEY" if reply.status_code in (401, 403) else "look at the server's log"
    raise ServerError(f"the server answered with status {reply.status_code}", where=url, hint=hint)
