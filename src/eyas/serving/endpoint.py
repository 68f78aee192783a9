"""A running server as a client sees it: address and key from the environment, model check, metrics."""

from __future__ import annotations

import ipaddress
import os
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from eyas.errors import ServerError

_TIMEOUT_S = 30.0
_REPLICA_LABELS = ("engine", "model_name")


@dataclass(frozen=True)
class ModelInfo:
    """What a server says about the model it serves."""

    name: str
    max_model_len: int | None
    """Context length in tokens, None if the server does not say."""
    version: str | None
    """Version of the server, None if it does not say."""


def external_base_url() -> str | None:
    """OPENAI_BASE_URL without a final slash; None means that a server is to be started."""
    url = os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")
    if url and not url.startswith(("http://", "https://")):
        raise ServerError(
            "OPENAI_BASE_URL is not an http(s) URL", where=url, hint="for example http://127.0.0.1:8000/v1"
        )
    return url or None


def api_key() -> str:
    """OPENAI_API_KEY; servers without keys accept any."""
    return os.environ.get("OPENAI_API_KEY") or "EMPTY"


def trusts_proxies(base_url: str) -> bool:
    """Whether HTTP(S)_PROXY may apply: never to this machine or a private address.

    Proxy variables meant for the internet hijack cluster addresses, and CIDR entries of no_proxy are ignored.
    """
    host = httpx2.URL(base_url).host
    try:
        return not ipaddress.ip_address(host).is_private
    except ValueError:
        return host != "localhost"


def check_model(base_url: str, expected_name: str) -> ModelInfo:
    """Ask a server for its models and find ours.

    Raises:
        ServerError: the server can't be reached, is no OpenAI-compatible server, or serves other models.
    """
    reply = _get(f"{base_url}/models")
    try:
        models: dict[str, dict[str, Any]] = {model["id"]: model for model in reply.json()["data"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError("the server's model list can't be read", where=f"{base_url}/models") from error
    if expected_name not in models:
        raise ServerError(
            f"the server serves {', '.join(sorted(models)) or 'nothing'}, not {expected_name}",
            where=base_url,
            hint=f"start it with --served-model-name {expected_name}, or correct `target` in params.yaml",
        )
    length = models[expected_name].get("max_model_len")
    return ModelInfo(expected_name, length if isinstance(length, int) else None, _version(base_url))


def read_metrics(base_url: str) -> dict[str, float]:
    """All samples of /metrics: `name` or `name{label="value"}` to value.

    The labels that tell replicas apart (engine, model_name) are dropped and their values added up.

    Raises:
        ServerError: the server can't be reached or has no /metrics.
    """
    values: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(_get(f"{_server_root(base_url)}/metrics").text):
        for sample in family.samples:
            labels = [
                f'{key}="{sample.labels[key]}"' for key in sorted(sample.labels) if key not in _REPLICA_LABELS
            ]
            values[f"{sample.name}{{{','.join(labels)}}}" if labels else sample.name] += sample.value
    return dict(values)


def _version(base_url: str) -> str | None:
    try:
        version = _get(f"{_server_root(base_url)}/version").json()["version"]
    except (ServerError, ValueError, KeyError, TypeError):
        return None
    return str(version)


def _server_root(base_url: str) -> str:
    return base_url.rstrip("/").removesuffix("/v1")


def _get(url: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {api_key()}"}
    try:
        reply = httpx2.get(url, headers=headers, timeout=_TIMEOUT_S, trust_env=trusts_proxies(url))
    except httpx2.HTTPError as error:
        raise ServerError(
            f"the server can't be reached: {error or type(error).__name__}",
            where=url,
            hint="check that it runs and that OPENAI_BASE_URL is right",
        ) from error
    if not reply.is_success:
        raise ServerError(f"the server answered with status {reply.status_code}", where=url)
    return reply
