"""Have one conversation with the model, turn by turn, with patience for its server."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extraction.attempts import Attempts
from extraction.dataset.records import Conversation
from extraction.server_link import RequestRefusedError, ServerAwayError
from hsstore.errors import RefusedError

if TYPE_CHECKING:
    from extraction.dataset.chat import ChatTemplate
    from extraction.dataset.messages import Message
    from extraction.dataset.tokenise import Encoder
    from extraction.regenerate.options import RegenerateOptions
    from extraction.regenerate.prompts import Prompt
    from extraction.server_link import ServerLink

MAX_ATTEMPTS = 3


class FailedPromptError(Exception):
    """The server does not answer this prompt."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A whole conversation."""

    messages: list[Message]
    ends: list[str]
    """Why each answer ended: "stop", or "length" where it was cut off."""
    tokens: int
    """Of all answers."""


class Asker:
    """Asks one server. `prompt` and `tokens` of a conversation pass through the model's template."""

    def __init__(
        self, link: ServerLink, encoder: Encoder, template: ChatTemplate, options: RegenerateOptions
    ) -> None:
        self._link = link
        self._encoder = encoder
        self._template = template
        self._options = options
        self._sampling = {
            "max_new_tokens": options.max_new_tokens,
            "temperature": options.temperature,
            "stop_token_ids": sorted(encoder.end_ids),
        }
        self._reviving = asyncio.Lock()
        self._model: str | None = None

    async def model(self) -> str:
        """Wait until the server is there; return the name of its model."""
        await self._wait_until_up()
        return self._model or ""

    async def talk(self, prompt: Prompt) -> Talk:
        """Ask turn by turn.

        Raises
        ------
        FailedPromptError
            The server refuses it, or breaks whenever it is asked.
        DroppedRecordError
            The chat template refuses it, or it contains a control token.
        InterruptedRunError, RefusedError
            The server is not there, or is another one now.
        """
        messages: list[Message] = []
        ends: list[str] = []
        tokens = 0
        for message in prompt.asked:
            messages.append(message)
            if message["role"] != "user":
                continue
            text = self._template.prompt(Conversation(messages, None, prompt.template_kwargs))
            answer = await self._ask(self._encoder.encode_prompt(text))
            ids = [token for token in answer["output_ids"] if token not in self._encoder.end_ids]
            content = self._encoder.tokenizer.decode(ids, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": content})
            ends.append(str(answer["meta_info"]["finish_reason"]["type"]))
            tokens += len(ids)
        return Talk(messages, ends, tokens)

    async def _ask(self, input_ids: list[int]) -> dict[str, Any]:
        attempts = Attempts(MAX_ATTEMPTS, skip_too_large=False)
        while True:
            await self._wait_until_up()
            try:
                async with asyncio.timeout(self._options.request_timeout_seconds):
                    return await self._link.complete(uuid.uuid4().hex, input_ids, self._sampling)
            except RequestRefusedError as error:
                raise FailedPromptError(str(error)) from error
            except ServerAwayError as error:
                self._link.park(error)
                reason = attempts.away(error).message
            except TimeoutError:
                attempts.failed()
                reason = f"no answer for {self._options.request_timeout_seconds:.0f} s"
            if attempts.over:
                raise FailedPromptError(f"asked again and again, the last time: {reason}")
            await asyncio.sleep(attempts.next_pause_seconds())

    async def _wait_until_up(self) -> None:
        async with self._reviving:
            if self._link.up.is_set():
                return
            async with self._link.patience(self._options.server_wait_seconds):
                model = await self._revive()
            if self._model not in {None, model}:
                raise RefusedError(f"{self._link.url} serves {model} now, not {self._model}")
            self._model = model
            self._link.up.set()

    async def _revive(self) -> str:
        while True:
            await self._link.wait_until_healthy()
            try:
                return await self._link.model_name()
            except ServerAwayError:
                await asyncio.sleep(1.0)
