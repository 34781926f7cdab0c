"""The part of SGLang's HTTP interface that the client uses, as an aiohttp application.

`POST /generate`, `POST /abort_request`, `GET /health`, `GET /model_info`, `GET /server_info`, with
the field names and status codes of SGLang 0.5.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from aiohttp import web

from extraction.engines.generation import GenerateRequest
from extraction.engines.in_flight import DuplicateRequestError
from extraction.engines.sampling import parse_sampling
from extraction.engines.worker import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from extraction.engines.engine import EngineDescription
    from extraction.engines.generation import Answer, Generator
    from extraction.engines.worker import Outcome, Worker

T = TypeVar("T")

_LARGEST_BODY_BYTES: Final = 256 << 20


class BadRequestError(ValueError):
    """The request is refused with status 400; the message says why."""


@dataclass(frozen=True, slots=True)
class Api:
    """The handlers of one server."""

    worker: Worker
    description: EngineDescription
    generator: Generator | None = None

    async def generate(self, http: web.Request) -> web.Response:
        """Run one sequence, or a list of them."""
        body = await _read_json(http)
        if self.generator is not None and is_generation(body):
            answers = await self._answer_prompts(body, self.generator)
        else:
            answers = await self._capture(body)
        return web.json_response(answers if _is_batch(body) else answers[0])

    async def _capture(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        began = time.monotonic()
        requests = parse_generate(body, self.description)
        futures = self.worker.submit(requests)
        outcomes = await self._wait(requests, futures, abort_on=asyncio.CancelledError)
        return [
            _answer(request, outcome, time.monotonic() - began)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    async def _answer_prompts(
        self, body: dict[str, Any], generator: Generator
    ) -> list[dict[str, Any]]:
        began = time.monotonic()
        requests = parse_prompts(body, self.description)
        futures = generator.submit(requests)
        # Where one fails, nobody gets the answers of the others.
        outcomes = await self._wait(requests, futures, abort_on=BaseException)
        return [
            _generated(request, outcome, time.monotonic() - began)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    async def _wait(
        self,
        requests: Sequence[Request] | Sequence[GenerateRequest],
        futures: Sequence[Future[T]],
        *,
        abort_on: type[BaseException],
    ) -> list[T]:
        """Return all outcomes; a cancellation says that the client has gone."""
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        except abort_on:
            for request in requests:
                self.worker.abort(request.rid)
            raise

    async def abort(self, http: web.Request) -> web.Response:
        """Abort the request `rid`; one that is unknown or has ended is no error."""
        rid = (await _read_json(http)).get("rid")
        if not isinstance(rid, str):
            raise BadRequestError("rid must be a string")
        await asyncio.to_thread(self.worker.abort, rid)  # generations are in flight there too
        return web.Response()

    async def health(self, _: web.Request) -> web.Response:
        """Answer that the HTTP server runs; the heartbeat in the spool says more."""
        return web.Response()

    async def model_info(self, _: web.Request) -> web.Response:
        """Name the model."""
        about = self.description
        return web.json_response(
            {"model_path": about.model, "is_generation": True, "max_tokens": about.max_tokens}
        )

    async def server_info(self, _: web.Request) -> web.Response:
        """Describe the engine and what it captures."""
        about = asdict(self.description)
        del about["norm"]  # in server.json
        return web.json_response(
            {"model_path": about["model"], "version": about["version"]} | about
        )


def make_app(
    worker: Worker, description: EngineDescription, generator: Generator | None = None
) -> web.Application:
    """Build the application; without a generator it captures, and no more."""
    api = Api(worker, description, generator)
    app = web.Application(middlewares=[_json_errors], client_max_size=_LARGEST_BODY_BYTES)
    app.router.add_post("/generate", api.generate)
    app.router.add_post("/abort_request", api.abort)
    app.router.add_get("/health", api.health)
    app.router.add_get("/model_info", api.model_info)
    app.router.add_get("/server_info", api.server_info)
    return app


def parse_generate(body: dict[str, Any], about: EngineDescription) -> list[Request]:
    """Check the body of `/generate`; one request per sequence.

    Raises
    ------
    BadRequestError
        Something this engine cannot do, named by its field.
    """
    sequences = _parse_sequences(body, about)
    predict = _parse_predict(body.get("sampling_params"))
    return [Request(rid, ids, predict) for rid, ids in sequences]


def is_generation(body: dict[str, Any]) -> bool:
    """Tell whether a body asks for more than the states of its tokens, and the likeliest next one."""
    params = body.get("sampling_params")
    first = params[0] if isinstance(params, list) and params else params
    if not isinstance(first, dict):
        return False
    tokens = first.get("max_new_tokens")
    chosen = bool(first.get("temperature") or first.get("stop_token_ids"))
    return tokens not in (0, 1) or (tokens == 1 and chosen)


def parse_prompts(body: dict[str, Any], about: EngineDescription) -> list[GenerateRequest]:
    """Check the body of `/generate` where text is to be generated; one request per sequence.

    Raises
    ------
    BadRequestError
        Something this engine cannot do, named by its field.
    """
    sequences = _parse_sequences(body, about)
    params = body.get("sampling_params")
    each = params if isinstance(params, list) else [params] * len(sequences)
    if len(each) != len(sequences):
        raise BadRequestError(f"sampling_params must be an object, or a list of {len(sequences)}")
    try:
        sampling = [parse_sampling(one) for one in each]
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    for (_, ids), one in zip(sequences, sampling, strict=True):
        if len(ids) + one.max_new_tokens > about.max_tokens:
            raise BadRequestError(
                f"Requested token count exceeds the model's maximum context length of "
                f"{about.max_tokens} tokens: {len(ids)} of the input and {one.max_new_tokens} new."
            )
    return [
        GenerateRequest(rid, ids, one) for (rid, ids), one in zip(sequences, sampling, strict=True)
    ]


def _parse_sequences(
    body: dict[str, Any], about: EngineDescription
) -> list[tuple[str, npt.NDArray[np.int32]]]:
    """Return the id and the tokens of each sequence."""
    if "input_ids" not in body:
        raise BadRequestError("input_ids is missing: this engine has no tokenizer")
    if body.get("stream"):
        raise BadRequestError("stream is not supported")
    sequences = body["input_ids"] if _is_batch(body) else [body["input_ids"]]
    rids = _parse_rids(body.get("rid"), len(sequences), batch=_is_batch(body))
    return [(rid, _parse_ids(ids, about)) for rid, ids in zip(rids, sequences, strict=True)]


def _is_batch(body: dict[str, Any]) -> bool:
    ids = body["input_ids"]
    return isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)


def _parse_rids(rid: Any, count: int, *, batch: bool) -> list[str]:  # noqa: ANN401 - JSON
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{index}" for index in range(count)] if batch else [rid]
    if not isinstance(rid, list) or len(rid) != count or not all(type(r) is str for r in rid):
        raise BadRequestError(f"rid must be a string, or a list of {count} strings")
    return rid


def _parse_ids(ids: Any, about: EngineDescription) -> npt.NDArray[np.int32]:  # noqa: ANN401 - JSON
    if not isinstance(ids, list) or not ids:
        raise BadRequestError("input_ids must be a list of at least one token id")
    if len(ids) > about.max_tokens:
        raise BadRequestError(
            f"The input ({len(ids)} tokens) is longer than the model's context length "
            f"({about.max_tokens} tokens)."
        )
    if not all(type(one) is int and 0 <= one < about.vocabulary for one in ids):
        raise BadRequestError(f"input_ids must be integers in 0..{about.vocabulary - 1}")
    return np.array(ids, dtype=np.int32)


def _parse_predict(params: Any) -> bool:  # noqa: ANN401 - JSON
    each = params if isinstance(params, list) else [params]
    wanted = {one.get("max_new_tokens") if isinstance(one, dict) else None for one in each}
    if wanted not in ({0}, {1}):
        raise BadRequestError(
            "sampling_params.max_new_tokens must be 0 or 1, the same for all sequences: no text is "
            "generated from this request"
        )
    return wanted == {1}


def _answer(request: Request, outcome: Outcome, seconds: float) -> dict[str, Any]:
    output_ids = [] if outcome.next_token is None else [outcome.next_token]
    finish: dict[str, Any] = {"type": "length", "length": len(output_ids)}
    if outcome.aborted:
        finish = {"type": "abort", "message": "Aborted before it began"}
    return _document(request, output_ids, finish, seconds)


def _generated(request: GenerateRequest, answer: Answer, seconds: float) -> dict[str, Any]:
    finish: dict[str, Any] = {"type": "length", "length": len(answer.tokens)}
    if answer.aborted:
        finish = {"type": "abort", "message": "Aborted"}
    elif answer.stopped:
        finish = {"type": "stop", "matched": answer.tokens[-1]}
    return _document(request, list(answer.tokens), finish, seconds)


def _document(
    request: Request | GenerateRequest,
    output_ids: list[int],
    finish: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    return {
        "text": "",
        "output_ids": output_ids,
        "meta_info": {
            "id": request.rid,
            "finish_reason": finish,
            "prompt_tokens": len(request.input_ids),
            "completion_tokens": len(output_ids),
            "cached_tokens": 0,
            "e2e_latency": seconds,
        },
    }


async def _read_json(http: web.Request) -> dict[str, Any]:
    try:
        body = await http.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    return body


@web.middleware
async def _json_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors as JSON; the boundary of the process."""
    try:
        return await handler(request)
    except (BadRequestError, DuplicateRequestError) as error:
        return _error(400, str(error))
    except web.HTTPException as error:
        return _error(error.status, error.reason)
    except Exception as error:  # noqa: BLE001 - logged where it happened
        return _error(500, repr(error))


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
