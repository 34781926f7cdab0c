"""`hsstore regenerate`: have the target answer prompts, for `hsstore extract`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsstore.cli.app import app
from hsstore.cli.options import (
    AnyLocation,
    ApiKeyFile,
    CaCert,
    ChatTemplateKwargs,
    Limit,
    SkipBad,
    TrustRemoteCode,
    data_options,
    local_path,
    server_and_spool,
)
from hsstore.cli.progress import progress_bar
from hsstore.location import locate

if TYPE_CHECKING:
    from extraction.regenerate import Summary


@app.command()
def regenerate(
    prompts: Annotated[
        AnyLocation,
        typer.Argument(
            metavar="PROMPTS",
            parser=locate,
            help="Conversations, a file or its URL, of which the user's turns are taken.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            parser=local_path("regenerate appends to OUT, so it takes"),
            help="JSONL file for `extract --data`; appended to.",
        ),
    ],
    server: Annotated[str, typer.Option(help="URL of the server. Proxies are never used.")],
    model: Annotated[
        Path,
        typer.Option(parser=local_path("--model takes"), help="The model's directory: tokenizer."),
    ],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 1024,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0: always the most likely token.")
    ] = 0.0,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Conversations at once.")] = 64,
    limit: Limit = None,
    skip_bad: SkipBad = False,
    chat_template_kwargs: ChatTemplateKwargs = "{}",
    trust_remote_code: TrustRemoteCode = False,
    api_key_file: ApiKeyFile = None,
    ca_cert: CaCert = None,
    request_timeout: Annotated[float, typer.Option(help="Seconds for one answer.")] = 1800.0,
    server_wait: Annotated[
        float, typer.Option(help="Seconds to wait for a server that is not there.")
    ] = 600.0,
) -> None:
    """Ask PROMPTS turn by turn; OUT gets the model's own answers. Run again to go on.

    OUT has a line a conversation, in the order in which they ended. What is in it is not asked
    again. Exit codes: 0 all answered; 1 some were not; 2 wrong input; 3 refused (another model or
    other options than in OUT); 74 output error; 75 interrupted, run again to continue.
    """
    import logging

    from extraction.regenerate import RegenerateOptions, regenerate as run

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    url, _ = server_and_spool("--server", server, Path())  # URL=SPOOL passes; no spool is needed
    options = RegenerateOptions(
        prompts=prompts,
        output=out,
        server=url,
        model=model,
        api_key_file=api_key_file,
        ca_cert=ca_cert,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        max_in_flight=max_in_flight,
        limit=limit,
        skip_bad=skip_bad,
        chat_template_kwargs=data_options([], chat_template_kwargs).chat_template_kwargs,
        trust_remote_code=trust_remote_code,
        request_timeout_seconds=request_timeout,
        server_wait_seconds=server_wait,
    )
    with progress_bar("prompts") as progress:
        summary = run(options, progress)
    print(f"{out}: {_tell(summary)}")
    raise typer.Exit(1 if summary.failed or summary.bad else 0)


def _tell(summary: Summary) -> str:
    parts = [f"{summary.before + summary.answered} of {summary.prompts} prompts answered"]
    if summary.before:
        parts.append(f"{summary.before} of them before")
    if summary.answered:
        parts.append(f"{summary.tokens:,} new tokens, {summary.cut} answers cut off")
    parts += [f"{count} dropped: {reason}" for reason, count in summary.drops.items()]
    if summary.failed:
        parts.append(f"{summary.failed} not answered: run again to ask them once more")
    if summary.bad:
        parts.append(f"{summary.bad} wrong records left out")
    return "; ".join(parts)
