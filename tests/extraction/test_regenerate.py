"""Prompts in, the model's own answers out: a tiny model behind the real HTTP server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import transformers
from aiohttp import web
from aiohttp.test_utils import TestServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner

from extraction.dataset import DatasetOptions, load_dataset
from extraction.engines.generation import Generator
from extraction.engines.http_server import make_app
from extraction.engines.in_flight import InFlight
from extraction.engines.transformers_model import TransformersEngine
from extraction.regenerate import RegenerateOptions, Summary, regenerate
from extraction.regenerate.output import AnswerFile
from hsstore.cli.app import app as commands
from hsstore.errors import InputError, InterruptedRunError, OutputError, RefusedError
from tests.extraction.tiny import make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHATML = (
    "{{ tone | default('') }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QUESTIONS = [["Who?", "And why?"], ["Where?"], ["When?", "Sure?", "Really?"], ["How?"]]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint whose tokens are bytes, with a chat template."""
    directory = make_checkpoint(tmp_path_factory.mktemp("regenerate") / "tiny")
    vocabulary = {
        letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    fast = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML
    )
    fast.save_pretrained(directory)
    return directory


class Server:
    """The server in a thread of its own; counts what is answered, and breaks when told to."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.answered = 0
        self.faults: list[int | str] = []
        """What the next requests get instead of an answer."""
        self.on_request: Callable[[], object] = bool
        self.model_info: str | None = None
        """What is said of the model instead of the truth."""
        self.url = ""
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def start(self) -> None:
        """Serve until `close`."""
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        in_flight = InFlight()
        generator = Generator(self._engine, in_flight, threads=1)
        captures: Any = in_flight  # nothing is captured here, but generations are aborted
        app = make_app(captures, self._engine.description, generator)
        app.middlewares.append(self._faulty)
        async with TestServer(app, handler_cancellation=True) as server:
            self.url = str(server.make_url("")).rstrip("/")
            self._ready.set()
            await self._stop.wait()
        generator.close()

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path == "/model_info" and self.model_info is not None:
            return web.Response(text=self.model_info, content_type="text/html")
        if request.path != "/generate":
            response: web.StreamResponse = await handler(request)
            return response
        self.on_request()
        if self.faults:
            fault = self.faults.pop(0)
            if fault == "reset":
                assert request.transport is not None
                request.transport.abort()
            if fault == "hold":
                await asyncio.Event().wait()
            if fault == "abort":
                finish = {"type": "abort", "message": "Aborted"}
                return web.json_response({"meta_info": {"finish_reason": finish}})
            return web.json_response({"error": "no"}, status=fault if type(fault) is int else 500)
        response = await handler(request)
        self.answered += 1
        return response


@pytest.fixture(scope="module")
def engine(model: Path) -> TransformersEngine:
    return TransformersEngine(model, layers=(0, 2, 4), dtype="float32")


@pytest.fixture
def server(engine: TransformersEngine) -> Iterator[Server]:
    one = Server(engine)
    one.start()
    yield one
    one.close()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return _write(tmp_path / "prompts.jsonl", [{"turns": turns} for turns in QUESTIONS])


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _run(server: Server, prompts: Path, model: Path, **options: Any) -> Summary:
    wanted = RegenerateOptions(
        prompts=prompts,
        output=prompts.with_name("out.jsonl"),
        server=server.url,
        model=model,
        **{"max_new_tokens": NEW_TOKENS, "server_wait_seconds": 30.0, **options},
    )
    return regenerate(wanted, lambda _done, _all: None)


def _lines(prompts: Path) -> list[dict[str, Any]]:
    text = prompts.with_name("out.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_each_user_turn_is_answered_as_the_model_does_and_extract_takes_the_file(
    server: Server, engine: TransformersEngine, model: Path, tmp_path: Path
) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Somebody else's answer."},
        {"role": "user", "content": "And why?"},
    ]
    record = {"id": "a", "messages": turns, "split": "heldout", "metadata": {"source": "x"}}
    prompts = _write(tmp_path / "prompts.jsonl", [record])

    summary = _run(server, prompts, model)

    (line,) = _lines(prompts)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
    asked: list[dict[str, str]] = []
    for message in turns:
        if message["role"] == "assistant":
            continue
        asked.append(message)
        if message["role"] == "user":
            ids = tokenizer.apply_chat_template(
                asked, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )["input_ids"]
            end = tokenizer.eos_token_id
            new = engine._model.generate(
                ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=end, pad_token_id=end
            )[0, ids.shape[1] :]
            text = tokenizer.decode(new, skip_special_tokens=True)
            asked.append({"role": "assistant", "content": text})
    assert line["messages"] == asked
    assert (line["id"], line["split"], line["metadata"]["source"]) == ("a", "heldout", "x")
    mark = line["metadata"]["regenerated"]
    assert (mark["model"], mark["ends"]) == ("tiny", ["length", "length"])
    assert (summary.answered, summary.cut, summary.tokens) == (1, 2, 2 * NEW_TOKENS)
    dataset, _ = load_dataset([prompts.with_name("out.jsonl")], model, DatasetOptions())
    assert len(dataset) == 1


@pytest.mark.parametrize("cut_bytes", [1, 2, 40, 10**6])
def test_a_run_that_was_killed_goes_on_and_asks_nothing_again_that_was_written_whole(
    server: Server, prompts: Path, model: Path, cut_bytes: int
) -> None:
    _run(server, prompts, model, max_in_flight=1)
    whole = prompts.with_name("out.jsonl").read_bytes()
    first, *others, last = whole.splitlines(keepends=True)
    left = first + last[: max(len(last) - cut_bytes, 0)]  # as if the others had not come yet
    prompts.with_name("out.jsonl").write_bytes(left)
    kept = 2 if cut_bytes == 1 else 1  # of the last line only the end may be missing
    server.answered = 0

    summary = _run(server, prompts, model, max_in_flight=1)

    turns = sum(map(len, QUESTIONS[1 : 4 if kept == 1 else 3]))
    assert (summary.before, summary.answered, server.answered) == (kept, 4 - kept, turns)
    lines = prompts.with_name("out.jsonl").read_bytes().splitlines(keepends=True)
    assert sorted(lines) == sorted([first, *others, last])


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_line(
    server: Server, prompts: Path, model: Path
) -> None:
    _run(server, prompts, model)
    path = prompts.with_name("out.jsonl")
    whole = path.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]

    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with AnswerFile(path) as output:
            found = len(output.done)
        kept = sum(end <= cut for end in ends)
        assert found == kept
        assert path.read_bytes() == whole[: ends[kept - 1] + 1 if kept else 0]


def test_a_run_is_interrupted_by_a_signal_and_goes_on(
    server: Server, prompts: Path, model: Path
) -> None:
    def stop_at_third() -> None:
        if server.answered == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            server.faults = ["hold"]  # the answer does not come before the signal

    server.on_request = stop_at_third
    with pytest.raises(InterruptedRunError, match=r"1 of 4 prompts are settled; run the same"):
        _run(server, prompts, model, max_in_flight=1)
    before, server.on_request = len(_lines(prompts)), bool

    summary = _run(server, prompts, model)

    assert (before, summary.before, summary.answered) == (1, 1, 3)


def test_a_server_that_breaks_is_asked_again(server: Server, prompts: Path, model: Path) -> None:
    server.faults = [503, "reset", "abort", 429]

    summary = _run(server, prompts, model)

    assert (summary.answered, summary.failed) == (4, 0)


def test_a_prompt_that_is_refused_is_told_and_asked_in_the_next_run(
    server: Server, prompts: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = [400]

    summary = _run(server, prompts, model, max_in_flight=1)
    again = _run(server, prompts, model)

    assert (summary.answered, summary.failed) == (3, 1)
    assert "prompts.jsonl, line 1: not answered: the server answered 400" in caplog.text
    assert (again.before, again.answered) == (3, 1)


def test_a_server_that_answers_nothing_is_given_up(
    server: Server, tmp_path: Path, model: Path
) -> None:
    prompts = _write(tmp_path / "prompts.jsonl", [{"prompt": f"{n}?"} for n in range(50)])
    server.faults = [400] * 50

    with pytest.raises(RefusedError, match="32 prompts were not answered, and none was"):
        _run(server, prompts, model)


def test_prompts_behind_many_that_are_refused_are_reached_once_something_was_answered(
    server: Server, tmp_path: Path, model: Path
) -> None:
    prompts = _write(tmp_path / "prompts.jsonl", [{"prompt": f"{n}?"} for n in range(42)])
    _run(server, prompts, model, limit=1)
    server.faults = [400] * 40

    summary = _run(server, prompts, model, max_in_flight=1)

    assert (summary.before, summary.failed, summary.answered) == (1, 40, 1)
    assert [line["id"] for line in _lines(prompts)] == ["prompts-1", "prompts-42"]


def test_the_templates_arguments_of_the_command_are_each_records_own_in_the_output(
    server: Server, tmp_path: Path, model: Path
) -> None:
    records: list[dict[str, Any]]
    records = [{"prompt": "Who?"}, {"prompt": "Why?", "chat_template_kwargs": {"tone": "rude "}}]
    prompts = _write(tmp_path / "prompts.jsonl", records)

    _run(server, prompts, model, max_in_flight=1, chat_template_kwargs={"tone": "kind "})

    assert [line["chat_template_kwargs"]["tone"] for line in _lines(prompts)] == ["kind ", "rude "]
    dataset, _ = load_dataset([prompts.with_name("out.jsonl")], model, DatasetOptions())
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
    starts = [0, int(dataset.length[0])]
    texts = [tokenizer.decode(dataset.input_ids[start : start + 5]) for start in starts]
    assert texts == ["kind ", "rude "]
    with pytest.raises(RefusedError, match=r"line 1: .* other chat template arguments"):
        _run(server, prompts, model, chat_template_kwargs={"tone": "dry "})
    assert _run(server, prompts, model, chat_template_kwargs={"tone": "kind "}).before == 2


@pytest.mark.parametrize("said", ["<html>It works!</html>", ""])
def test_what_is_no_inference_server_is_refused_and_shown(
    server: Server, prompts: Path, model: Path, said: str
) -> None:
    server.model_info = said

    with pytest.raises(RefusedError, match=rf"/model_info answers with no JSON.* b'{said}'"):
        _run(server, prompts, model)


def test_an_output_that_cannot_be_read_is_an_output_error(tmp_path: Path) -> None:
    output = AnswerFile(tmp_path / "out.jsonl")
    output.path.unlink()

    with pytest.raises(OutputError, match=r"out\.jsonl: No such file"), output:
        pass


def test_a_control_token_in_a_prompt_is_dropped_as_extract_would(
    server: Server, tmp_path: Path, model: Path
) -> None:
    records = [{"prompt": "<|im_start|>assistant"}, {"prompt": "Who?"}]

    summary = _run(server, _write(tmp_path / "prompts.jsonl", records), model)

    assert (summary.answered, dict(summary.drops)) == (1, {"control token in text": 1})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"id": "x", "turns": ["a"]', "line 2: not valid JSON"),
        ('{"turns": "who?"}', ""),
        ('{"turns": [1]}', "line 2: field 'turns': a list of texts is expected"),
        (
            '{"messages": [{"role": "assistant", "content": "a"}]}',
            "line 2: field 'messages': there",
        ),
        ('{"messages": [{"role": "user"}]}', "line 2: field 'messages[0].content': missing"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "line 2: field 'messages': no tools"),
        ('{"prompt": "a", "tools": [{"name": "f"}]}', "line 2: field 'tools': no tools"),
        ('{"text": "a"}', "line 2: field 'messages': missing: only conversations"),
        ('{"id": "x", "ask": "a"}', "turns, prompt; its fields are id, ask"),
        ('{"id": "p", "prompt": "a"}', "line 2: field 'id': duplicate 'p', first at"),
    ],
)
def test_a_wrong_record_is_named_before_anything_is_asked(
    server: Server, tmp_path: Path, model: Path, record: str, message: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "p", "prompt": "Who?"}\n' + record + "\n")
    if not message:
        assert _run(server, prompts, model).answered == 2
        return

    with pytest.raises(InputError) as raised:
        _run(server, prompts, model)
    assert message in str(raised.value)
    assert server.answered == 0
    assert not prompts.with_name("out.jsonl").exists()
    assert _run(server, prompts, model, skip_bad=True).bad == 1


def test_answers_of_other_options_prompts_or_programs_are_not_mixed(
    server: Server, prompts: Path, model: Path
) -> None:
    _run(server, prompts, model)
    out = prompts.with_name("out.jsonl")

    with pytest.raises(RefusedError, match=r"by model .* --max-new-tokens 12 .*, not model .* 13 "):
        _run(server, prompts, model, max_new_tokens=13)
    _write(prompts, [{"id": "prompts-2", "prompt": "Another?"}])
    with pytest.raises(RefusedError, match="answered another prompt under the id 'prompts-2'"):
        _run(server, prompts, model)
    with AnswerFile(out), pytest.raises(RefusedError, match="another process is writing it"):
        _run(server, prompts, model)
    out.write_text('{"id": "x", "messages": []}')
    with pytest.raises(InputError, match="line 1: not written by hsstore regenerate"):
        _run(server, prompts, model)
    assert out.read_text() == '{"id": "x", "messages": []}'


def test_the_command_says_what_it_did_and_ends_with_a_code(
    server: Server, prompts: Path, model: Path
) -> None:
    import hsstore.cli  # noqa: F401, PLC0415  # registers the commands

    out = prompts.with_name("out.jsonl")
    arguments = ["regenerate", prompts, out, "--server", server.url, "--model", model]
    arguments += ["--max-new-tokens", "3"]
    server.faults = [400]

    first = CliRunner().invoke(commands, [*map(str, arguments), "--max-in-flight", "1"])
    second = CliRunner().invoke(commands, [*map(str, arguments)])
    wrong = CliRunner().invoke(commands, [*map(str, arguments), "--chat-template-kwargs", "x"])

    assert first.exit_code == 1
    assert f"{out}: 3 of 4 prompts answered; " in first.stdout
    assert "1 not answered: run again" in first.stdout
    assert second.exit_code == 0
    assert "4 of 4 prompts answered; 3 of them before" in second.stdout
    assert wrong.exit_code == 2
