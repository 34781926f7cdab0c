"""A run: what is left to be asked, a bounded number of conversations at once, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from extraction.access import read_access
from extraction.dataset.chat import ChatTemplate
from extraction.dataset.options import DroppedRecordError
from extraction.dataset.tokenise import Encoder
from extraction.error_group import first_of
from extraction.regenerate.output import AnswerFile, Settings
from extraction.regenerate.prompts import read_prompts
from extraction.regenerate.talking import Asker, FailedPromptError
from extraction.server_link import ServerLink
from hsstore.errors import HsstoreError, InterruptedRunError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from extraction.regenerate.options import RegenerateOptions
    from extraction.regenerate.prompts import Prompt

log = logging.getLogger(__name__)

MAX_FAILURES = 32
"""So many prompts that the server does not answer, and none that it ever did: it never will."""


@dataclass(slots=True)
class Summary:
    """What became of the prompts."""

    prompts: int
    """Good ones in the file, or its beginning."""
    before: int = 0
    """Answered by earlier runs."""
    answered: int = 0
    """By this one."""
    tokens: int = 0
    cut: int = 0
    """Answers that ended at `max_new_tokens`."""
    bad: int = 0
    """Records that are wrong."""
    failed: int = 0
    """Prompts that the server did not answer."""
    drops: Counter[str] = field(default_factory=Counter)
    """Prompts that the chat template cannot render, by reason."""

    @property
    def settled(self) -> int:
        """Prompts that nothing more is done about."""
        return self.before + self.answered + self.failed + self.drops.total()


def regenerate(options: RegenerateOptions, progress: Callable[[int, int], None]) -> Summary:
    """Have all conversations that the output does not hold yet.

    Parameters
    ----------
    progress : callable
        Called with the prompts that are settled, and with all.

    Raises
    ------
    InputError, RefusedError, OutputError, InterruptedRunError
    """
    access = read_access(options.api_key_file, options.ca_cert)
    prompts = read_prompts(
        options.prompts,
        options.chat_template_kwargs,
        limit=options.limit,
        skip_bad=options.skip_bad,
    )
    for message in prompts.bad:
        log.warning("%s", message)
    encoder = Encoder(options.model, trust_remote_code=options.trust_remote_code)
    template = ChatTemplate(encoder.tokenizer, {})  # each prompt has its own arguments
    summary = Summary(len(prompts.good), bad=len(prompts.bad))

    async def run() -> None:
        link = ServerLink(options.server, options.max_in_flight, access)
        with AnswerFile(options.output) as output:
            async with link:
                asker = Asker(link, encoder, template, options)
                run = _Run(asker, output, summary, progress)
                await run.main(prompts.good, options)

    asyncio.run(run())
    return summary


class _Run:
    def __init__(
        self,
        asker: Asker,
        output: AnswerFile,
        summary: Summary,
        progress: Callable[[int, int], None],
    ) -> None:
        self._asker = asker
        self._output = output
        self._summary = summary
        self._progress = progress

    async def main(self, prompts: list[Prompt], options: RegenerateOptions) -> None:
        left = [prompt for prompt in prompts if prompt.sample_id not in self._output.done]
        self._summary.before = len(prompts) - len(left)
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101  # we are in it
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        try:
            settings = Settings(
                await self._asker.model(), options.max_new_tokens, options.temperature
            )
            self._output.check(settings, prompts)
            await self._ask_all(left, settings, options.max_in_flight)
        except asyncio.CancelledError:  # requests in flight are dropped with their connections
            raise InterruptedRunError(
                f"interrupted: {self._summary.settled} of {len(prompts)} prompts are settled; run the "
                "same command again to go on"
            ) from None

    async def _ask_all(self, left: list[Prompt], settings: Settings, at_once: int) -> None:
        queue = iter(left)
        self._progress(self._summary.settled, self._summary.prompts)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(at_once, len(left))):
                    group.create_task(self._ask_some(queue, settings))
        except ExceptionGroup as errors:
            raise first_of(errors, HsstoreError) from None

    async def _ask_some(self, queue: Iterator[Prompt], settings: Settings) -> None:
        for prompt in queue:
            try:
                talk = await self._asker.talk(prompt)
            except DroppedRecordError as error:
                self._summary.drops[error.reason] += 1
                log.warning("%s: %s", prompt.location, error)
            except FailedPromptError as error:
                self._fail(prompt, error)
            else:
                self._output.append(prompt, settings, talk.messages, talk.ends)
                self._summary.answered += 1
                self._summary.tokens += talk.tokens
                self._summary.cut += talk.ends.count("length")
            self._progress(self._summary.settled, self._summary.prompts)

    def _fail(self, prompt: Prompt, error: FailedPromptError) -> None:
        self._summary.failed += 1
        log.warning("%s: not answered: %s", prompt.location, error)
        if self._summary.failed == MAX_FAILURES and not self._output.done:
            raise RefusedError(
                f"{MAX_FAILURES} prompts were not answered, and none was, the last time: {error}"
            )
