"""The whole way from files to a tokenised dataset: read, check, tokenise, filter, count."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING

from extraction.dataset.chat import ChatTemplate
from extraction.dataset.files import read_records
from extraction.dataset.options import (
    BAD_INPUT,
    TOO_FEW_LOSS_TOKENS,
    TOO_LONG,
    DatasetReport,
    DroppedRecordError,
)
from extraction.dataset.records import Conversation, Text, Tokens, parse_record
from extraction.dataset.tokenise import Encoder
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from extraction.dataset.files import RawRecord
    from extraction.dataset.options import DatasetOptions
    from extraction.dataset.tokenise import Encoded
    from hsstore.location import Location

COMPRESSIONS = (".gz", ".zst")


def load_dataset(
    files: Sequence[Location],
    tokenizer_dir: Path | None,
    options: DatasetOptions,
    progress: Callable[[int], None] | None = None,
) -> tuple[TokenizedDataset, DatasetReport]:
    """Read training files, in order, into one tokenised dataset.

    Parameters
    ----------
    files
        JSONL (plain, gzip, zstd), Parquet, or folders of Hugging Face `save_to_disk`; paths or URLs.
    tokenizer_dir
        The model's directory. None is enough for records that are tokenised already.
    options
        What to keep and how to mask it.
    progress
        Called with the number of records read so far, after each.

    Returns
    -------
    dataset, report
        The samples, and what became of all records.

    Raises
    ------
    InputError
        A wrong record (unless `options.skip_bad`), a file that cannot be read, or nothing kept.
    UnreachableError
        An object store does not answer.
    """
    loader = _Loader(tokenizer_dir, options)
    dataset = TokenizedDataset.from_samples(loader.samples(files, progress))
    return dataset, loader.report


class _Loader:
    def __init__(self, tokenizer_dir: Path | None, options: DatasetOptions) -> None:
        self.report = DatasetReport()
        self._options = options
        self._encoder = (
            Encoder(tokenizer_dir, trust_remote_code=options.trust_remote_code)
            if tokenizer_dir
            else None
        )
        self._template: ChatTemplate | None = None
        self._seen: dict[str, str] = {}

    def samples(
        self, files: Sequence[Location], progress: Callable[[int], None] | None
    ) -> Iterator[TokenizedSample]:
        for path, label in zip(files, _labels(files), strict=True):
            for raw in read_records(path):
                if self.report.kept == self._options.limit:
                    return
                self.report.read += 1
                sample = self._sample_or_none(raw, label)
                if sample is not None:
                    self.report.kept += 1
                    yield sample
                if progress:
                    progress(self.report.read)
        if not self.report.kept:
            raise InputError(self._nothing_kept())

    def _sample_or_none(self, raw: RawRecord, label: str) -> TokenizedSample | None:
        try:
            return self._sample(raw, label)
        except DroppedRecordError as error:
            self.report.drop(error.reason, f"{raw.location}: {error}")
        except InputError as error:
            if not self._options.skip_bad:
                raise
            self.report.drop(BAD_INPUT, str(error))
        return None

    def _sample(self, raw: RawRecord, label: str) -> TokenizedSample:
        record = parse_record(raw, self._encoder.vocab_size if self._encoder else None)
        sample_id = record.sample_id or f"{label}-{raw.number}"
        self._check_unique(sample_id, raw)
        input_ids, loss_mask = self._fit(self._encode(record.body, raw))
        return TokenizedSample(sample_id, input_ids, loss_mask, record.split, record.metadata)

    def _check_unique(self, sample_id: str, raw: RawRecord) -> None:
        first = self._seen.setdefault(sample_id, raw.location)
        if first != raw.location:
            raise InputError(
                f"{raw.location}: field 'id': duplicate {sample_id!r}, first at {first}"
            )

    def _encode(self, body: Conversation | Text | Tokens, raw: RawRecord) -> Encoded:
        if isinstance(body, Tokens):
            return body.input_ids, body.loss_mask
        if self._encoder is None:
            raise InputError(
                f"{raw.location}: text needs a tokenizer: give the model's directory, --model"
            )
        if isinstance(body, Text):
            return self._encoder.encode_text(body.text)
        if self._template is None:
            arguments = self._options.chat_template_kwargs
            self._template = ChatTemplate(self._encoder.tokenizer, arguments)
        return self._encoder.encode(*self._template.render(body, self._options.train_on))

    def _fit(self, encoded: Encoded) -> Encoded:
        input_ids, loss_mask = encoded
        limit = self._options.max_tokens or len(input_ids)
        truncated = len(input_ids) > limit
        if truncated and self._options.too_long == "skip":
            raise DroppedRecordError(TOO_LONG, f"{len(input_ids)} tokens, at most {limit}")
        supervised = int(loss_mask[:limit].sum())
        if not limit or supervised < self._options.min_loss_tokens:
            raise DroppedRecordError(
                TOO_FEW_LOSS_TOKENS,
                f"{supervised} supervised tokens{' after truncation' if truncated else ''}, "
                f"at least {self._options.min_loss_tokens}",
            )
        self.report.truncated += truncated
        return input_ids[:limit], loss_mask[:limit]

    def _nothing_kept(self) -> str:
        examples = [text for texts in self.report.examples.values() for text in texts[:1]]
        return "\n  ".join([f"no sample is left: {self.report.summary()}", *examples])


def _labels(files: Sequence[Location]) -> list[str]:
    """Name files for the ids of records that have none; equal names get a number."""
    seen: Counter[str] = Counter()
    labels = []
    for file in files:
        name = PurePath(file.name)
        name = name.with_suffix("") if name.suffix in COMPRESSIONS else name
        stem = name.name.rsplit(".", 1)[0] or name.name
        seen[stem] += 1
        labels.append(stem if seen[stem] == 1 else f"{stem}.{seen[stem]}")
    return labels
