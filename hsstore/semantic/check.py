"""Check the meaning of a whole store: learn from a part of it, set limits, then judge every sample.

Three passes: rows of a few hundred samples, to fit maps and find shared beginnings; measures of the same
samples, for limits; then all samples, judged where they are read. So memory and results are bounded,
whatever the size of the store.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import CorruptStoreError, NotExtractedError, RefusedError
from hsstore.semantic.blas import one_blas_thread
from hsstore.semantic.context import Context, Source, choose_negatives
from hsstore.semantic.fit import learn
from hsstore.semantic.judge import judge
from hsstore.semantic.limits import limits_of
from hsstore.semantic.measure import measure
from hsstore.semantic.report import Found, make_report
from hsstore.tasks import Where, run_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.report import SemanticReport
    from hsstore.semantic.fit import Learned
    from hsstore.semantic.judge import Judgement
    from hsstore.semantic.limits import Limits
    from hsstore.semantic.measure import Measures
    from hsstore.tasks import Progress

LEARNED_SAMPLES = 512
"""Chosen by seed, to learn from and to set limits; all, where there are no more."""
COUNTED_SAMPLES = 64
"""Whose tokens are counted, to find frequent ones."""
MEAN_TOKENS = 4096
"""Of these, whose mean embedding is taken."""
TASK_TOKENS = 1 << 14
"""Tokens of the samples of one task; one sample at least."""
LISTED = 10_000
"""Findings that are listed; all are counted."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of the samples of one task."""

    judgements: tuple[Judgement, ...]
    samples: int
    tokens: int
    unreadable: int


def check_semantics(
    store_path: Location,
    model_dir: Path,
    where: Where | None = None,
    *,
    samples: Sequence[int] | npt.NDArray[np.int64] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SemanticReport:
    """Check that the states of a store belong to its tokens and to its model. Nothing is written.

    Parameters
    ----------
    model_dir : Path
        The model's checkpoint: output matrix, embedding and final norm are read from it.
    where : Where, optional
        Where tasks run; on threads by default.
    samples : int (n,), optional
        Which to judge, ascending; all complete ones by default. What is usual is learned from all.
    seed : int
        Of what is chosen at random.
    progress : callable, optional
        Called with the samples done and all.

    Raises
    ------
    InputError
        There is no store, or no such checkpoint.
    RefusedError
        The checkpoint is another model's, or its final norm is not known.
    """
    where = where or Where()
    prepared = prepare(store_path, model_dir, where, seed=seed)
    complete = prepared.complete
    wanted = complete if samples is None else np.intersect1d(complete, np.asarray(samples))
    found = _judge_all(prepared.source, prepared.limits, wanted, where, progress)
    context = Context(prepared.source)
    return make_report(
        prepared.source, context, prepared.learned, prepared.limits, prepared.population, found
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that judging needs."""

    source: Source
    limits: Limits
    learned: Learned
    population: int
    """Samples that the limits come from."""
    complete: npt.NDArray[np.int64]
    """Samples that are complete."""


def prepare(store_path: Location, model_dir: Path, where: Where, *, seed: int) -> Prepared:
    """Learn what is usual in a store.

    Raises
    ------
    InputError, RefusedError
        As `check_semantics`.
    """
    source = Source.of(store_path, model_dir, seed)
    context = Context(source)
    complete = np.flatnonzero(context.store.completion().complete)
    samples = _choose(complete, LEARNED_SAMPLES, seed)
    source = _with_tokens(source, context, samples)
    learned = learn(source, samples, where)
    source = source.with_fit(learned.fitted)
    results = run_tasks(partial(measure_one, source), samples, where, files=source.files)
    measured = [one for _, one in results if one]
    limits = limits_of(measured, context.model)
    return Prepared(source, limits, learned, len(measured), complete)


def _choose(complete: npt.NDArray[np.int64], count: int, seed: int) -> list[int]:
    generator = np.random.default_rng(seed)
    chosen = generator.choice(complete, min(count, len(complete)), replace=False)
    return sorted(chosen.tolist())


def _with_tokens(source: Source, context: Context, samples: Sequence[int]) -> Source:
    """Choose the tokens that losses are taken against, and refuse tokens the model does not have."""
    vocabulary = context.vocabulary
    few = samples[:: max(1, len(samples) // COUNTED_SAMPLES)]
    ids = np.concatenate([context.ids(sample) for sample in few]) if few else np.zeros(1, np.int32)
    if ids.max() >= vocabulary:
        raise RefusedError(
            f"{source.model_dir} is another model than the store's: it has {vocabulary} tokens, and the "
            f"store has token {ids.max()}"
        )
    negatives = choose_negatives(ids, vocabulary, source.seed)
    return source.with_tokens(negatives, context.mean_code(ids[:: max(1, len(ids) // MEAN_TOKENS)]))


def measure_one(source: Source, sample: int) -> Measures | None:
    """Measure one sample; None where it cannot be read."""
    with one_blas_thread():
        try:
            return measure(Context(source), sample)
        except (CorruptStoreError, NotExtractedError, OSError):
            return None


def _judge_all(
    source: Source,
    limits: Limits,
    samples: npt.NDArray[np.int64],
    where: Where,
    progress: Progress | None,
) -> Found:
    found = Found(Counter(), [], 0, 0, 0)
    tasks = _cut(samples, Context(source).store.length)
    for _, judged in run_tasks(
        partial(judge_samples, source, limits), tasks, where, files=source.files
    ):
        found.add(judged.judgements, LISTED)
        found.samples += judged.samples
        found.tokens += judged.tokens
        found.unreadable += judged.unreadable
        if progress:
            progress(found.samples + found.unreadable, len(samples))
    return found


def _cut(
    samples: npt.NDArray[np.int64], length: npt.NDArray[np.int32]
) -> list[npt.NDArray[np.int64]]:
    """Cut samples into tasks of about as many tokens.

    >>> [task.tolist() for task in _cut(np.arange(4), np.array([9000, 9000, 40000, 10]))]
    [[0], [1], [2, 3]]
    """
    if not len(samples):
        return []
    end = np.cumsum(length[samples], dtype=np.int64)
    task = (end - 1) // TASK_TOKENS
    return np.split(samples, np.flatnonzero(np.diff(task)) + 1)


def judge_samples(source: Source, limits: Limits, samples: npt.NDArray[np.int64]) -> Judged:
    """Judge some samples: the unit of work that Dask distributes."""
    judgements: list[Judgement] = []
    seen = tokens = unreadable = 0
    with one_blas_thread():
        context = Context(source)
        for sample in samples.tolist():
            try:
                measures = measure(context, sample)
                judgement = judge(context, limits, measures)
            except (CorruptStoreError, NotExtractedError, OSError):
                unreadable += 1
                continue
            seen += 1
            tokens += measures.tokens
            if judgement is not None:
                judgements.append(judgement)
    return Judged(tuple(judgements), seen, tokens, unreadable)
