"""What the servers speak: vLLM's /v1/completions and SGLang's /generate, both with token ids and streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from openai import AsyncOpenAI, AsyncStream

from eyas.engine.answer import Answer
from eyas.engine.asking import Asking
from eyas.engine.questions import Question
from eyas.errors import ServerError
from eyas.serving.endpoint import server_root

TOP_LOGPROBS = 20
"""As many as vLLM gives unless it was told otherwise."""


class Dialect(Protocol):
    """How a request is written and its stream read."""

    def root(self, base_url: str) -> str:
        """The address that paths are relative to."""
        ...

    def body(
        self, model: str, question: Question, asking: Asking, max_tokens: int, cache_salt: str | None
    ) -> dict[str, Any]:
        """The request. Every sampling parameter is explicit: a server fills gaps from the model's files."""
        ...

    async def read(self, client: AsyncOpenAI, body: Mapping[str, Any]) -> Answer:
        """Send it and read the stream.

        Raises:
            ServerError: the stream holds no token ids, or none of its chunks is usable.
            openai.OpenAIError: the server refused, or the stream broke.
        """
        ...

    async def top_logprobs(self, client: AsyncOpenAI, model: str, prompt_ids: list[int]) -> dict[int, float]:
        """Log-probabilities (nats) of the most likely tokens behind a prompt, by token id.

        Raises:
            openai.OpenAIError: the server refused.
            KeyError, IndexError, TypeError, ValueError: it answered something else.
        """
        ...


class Vllm:
    """Completions with `return_token_ids` (vLLM 0.10.2 or later).

    A server with `--per-request-spec-decode-metrics detailed` sends the accepted tokens of every draft with the usage.
    """

    def root(self, base_url: str) -> str:
        return base_url

    def body(
        self, model: str, question: Question, asking: Asking, max_tokens: int, cache_salt: str | None
    ) -> dict[str, Any]:
        body = {
            "model": model,
            "prompt": question.prompt_ids,
            "max_tokens": max_tokens,
            **_sampling(asking),
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "min_tokens": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        seed = asking.seed_of(question)
        salt = {} if cache_salt is None else {"cache_salt": cache_salt}
        return body | salt | ({} if seed is None else {"seed": seed})

    async def read(self, client: AsyncOpenAI, body: Mapping[str, Any]) -> Answer:
        started = time.monotonic()
        token_ids: list[int] = []
        times: list[float] = []
        metrics: Mapping[str, Any] = {}
        finished = False
        async for chunk in _stream(client, "/completions", body):
            for choice in chunk.get("choices") or ():
                finished = finished or choice.get("finish_reason") is not None
                if found := choice.get("token_ids"):
                    token_ids += found
                    times.append(time.monotonic() - started)
            metrics = chunk.get("metrics") or metrics
        _refuse_unfinished(finished)
        if not token_ids:
            raise ServerError(
                "the server returned no token ids, so answers can't be compared",
                hint="use vLLM 0.10.2 or later, which knows return_token_ids",
            )
        drafts = metrics.get("speculative_decoding") or {}
        rounds = drafts.get("per_step_accepted")
        if rounds is None and drafts.get("num_spec_steps") == 0:
            rounds = []
        return Answer(
            token_ids=token_ids,
            first_token_s=times[0],
            last_token_s=times[-1],
            accepted_by_round=rounds,
            accepted_histogram=drafts.get("acceptance_histogram"),
            drafts=drafts.get("num_spec_steps"),
        )

    async def top_logprobs(self, client: AsyncOpenAI, model: str, prompt_ids: list[int]) -> dict[int, float]:
        body = {
            "model": model,
            "prompt": prompt_ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": TOP_LOGPROBS,
            "return_tokens_as_token_ids": True,
        }
        reply: Any = await client.post("/completions", cast_to=object, body=body)
        found = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        return {int(name.removeprefix("token_id:")): logprob for name, logprob in found.items()}


class Sglang:
    """SGLang's native /generate.

    What it says of drafts was named differently over time (sgl-project/sglang): the histogram of accepted tokens is
    `spec_accept_histogram` or `spec_correct_drafts_histogram`; the oldest versions have `spec_verify_ct` alone.
    """

    def root(self, base_url: str) -> str:
        return server_root(base_url)

    def body(
        self, model: str, question: Question, asking: Asking, max_tokens: int, cache_salt: str | None
    ) -> dict[str, Any]:
        sampling = _sampling(asking) | {
            "max_new_tokens": max_tokens,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "min_new_tokens": 0,
        }
        sampling["top_k"] = asking.top_k if asking.top_k and not asking.greedy else -1
        seed = asking.seed_of(question)
        return {
            "input_ids": question.prompt_ids,
            "sampling_params": sampling if seed is None else sampling | {"sampling_seed": seed},
            "stream": True,
        }

    async def read(self, client: AsyncOpenAI, body: Mapping[str, Any]) -> Answer:
        started = time.monotonic()
        pieces: list[list[int]] = []
        times: list[float] = []
        meta: Mapping[str, Any] = {}
        async for chunk in _stream(client, "/generate", body):
            meta = chunk.get("meta_info") or meta
            if found := chunk.get("output_ids"):
                pieces.append(found)
                times.append(time.monotonic() - started)
        _refuse_abort(meta)
        _refuse_unfinished(meta.get("finish_reason") is not None)
        if not pieces:
            raise ServerError("the server returned no output_ids, so answers can't be compared")
        histogram = meta.get("spec_correct_drafts_histogram") or meta.get("spec_accept_histogram")
        return Answer(
            token_ids=_joined(pieces, meta.get("completion_tokens")),
            first_token_s=times[0],
            last_token_s=times[-1],
            accepted_histogram=histogram,
            drafts=meta.get("spec_verify_ct"),
        )

    async def top_logprobs(self, client: AsyncOpenAI, model: str, prompt_ids: list[int]) -> dict[int, float]:
        body = {
            "input_ids": prompt_ids,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "return_logprob": True,
            "top_logprobs_num": TOP_LOGPROBS,
        }
        reply: Any = await client.post("/generate", cast_to=object, body=body)
        found = reply["meta_info"]["output_top_logprobs"][0]
        return {int(token): float(logprob) for logprob, token, *_ in found}


DIALECTS: dict[str, Dialect] = {"vllm": Vllm(), "sglang": Sglang()}


def _sampling(asking: Asking) -> dict[str, Any]:
    if asking.greedy:
        return {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    return {"temperature": asking.temperature, "top_p": asking.top_p, "top_k": asking.top_k, "min_p": 0.0}


async def _stream(
    client: AsyncOpenAI, path: str, body: Mapping[str, Any]
) -> AsyncIterator[Mapping[str, Any]]:
    """The JSON objects of a stream, unread: both servers send fields that the SDK's types don't have."""
    async with await client.post(
        path, cast_to=object, body=dict(body), stream=True, stream_cls=AsyncStream[object]
    ) as stream:
        async for chunk in stream:
            if isinstance(chunk, Mapping):
                yield chunk


def _joined(pieces: list[list[int]], total: int | None) -> list[int]:
    """All ids of a stream whose chunks hold either what is new or all so far (SGLang: --incremental-streaming-output).

    Raises:
        ServerError: the number of tokens fits neither.
    """
    new = [token for piece in pieces for token in piece]
    if total is None or len(pieces[-1]) == total:
        return pieces[-1]
    if len(new) == total:
        return new
    raise ServerError(
        f"the stream holds {len(new)} token ids, {len(pieces[-1])} of them in its last chunk, but the server counted "
        f"{total}"
    )


def _refuse_unfinished(finished: bool) -> None:
    if not finished:
        raise ServerError("the stream ended before its answer", hint="look at the server's log")


def _refuse_abort(meta: Mapping[str, Any]) -> None:
    reason = meta.get("finish_reason")
    if isinstance(reason, Mapping) and reason.get("type") == "abort":
        raise ServerError(f"the server aborted the request: {reason.get('message')}")
